"""``amp_tf.LossScaler``: loss scaling for loops that write their variables themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from amp_tf.errors import CallOrderError
from amp_tf.loss_scaling import finite, replicas
from amp_tf.loss_scaling.calls import inner_call
from amp_tf.loss_scaling.scaler import Memory, Scaler
from amp_tf.loss_scaling.schedule import (
    DEFAULT_GROWTH_STEPS,
    DEFAULT_INITIAL_SCALE,
    ScheduleSettings,
    build_schedule,
)
from amp_tf.loss_scaling.wrapping import ScalingMethods, StateMethods, without_autograph

if TYPE_CHECKING:
    from typing_extensions import Unpack  # type checkers know it even where it is not installed

_THREE_LINES = """Write three lines in this order:
    scaled_loss = scaler.scale(loss)                # inside the GradientTape
    gradients = scaler.unscale(tape.gradient(scaled_loss, variables))
    scaler.step(apply, gradients)                   # apply(gradients) writes the variables"""


class LossScaler(StateMethods, tf.Module):  # type: ignore[misc]
    """Scales the loss and skips steps with nonfinite gradients, whatever writes the variables.

    For loops without an optimizer of Keras, tf_keras or TF1, which ``amp_tf.LossScaleOptimizer``
    wraps: Sonnet's, or ``variable.assign_sub(…)``. A step is three lines, in this order::

        scaler = amp_tf.LossScaler()                # before the loop

        with tf.GradientTape() as tape:
            scaled_loss = scaler.scale(compute_loss())
        gradients = scaler.unscale(tape.gradient(scaled_loss, variables))
        scaler.step(apply, gradients)               # apply(gradients), or skips; moves the scale

    They work eagerly, in a ``tf.function``, compiled by XLA, on the replicas of a strategy, and in
    a TF1 graph. Between ``unscale`` and ``step`` gradients may be clipped, logged, or reduced over
    replicas. To accumulate, scale the loss of each part, add up the scaled gradients, then unscale
    and step once: the scale moves with ``step`` alone. If two optimizers train by one loss, unscale
    both lists before the first step, or let one ``apply`` write all.

    It is a ``tf.Module``, so checkpoints hold the scale and its counters.

    The settings are those of :func:`amp_tf.loss_scaling.schedule.build_schedule`; an unknown one,
    or one outside its range, is a ConfigError. With ``enabled=False`` all three methods do what the
    loop would do without them.
    """

    def __init__(
        self,
        initial_scale: float = DEFAULT_INITIAL_SCALE,
        dynamic_growth_steps: int = DEFAULT_GROWTH_STEPS,
        *,
        name: str = "loss_scaler",
        **settings: Unpack[ScheduleSettings],
    ) -> None:
        super().__init__(name=name)
        schedule = build_schedule(initial_scale, dynamic_growth_steps, **settings)
        start = schedule.initial_state()
        with finite.lifted():
            self.current_loss_scale = tf.Variable(
                start.scale, trainable=False, dtype=tf.float32, name="loss_scale"
            )
            self.counters = tf.Variable(
                [0] * 6, trainable=False, dtype=tf.int64, name="loss_scale_counters"
            )
        self._scaler = Scaler(schedule, Memory(self.current_loss_scale, self.counters), label=name)

    scale = ScalingMethods.scale_loss

    @without_autograph
    def unscale(self, gradients: Any) -> Any:
        """Divides a nest of tensors, ``tf.IndexedSlices`` and ``None`` by the scale.

        Each keeps its own type. Raises a CallOrderError where no loss was scaled since the last
        step, or the gradients are unscaled already.
        """
        if not self.schedule.skips_nonfinite:
            return gradients
        given = _flatten(gradients)
        if self._scaler.calls.are_unscaled(given):
            raise _out_of_order(
                "unscale() got gradients that it unscaled already: they would be divided twice"
            )
        if not any(made.is_open for made in self._scaler.calls.seen()):
            raise _out_of_order(
                "unscale() was called, but no loss was scaled since the last step: the gradients "
                "would be divided by a scale that never multiplied them"
            )
        return tf.nest.pack_sequence_as(gradients, self._scaler.unscale_for_loop(given))

    @without_autograph
    def step(self, apply: Callable[..., Any], gradients: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls ``apply(gradients, *args, **kwargs)`` if all gradients are finite.

        The step is skipped if a gradient of any replica is NaN or infinite.

        Args:
            apply: writes the variables, such as Sonnet's ``optimizer.apply``. It runs inside a
                condition, so it cannot return values from it, and it must create variables of its
                own before the first step or in ``tf.init_scope()``. If it is a method, tensors that
                its object stores are readable after the step, zero if the step was skipped; not in
                a TF1 graph.
            gradients: what :meth:`unscale` returned, clipped or not.
            *args, **kwargs: passed on; each replica's own.

        Returns whether the step was made: a boolean scalar tensor, in a TF1 graph the one to run.
        Raises a CallOrderError where no gradients were unscaled since the last step, or these are
        the scaled ones, and a ValueError where there are none, or outside a replica.
        """
        if not self.schedule.skips_nonfinite:
            applied = replicas.operations_of(apply(gradients, *args, **kwargs))
            with tf.control_dependencies([*applied, *self._scaler.note_finite()]):
                return tf.constant(True)
        replicas.check_in_replica("step")
        flat = _flatten(gradients)
        finite.check_any(flat)
        if not any(made.lists.count for made in self._scaler.calls.seen()):
            raise _out_of_order(
                "step() was called, but no gradients were unscaled since the last step"
            )
        if self._scaler.calls.are_scaled(flat):
            raise _out_of_order(
                "step() got gradients as unscale() was given them, still multiplied by the loss "
                "scale"
            )
        self._scaler.calls.note_step()

        def run(grads: Any, more: Any, named: Any) -> Any:
            packed = tf.nest.pack_sequence_as(gradients, grads)
            with inner_call():
                return apply(packed, *more, **named)

        owner = getattr(apply, "__self__", None)
        return self._scaler.step(flat, run, arguments=(args, kwargs), owner=owner)


def _out_of_order(what: str) -> CallOrderError:
    return CallOrderError(what, where="LossScaler", fix=_THREE_LINES)


def _flatten(gradients: Any) -> list[Any]:
    return [finite.as_tensor(gradient) for gradient in tf.nest.flatten(gradients)]
