"""The loss scaler behind every library's ``LossScaleOptimizer`` and behind ``LossScaler``: scale, unscale, step.

What differs between them is who owns the variables (:class:`Memory`) and what a step does (a callable). Everything
else, from the first multiplication to the last counter, is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from amp_tf.loss_scaling import finite, ledger, replicas
from amp_tf.loss_scaling.diagnosis import SkipFacts, Status
from amp_tf.loss_scaling.guard import Guard
from amp_tf.loss_scaling.misuse import check_any
from amp_tf.loss_scaling.recognizing.usage import Gradients, Usage, is_inner_call, note_scale, scaled_step
from amp_tf.loss_scaling.schedule import Schedule, State, check_scale
from amp_tf.loss_scaling.skip_facts import NonfiniteVariables, data_of, find_facts, make_variable


class Memory:
    """The variables that hold a scaler's state; each library creates, names and saves them in its own way.

    Args:
        scale: a float32 scalar variable.
        *counters: int64 variables, scalars or vectors, that one after the other hold the rest of a :class:`State`.
        read: reads a variable as a tensor.
        explains: whether skipped steps are to be explained by more than the counters; not in TF1 graphs.

    Attributes:
        last_skip: the variable of :mod:`amp_tf.loss_scaling.skip_facts`, or ``None``. It is not part of the state.
    """

    def __init__(
        self,
        scale: Any,
        *counters: Any,
        read: Callable[[Any], Any] = tf.convert_to_tensor,
        explains: bool = True,
    ) -> None:
        self.scale = scale
        self.counters = counters
        is_eager = tf.compat.v1.executing_eagerly_outside_functions()
        self.last_skip = make_variable() if explains and is_eager else None
        self._read = read

    def read_scale(self) -> Any:
        """The scale: a float32 scalar tensor."""
        return self._read(self.scale)

    def assign_scale(self, value: Any) -> None:
        """Sets the scale from the next step on; in a TF1 graph only to a number, in the default session.

        Raises:
            ConfigError: it is a number outside the range of scales, 2**-126 to 2**127.
            ValueError: there is no default session.
        """
        check_scale(value)
        if tf.compat.v1.executing_eagerly_outside_functions():
            self.scale.assign(value)
        else:
            self.scale.load(value)

    def load(self) -> State:
        """The state as scalar tensors."""
        values = [self._read(variable) for variable in self.counters]
        return State(self.read_scale(), *(n for value in values for n in tf.unstack(tf.reshape(value, [-1]))))

    def store(self, state: State) -> list[Any]:
        """Writes the state; returns operations, which a TF1 graph runs with the step."""
        counts = iter([tf.cast(count, tf.int64) for count in state[1:]])
        written = [self.scale.assign(state.scale, read_value=False)]
        for variable in self.counters:
            values = [next(counts) for _ in range(variable.shape.num_elements())]
            written.append(variable.assign(tf.reshape(tf.stack(values), variable.shape), read_value=False))
        return written

    def status(
        self, schedule: Schedule, names: Iterable[str] = (), session: Any = None, is_at_exit: bool = False
    ) -> Status:
        """The state as Python numbers.

        Args:
            schedule: of the scaler.
            names: of variables whose gradients were nonfinite.
            session: a TF1 session to ask; none is needed with eager execution.
            is_at_exit: whether the program is over.

        Raises:
            LookupError: the program is over, and the variables are on a parameter server, which may be gone.
        """
        variables = [self.scale, *self.counters]
        if is_at_exit and "/job:ps" in str(getattr(self.scale, "device", "")):
            raise LookupError("the variables are on a parameter server")
        # Fetches the variables themselves, because reads cannot be added to a finalized graph.
        scale, *counters = [v.numpy() for v in variables] if session is None else session.run(variables)
        counts = [int(count) for vector in counters for count in vector.reshape(-1)]
        facts = [] if self.last_skip is None else self.last_skip.numpy()
        return Status.of(float(scale), counts, schedule, names, SkipFacts(*(bool(fact) for fact in facts)))


class Scaler:
    """Multiplies a loss, divides gradients, and makes or skips a step, on all replicas alike.

    Args:
        schedule: how the scale moves.
        memory: where the state is kept.
        label: names it in the line at exit, unless it is that of a TF1 graph; empty for none.

    Attributes:
        label: as above.
        nonfinite_variables: the variables whose gradients made the last step be skipped.
        number: of its entry in the ledger; ``None`` as long as it has scaled no loss.
        guard: what else may hold a step back; ``None`` for nothing.
    """

    def __init__(self, schedule: Schedule, memory: Memory, label: str = "") -> None:
        self.schedule = schedule
        self.memory = memory
        self.usage = Usage()
        self.nonfinite_variables = NonfiniteVariables()
        self.number: int | None = None
        self.guard: Guard | None = None
        self.label = label

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "number": None, "guard": None}  # a copy scales losses of its own

    @property
    def is_used(self) -> bool:
        """Whether a loss was scaled, or gradients of one that the loop scaled by hand were applied."""
        return self.usage.is_used

    def scale(self, loss: Any) -> Any:
        """Multiplies a (nest of) loss by the scale, and remembers whether it was finite.

        Returns:
            The same structure, float32 (float64 where it was).
        """
        if not self.schedule.skips_nonfinite:
            return loss
        self._enter()
        note_scale(loss, self.memory)
        self.usage.note_scaled_loss(loss, data_of(loss) if self.memory.last_skip is not None else [])
        return loss if self.schedule.is_one else finite.scale_loss(loss, self.memory.read_scale())

    def decides(self, where: str) -> bool:
        """Whether a step is checked and perhaps skipped here: not where nothing is scaled, or another scaler decides.

        Args:
            where: names the optimizer.

        Raises:
            CallOrderError: another scaler decides, and this one has scaled the loss, too.
        """
        if is_inner_call():
            self.usage.check_alone(where)
            return False
        return self.schedule.skips_nonfinite

    def unscale(self, gradients: Iterable[Any], is_scaled: Callable[[int], bool] = lambda place: True) -> list[Any]:
        """Gradients divided by the scale.

        Args:
            gradients: tensors, ``tf.IndexedSlices`` or ``None``.
            is_scaled: whether the gradient at a place was scaled at all; the others stay.
        """
        if self.schedule.is_one:
            return list(gradients)
        scale = self.memory.read_scale()
        return [finite.unscale(g, scale) if is_scaled(place) else g for place, g in enumerate(gradients)]

    def unscale_for_loop(self, gradients: Iterable[Any]) -> list[Any]:
        """Divides gradients for a loop that unscales them itself; the step then takes them unchanged."""
        if not self.schedule.skips_nonfinite:
            return list(gradients)
        self.usage.note_unscaled_gradients()
        given = list(gradients)
        self.usage.warn_of_meeting(given, self.memory.scale, "the training loop")
        return self.unscale(given)

    def unscaled(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        is_scaled: Callable[[int], bool] = lambda place: True,
        **judging: Any,
    ) -> list[Any]:
        """The gradients of a step, divided by the scale if they are still scaled; see :meth:`Usage.judge`.

        Args:
            gradients: anything that TensorFlow makes tensors of, ``tf.IndexedSlices`` or ``None``.
            variables: the gradients' variables.
            is_scaled: as for :meth:`unscale`.
            **judging: ``by_hand``, ``where`` and ``fix``.
        """
        given = [finite.as_tensor(gradient, v) for gradient, v in zip(gradients, variables, strict=True)]
        kind = self.usage.judge(given, self.memory.scale, variables=variables, **judging)
        if kind is not Gradients.NEVER_SCALED:
            self._enter()
        if kind is not Gradients.SCALED:
            return given
        self.usage.warn_of_meeting(given, self.memory.scale, judging["where"])
        return self.unscale(given, is_scaled)

    def unscaled_pairs(self, pairs: Sequence[tuple[Any, Any]], **judging: Any) -> list[tuple[Any, Any]]:
        """As :meth:`unscaled`, for pairs of gradient and variable.

        The division is left to the loop, as with the wrappers of tf_keras and TF1 themselves.

        Raises:
            ValueError: there is no pair.
        """
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        check_any(gradients)
        given = self.unscaled(gradients, variables, by_hand=Gradients.UNSCALED_BY_LOOP, **judging)
        return list(zip(given, variables, strict=True))

    def step(
        self,
        gradients: Sequence[Any],
        take: Callable[[Any, Any], Any],
        *,
        norm_clip: finite.NormClip = finite.NormClip.NONE,
        headroom: float = 1.0,
        variables: Sequence[Any] = (),
        arguments: Any = (),
    ) -> Any:
        """Takes a step if the gradients of all replicas are finite, else skips it; moves the scale either way.

        Args:
            gradients: unscaled; those that are ``None`` stay so.
            take: makes the step; called with the strategy, or ``None`` where each replica decides alone, and the
                gradients. It may return operations, which a TF1 graph runs with the step.
            norm_clip, headroom: as for :func:`amp_tf.loss_scaling.finite.find_nonfinite`.
            variables: what the gradients are for, so that a skipped step can name them.
            arguments: a nest of further arguments of ``take``, each replica's own; it then gets (gradients, arguments).

        Returns:
            Whether the step was taken: a boolean scalar, in a TF1 graph the tensor to run.
        """
        places = [place for place, gradient in enumerate(gradients) if gradient is not None]
        present = [gradients[place] for place in places]
        trained = [variables[place] for place in places] if variables else ()

        def taken(strategy: Any, handed: Any) -> list[Any]:
            whole = [None] * len(gradients)
            for place, gradient in zip(places, handed[0], strict=True):
                whole[place] = gradient
            return [take(strategy, (whole, handed[1]) if arguments else whole), *self.note_finite()]

        def skipped(strategy: Any, handed: Any, found: replicas.Nonfinite) -> list[Any]:
            state = self.schedule.after_nonfinite(self.memory.load(), finite.TENSORS, found.loss)
            noted = [*self._note_facts(strategy, handed), *self.nonfinite_variables.note(found, trained)]
            return [*self.memory.store(state), *noted]

        def judged(found: replicas.Nonfinite) -> Any:
            if self.guard is None:
                return tf.reduce_any(found.gradients)
            return self.guard.judge(found, self.memory.read_scale())

        is_loss_nonfinite, data, parts = self.usage.take_loss()
        value = finite.total(parts) if self.guard is not None else 0.0
        found = replicas.Nonfinite(finite.find_nonfinite(present, norm_clip, headroom), is_loss_nonfinite, value)
        with scaled_step():
            return replicas.decide_together(found, [present, arguments, data], take=taken, skip=skipped, judge=judged)

    def _note_facts(self, strategy: Any, handed: Any) -> list[Any]:
        """Records what explains a skipped step; ``handed`` is each replica's gradients, arguments and data."""
        if self.memory.last_skip is None:
            return []
        facts = replicas.sum_over(strategy, lambda mine: find_facts(mine[0], mine[2]), handed)
        return [self.memory.last_skip.assign(facts, read_value=False)]

    def status(self, session: Any = None) -> Status:
        """The state as Python numbers; see :meth:`Memory.status`."""
        return self.memory.status(self.schedule, self.nonfinite_variables.names(), session=session)

    def note_finite(self) -> list[Any]:
        """Counts a step that was applied; returns operations."""
        return self.memory.store(self.schedule.after_finite(self.memory.load(), finite.TENSORS))

    def _enter(self) -> None:
        if self.number is None and self.label and self.memory.last_skip is not None:
            memory, schedule = self.memory, self.schedule
            self.number = ledger.enter(self.label, lambda: memory.status(schedule, is_at_exit=True))
