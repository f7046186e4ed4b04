"""Scales a loss, unscales gradients, and makes a step or skips it.

:class:`Scaler` is behind every library's ``LossScaleOptimizer`` and behind ``LossScaler``. They
differ in the owner of the variables (:class:`Memory`), in the step (a callable), and in the library
whose class they extend (:mod:`amp_tf.loss_scaling.wrapping`).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from amp_tf.loss_scaling import finite, kept, ledger, replicas
from amp_tf.loss_scaling.calls import (
    Calls,
    is_inner_call,
    note_place,
    note_scaled,
    places,
    scaled_step,
)
from amp_tf.loss_scaling.ledger import SkipFacts, Status
from amp_tf.loss_scaling.schedule import Schedule, State, check_scale

_TWO_LINES = (
    "Add two lines to the training step:\n"
    "    scaled_loss = optimizer.scale_loss(loss)              # inside the GradientTape\n"
    "    gradients = tape.gradient(scaled_loss, variables)     # then apply_gradients, which "
    "unscales\n"
    "Where the loop is a library's, hand it a loss that is optimizer.scale_loss(loss), or set "
    "AMP_TF_PRECISION=bfloat16, which needs no loss scale. Where the program scales its loss by "
    "hand, it divides the gradients, too; TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0 then "
    "leaves its optimizer alone"
)


#: gradients, each with its variable
Pairs = Iterable[tuple[Any, Any]]


class Memory:
    """The variables that hold a scaler's state; each library names and saves them in its own way.

    In a TF1 graph it is not known why a step was skipped, beyond the counters.

    Args:
        scale: a float32 scalar.
        counters: int64 scalars or vectors that hold the rest of a :class:`State`, in order.
        read: reads a variable as a tensor.
    """

    def __init__(
        self, scale: Any, *counters: Any, read: Callable[[Any], Any] = tf.convert_to_tensor
    ) -> None:
        self.scale = scale
        self.counters = counters
        self._read = read
        # The facts on the last skipped step, in no checkpoint: nothing may track the variable.
        self.last_skip = None
        if tf.compat.v1.executing_eagerly_outside_functions():
            with finite.lifted():
                self.last_skip = tf.Variable(
                    [0] * len(SkipFacts._fields), trainable=False, name="last_skip"
                )

    def read_scale(self) -> Any:
        """The scale: a float32 scalar tensor."""
        return self._read(self.scale)

    def assign_scale(self, value: Any) -> None:
        """Sets the scale from the next step on.

        In a TF1 graph the value is a number, and is set in the default session.
        """
        check_scale(value)
        if tf.compat.v1.executing_eagerly_outside_functions():
            self.scale.assign(value)
        else:
            self.scale.load(value)

    def load(self) -> State:
        """The state as scalar tensors."""
        counts: list[Any] = []
        for variable in self.counters:
            counts += tf.unstack(tf.reshape(self._read(variable), [-1]))
        return State(self.read_scale(), *counts)

    def store(self, state: State) -> list[Any]:
        """Writes the state; returns operations, which a TF1 graph runs with the step."""
        counts = [tf.cast(count, tf.int64) for count in state[1:]]
        written = [self.scale.assign(state.scale, read_value=False)]
        for variable in self.counters:
            size = variable.shape.num_elements()
            value = tf.reshape(tf.stack(counts[:size]), variable.shape)
            counts = counts[size:]
            written.append(variable.assign(value, read_value=False))
        return written

    def status(self, schedule: Schedule, names: Iterable[str] = (), session: Any = None) -> Status:
        """The state as Python numbers, asked from a TF1 session or from eager variables."""
        # Fetches the variables themselves, because reads cannot be added to a finalized graph.
        variables = [self.scale, *self.counters]
        if session is None:
            scale, *counters = (variable.numpy() for variable in variables)
        else:
            scale, *counters = session.run(variables)
        counts: list[int] = []
        for vector in counters:
            counts += map(int, vector.reshape(-1))
        facts = SkipFacts()
        if self.last_skip is not None:
            facts = SkipFacts(*map(bool, self.last_skip.numpy()))
        floor = float(getattr(schedule, "min_scale", 0.0))  # a scale that does not move has none
        return Status(
            *State(float(scale), *counts),
            min_scale=floor,
            nonfinite_variables=tuple(names),
            last_skip=facts,
        )


class Scaler:
    """Multiplies a loss, divides gradients, and makes or skips a step, on all replicas alike.

    ``label`` names it in the summary line, unless it is that of a TF1 graph; empty for none.
    """

    def __init__(self, schedule: Schedule, memory: Memory, label: str = "") -> None:
        self.schedule = schedule
        self.memory = memory
        self.label = label
        self.calls = Calls()
        self.nonfinite_variables = finite.NonfiniteVariables()
        self.number: int | None = None  #: of its entry in the ledger, from its first call on
        self._loss = threading.local()
        self._has_warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "number": None, "_loss": None, "calls": None}

    def __setstate__(self, state: dict[str, Any]) -> None:  # a copy scales losses of its own
        vars(self).update(state, _loss=threading.local(), calls=Calls())

    def scale(self, loss: Any, divides_in_step: bool = True) -> Any:
        """Multiplies a (nest of) loss, and remembers whether it was finite.

        ``divides_in_step`` says whether the step is to divide the gradients, or the loop does.
        """
        note_place()
        if not self.schedule.skips_nonfinite:
            return loss
        self._enter()
        before, data = self._take_loss()
        with own_names():
            scale = self.calls.note_scale(divides_in_step, self.memory.read_scale)
            flag = before | finite.has_nonfinite(tf.nest.flatten(loss))
            scaled = finite.scale_loss(loss, scale)
        if self.memory.last_skip is not None:
            data = [*data, *finite.data_of(loss)]
        self._loss.noted = (places()[0], flag, data)
        note_scaled(tf.nest.flatten(loss), tf.nest.flatten(scaled))
        return scaled

    def decides(self, where: str) -> bool:
        """Tells whether this scaler checks a step.

        It does not if nothing is scaled, or if another scaler decides.
        """
        if is_inner_call():
            self.calls.check_alone(where)
            return False
        return self.schedule.skips_nonfinite

    def unscale(self, gradients: Iterable[Any], variables: Iterable[Any] = ()) -> list[Any]:
        """Divides gradients by the scale that multiplied the loss.

        The scales of FP8, which Keras writes into their variables, stay as they are.
        """
        unscaled = []
        with own_names():
            scale = self.calls.scale()
            if scale is None:  # the loss was scaled in another function
                scale = self.memory.read_scale()
            for gradient, variable in itertools.zip_longest(gradients, variables):
                if not getattr(variable, "overwrite_with_gradient", False):
                    gradient = finite.unscale(gradient, scale)
                unscaled.append(gradient)
        return unscaled

    def unscale_for_loop(self, gradients: Iterable[Any]) -> list[Any]:
        """Divides gradients; the step then takes them unchanged."""
        given = list(gradients)
        if not self.schedule.skips_nonfinite:
            return given
        unscaled = self.unscale(given)
        self.calls.note_unscale(given, unscaled)
        return unscaled

    def unscale_for_step(
        self, gradients: Sequence[Any], variables: Sequence[Any], where: str, fix: str = _TWO_LINES
    ) -> list[Any]:
        """Divides the gradients of a step if they are still scaled.

        :mod:`amp_tf.loss_scaling.calls` tells. Warns once where no loss was scaled; ``where`` names
        the optimizer, and ``fix`` says what to do. Without any gradient a ValueError is raised.
        """
        finite.check_any(gradients)
        given = list(map(finite.as_tensor, gradients, variables))
        divides, wrong = self.calls.judge(given, variables)
        self._enter()
        if wrong and not self._has_warned:
            self._has_warned = True
            logging.warning(
                "amp_tf: %s: %s; the gradients are applied as they are. %s.", where, wrong, fix
            )
        if not divides:
            return given
        return self.unscale(given, variables)

    def step(
        self,
        gradients: Sequence[Any],
        apply: Callable[..., Any],
        *,
        around: Callable[[Any], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        clips_norm: bool = False,
        headroom: float = 1.0,
        variables: Sequence[Any] = (),
        arguments: Sequence[Any] = (),
        owner: Any = None,
    ) -> Any:
        """Takes a step if the unscaled gradients of all replicas are finite, else skips it.

        The scale moves either way.

        Args:
            gradients: unscaled, or ``None``.
            apply: makes the step on each replica; called with the gradients and the arguments.
            around: returns a context for it, outside of the replicas if they meet in the step; it
                is called with their strategy or ``None``.
            clips_norm, headroom: as for :func:`amp_tf.loss_scaling.finite.find_nonfinite`.
            variables: one for each gradient, so that a skipped step can name them; or none.
            arguments: further ones, each a nest, and each replica's own.
            owner: the object whose method makes the step; tensors that it stores are readable
                after it.

        Returns whether the step was taken: a boolean scalar, in a TF1 graph the tensor to run.
        """
        trained = finite.with_gradient(variables, gradients)
        flag, data = self._take_loss()
        present = finite.with_gradient(gradients, gradients)

        def decide(strategy: Any, found: Any, values: Any) -> Any:
            def take() -> list[Any]:
                with around(strategy):
                    done = replicas.on_each(strategy, lambda mine: apply(mine[0], *mine[1]), values)
                return [*replicas.local_parts(strategy, done), *self.note_finite()]

            def skip() -> list[Any]:
                state = self.schedule.after_nonfinite(self.memory.load(), tf, found[-1])
                noted = self.nonfinite_variables.note(found[:-1], trained)
                if self.memory.last_skip is not None:
                    facts = replicas.sum_over(
                        strategy, lambda mine: finite.find_facts(mine[0], mine[2]), values
                    )
                    noted.append(self.memory.last_skip.assign(facts, read_value=False))
                return [*self.memory.store(state), *noted]

            return kept.choose(
                ~tf.reduce_any(found[:-1]),
                replicas.branch(take, True),
                replicas.branch(skip, False),
                owner,
            )

        with scaled_step(), own_names():
            nonfinite = finite.find_nonfinite(present, clips_norm, headroom)
            # An entry for each gradient, and one for the loss, which only explains a skipped step.
            found = tf.concat([nonfinite, [flag]], axis=0)
            return replicas.together(decide, found, [list(gradients), arguments, data])

    def note_finite(self) -> list[Any]:
        """Counts a step that was applied."""
        return self.memory.store(self.schedule.after_finite(self.memory.load(), tf))

    def _take_loss(self) -> tuple[Any, list[Any]]:
        """Returns, and forgets, the facts on the losses that were scaled in this graph.

        They are whether any was nonfinite, and the data behind them.
        """
        graph, flag, data = getattr(self._loss, "noted", (None, False, []))
        self._loss.noted = (None, False, [])
        if graph is not places()[0]:
            return False, []
        return flag, data

    def _enter(self) -> None:
        if self.number is None and self.label and self.memory.last_skip is not None:
            memory = self.memory
            schedule = self.schedule
            calls = self.calls

            def read() -> Status:
                if "/job:ps" in str(getattr(memory.scale, "device", "")):
                    raise LookupError("the variables are on a parameter server, which may be gone")
                status = memory.status(schedule)
                if not calls.is_used and not status.skipped:
                    raise LookupError("no loss was scaled, and no step was skipped")
                return status

            self.number = ledger.enter(self.label, read)


def own_names() -> contextlib.AbstractContextManager[Any]:
    """Names the operations of a block in a scope of their own, in a TF1 graph.

    Otherwise the program's next condition would be called ``cond_1`` in place of ``cond``, and so
    would the variables that are made in it, which checkpoints know by name.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        return contextlib.nullcontext()
    return tf.name_scope("loss_scaling")  # type: ignore[no-any-return]


def unzip(pairs: Pairs) -> tuple[list[Any], list[Any]]:
    """Splits pairs of gradient and variable into the gradients and the variables."""
    given = list(pairs)
    return [gradient for gradient, _ in given], [variable for _, variable in given]
