"""The wrapper for ``tf.compat.v1.train`` optimizers: sessions, and everything that still calls them eagerly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import finite, is_loss_scaled, replicas
from amp_tf.loss_scaling.diagnosis import Status
from amp_tf.loss_scaling.schedule import Schedule, State, build_schedule
from amp_tf.loss_scaling.usage import Gradients, Usage, inner_call

_v1: Any = tf.compat.v1

# An optimizer that was wrapped by itself is not the wrapper, so it has no scale_loss.
_COMPUTE = (
    "Take the gradients from optimizer.compute_gradients(loss, variables), or write optimizer = "
    "amp_tf.LossScaleOptimizer(optimizer) and give optimizer.scale_loss(loss) to tf.gradients. If the program scales "
    "its loss itself, set TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0"
)


class _ScaleVariables(_v1.mixed_precision.LossScale):  # type: ignore[misc]
    """The scale and its counters as variables; the first two are named as TensorFlow names them in checkpoints."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule
        self.scale = self._add_weight("current_loss_scale", schedule.initial_state().scale, tf.float32)
        self.good_steps = self._add_weight("good_steps", 0, tf.int64)
        # skipped, skipped_in_row, steps, last_change of State, and nonfinite losses in a row
        self.counters = self._add_weight("loss_scale_counters", [0] * 5, tf.int64)

    def __call__(self) -> Any:
        return _read(self.scale, self.schedule.initial_state().scale)

    def load(self) -> State:
        counters = tf.unstack(_read(self.counters, [0] * 5))
        return State(self(), _read(self.good_steps, 0), *counters[:4])

    def nonfinite_losses(self) -> Any:
        return _read(self.counters, [0] * 5)[4]

    def store(self, state: State, nonfinite_losses: Any) -> list[Any]:
        counters = [tf.cast(count, tf.int64) for count in (*state[2:], nonfinite_losses)]
        return [
            self.scale.assign(state.scale),
            self.good_steps.assign(tf.cast(state.good_steps, tf.int64)),
            self.counters.assign(tf.stack(counters)),
        ]

    def update(self, grads: Any) -> Any:
        """Refused: the wrapper decides about scale and step in one condition.

        Raises:
            ConfigError: always; TensorFlow's own wrapper calls it, so this scale was handed to that one.
        """
        raise ConfigError(
            "this loss scale works only inside amp_tf's own wrapper",
            where="tf.compat.v1 loss scale",
            fix="Wrap the optimizer with amp_tf.LossScaleOptimizer",
        )

    def get_config(self) -> dict[str, Any]:
        """The state before the first step, for TensorFlow's interface."""
        return {"initial_loss_scale": self.schedule.initial_state().scale}


def _read(variable: Any, first: Any) -> Any:
    """The value of a variable; its first one in a session that has not initialized it.

    A program may make its initializer before its optimizer, or initialize what it trains alone; without loss scaling
    that is enough for optimizers without slots.
    """
    if tf.compat.v1.executing_eagerly_outside_functions() or tf.distribute.has_strategy():
        return tf.convert_to_tensor(variable)
    return tf.cond(variable.is_initialized(), variable.read_value, lambda: tf.constant(first, variable.dtype))


@contextlib.contextmanager
def _back_in(scope: str) -> Iterator[None]:
    """Inside a condition, the name scope around it: a checkpoint knows an optimizer's variables by their names.

    Args:
        scope: as ``tf.Graph.get_name_scope`` gives it.
    """
    if tf.executing_eagerly():
        yield
        return
    with _v1.get_default_graph().name_scope(f"{scope}/" if scope else None):
        yield


class LossScaleOptimizer(_v1.mixed_precision.MixedPrecisionLossScaleOptimizer):  # type: ignore[misc]
    """A TF1 optimizer that scales the loss and skips steps with nonfinite gradients.

    ``minimize`` needs nothing else; gradients may be clipped between ``compute_gradients``, which returns them
    unscaled, and ``apply_gradients``. A skipped step changes nothing but the scale and its counters: ``global_step``
    stays. A graph that calls ``tf.gradients`` itself scales the loss with :meth:`scale_loss`, and ``apply_gradients``
    then unscales.

    Args:
        opt: a ``tf.compat.v1.train.Optimizer``.
        initial_scale, **settings: see :func:`amp_tf.loss_scaling.schedule.build_schedule`.

    Raises:
        ConfigError: the optimizer is wrapped already, or a setting is outside its range.
    """

    def __init__(self, opt: Any, initial_scale: float = 2.0**15, **settings: Any) -> None:
        if is_loss_scaled(opt):
            raise ConfigError(
                "the optimizer is a LossScaleOptimizer already", where="LossScaleOptimizer", fix="Wrap it once"
            )
        self._schedule = build_schedule(initial_scale, **settings)
        self._usage = Usage()
        self._base_methods: Mapping[str, Any] = {}
        super().__init__(opt, _ScaleVariables(self._schedule))

    @property
    def inner_optimizer(self) -> Any:
        """The wrapped optimizer."""
        return self._optimizer

    @property
    def schedule(self) -> Schedule:
        """The settings of the scale."""
        return self._schedule

    @property
    def loss_scale(self) -> Any:
        """The scale: a float32 variable."""
        self._usage.note_reading()
        return self._loss_scale.scale

    @property
    def counters(self) -> Any:
        """Skipped, skipped in a row, steps, step of the last change, nonfinite losses in a row: an int64 vector."""
        return self._loss_scale.counters

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def scale_loss(self, loss: Any) -> Any:
        """The loss times the scale, for ``tf.gradients``; ``apply_gradients`` then unscales.

        Args:
            loss: a floating-point tensor of any shape.
        """
        self._usage.note_automatic_unscaling()
        return self._scale_and_note(loss)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def get_scaled_loss(self, loss: Any) -> Any:
        """The loss times the scale, for a loop that calls :meth:`get_unscaled_gradients`."""
        return self._scale_loss(loss)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def get_unscaled_gradients(self, grads: Iterable[Any]) -> list[Any]:
        """Divides gradients by the scale; ``apply_gradients`` then takes them as they come."""
        return self._unscale_grads(grads)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        """As on the inner optimizer: the loss is scaled, the gradients come back unscaled.

        Args:
            loss: a scalar tensor, or a callable that returns one.
            *args, **kwargs: of ``tf.compat.v1.train.Optimizer.compute_gradients``.
        """
        pairs = self._call_inner("compute_gradients", self._scale_loss(loss), *args, **kwargs)
        gradients = self._unscale_grads([gradient for gradient, _ in pairs])
        return list(zip(gradients, [variable for _, variable in pairs], strict=True))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Applies one step, or skips it.

        Args:
            grads_and_vars: pairs of gradient and variable, from ``compute_gradients``.
            global_step: a variable to increment when the step is taken.
            name: of the operation.

        Returns:
            The operation to run.

        Raises:
            ValueError: not one of the gradients is there, or it is called outside a replica.
        """
        if tf.distribute.in_cross_replica_context():
            raise ValueError("apply_gradients() must be called in a replica context.")
        if not self._schedule.skips_nonfinite:
            return self._call_inner("apply_gradients", grads_and_vars, global_step, name)
        pairs = self._take_pairs(grads_and_vars)
        variables = [variable for _, variable in pairs]
        found = self._find_nonfinite(pairs)

        def step(gradients: Any) -> Any:
            return self._call_inner("apply_gradients", list(zip(gradients, variables, strict=True)), global_step)

        scope = "" if tf.executing_eagerly() else _v1.get_default_graph().get_name_scope()

        def take(strategy: Any, gradients: Any) -> list[Any]:
            with _back_in(scope):
                if strategy is None:
                    done = step(gradients)
                else:
                    done = strategy.group(strategy.extended.call_for_each_replica(step, args=(gradients,)))
            return [done, *self._note_finite()]

        taken = replicas.decide_together(
            found, [gradient for gradient, _ in pairs], take=take, skip=self._note_nonfinite
        )
        if tf.executing_eagerly():
            return taken
        train_op = tf.group(taken, name=name or self.get_name())
        if train_op not in tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP):
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TRAIN_OP, train_op)
        return train_op

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_zeros_for_nonfinite(self, grads_and_vars: Any) -> Any:
        """Applies each step, with zeros for all gradients where one of them is nonfinite.

        For an inner optimizer whose step cannot be built inside a condition, as :meth:`apply_gradients` builds it: what
        it does without looking at gradients (``global_step``, weight decay, moments that decay) it does in each step.
        Without a strategy only, because each replica looks at its own gradients.

        Args:
            grads_and_vars: as for :meth:`apply_gradients`.

        Returns:
            The operation to run.

        Raises:
            ValueError: not one of the gradients is there.
        """
        pairs = self._take_pairs(grads_and_vars)
        found = self._find_nonfinite(pairs)
        is_nonfinite = tf.reduce_any(found.gradients)
        gradients = [finite.zero_if(is_nonfinite, gradient) for gradient, _ in pairs]
        taken = replicas.decide_together(
            found, gradients, take=lambda *_: self._note_finite(), skip=self._note_nonfinite
        )
        variables = [variable for _, variable in pairs]
        return tf.group(self._call_inner("apply_gradients", list(zip(gradients, variables, strict=True))), taken)

    def status(self, session: Any = None) -> Status:
        """The state as Python numbers.

        Args:
            session: the session to ask; none is needed with eager execution.
        """
        state = self._loss_scale
        tensors = [state.scale, state.good_steps, state.counters]
        # The variables themselves, because a graph that is finalized takes no new reads.
        values = [variable.numpy() for variable in tensors] if session is None else session.run(tensors)
        return Status.of(float(values[0]), [values[1], *values[2]], self._schedule)

    def get_slot(self, var: Any, name: str) -> Any:
        """The inner optimizer's slot."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The names of the inner optimizer's slots."""
        return self._optimizer.get_slot_names()  # type: ignore[no-any-return]

    def stand_below(self, base_methods: Mapping[str, Any]) -> None:
        """Puts the wrapper under the inner optimizer's class: that class calls it, by the base class's methods.

        Args:
            base_methods: ``compute_gradients`` and ``apply_gradients`` of ``tf.compat.v1.train.Optimizer``. They are
                called in place of the inner optimizer's own, which may override them and has been called already.
        """
        self._base_methods = base_methods

    def _take_pairs(self, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        """The pairs that have a gradient, which is not scaled any more."""
        pairs = [
            (finite.as_tensor(gradient, variable), variable)
            for gradient, variable in grads_and_vars
            if gradient is not None
        ]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        kind = self._usage.judge(
            [gradient for gradient, _ in pairs],
            self._loss_scale.scale,
            by_hand=Gradients.UNSCALED_BY_LOOP,  # as with TensorFlow's own wrapper, which divides in compute_gradients
            where=self.get_name(),
            fix=_COMPUTE,
        )
        if kind is Gradients.SCALED:
            scale = self._loss_scale()
            pairs = [(finite.unscale(gradient, scale), variable) for gradient, variable in pairs]
        return pairs

    def _find_nonfinite(self, pairs: Iterable[tuple[Any, Any]]) -> replicas.Nonfinite:
        flags = finite.find_nonfinite([gradient for gradient, _ in pairs], headroom=_replica_count())
        return replicas.Nonfinite(flags, self._usage.take_nonfinite_loss())

    def _note_finite(self) -> list[Any]:
        state = self._schedule.after_finite(self._loss_scale.load(), finite.TENSORS)
        return self._loss_scale.store(state, self._loss_scale.nonfinite_losses())  # type: ignore[no-any-return]

    def _note_nonfinite(self, found: replicas.Nonfinite) -> list[Any]:
        state = self._loss_scale.load()
        count = finite.count_nonfinite_losses(found.loss, state.skipped_in_row, self._loss_scale.nonfinite_losses())
        return self._loss_scale.store(self._schedule.after_nonfinite(state, finite.TENSORS), count)  # type: ignore[no-any-return]

    def _call_inner(self, name: str, *args: Any, **kwargs: Any) -> Any:
        with inner_call():
            if name in self._base_methods:
                return self._base_methods[name](self._optimizer, *args, **kwargs)
            return getattr(self._optimizer, name)(*args, **kwargs)

    def _doing_dynamic_loss_scaling(self) -> bool:
        return self._schedule.skips_nonfinite

    def _scale_loss(self, loss: Any) -> Any:
        # A callable loss is what eager execution gives.
        if callable(loss):
            return lambda: self._scale_and_note(loss())
        return self._scale_and_note(loss)

    def _scale_and_note(self, loss: Any) -> Any:
        if not self._schedule.skips_nonfinite:
            return loss
        self._usage.note_scaled_loss(loss)
        return finite.scale_loss(loss, self._loss_scale())

    def _unscale_grads(self, grads: Iterable[Any]) -> list[Any]:
        if not self._schedule.skips_nonfinite:
            return list(grads)
        self._usage.note_unscaled_gradients()
        scale = self._loss_scale()
        return [finite.unscale(gradient, scale) for gradient in grads]


def wrap(inner_optimizer: Any, initial_scale: float, **settings: Any) -> LossScaleOptimizer:
    """The adapter's entry, for ``amp_tf.LossScaleOptimizer``."""
    return LossScaleOptimizer(inner_optimizer, initial_scale, **settings)


def _replica_count() -> float:
    return float(tf.distribute.get_strategy().num_replicas_in_sync)
