"""The wrapper for Keras 3 optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from amp_tf.loss_scaling.finite import NormClip
from amp_tf.loss_scaling.keras3_inner import (
    INNER_SETTINGS,
    InnerInterface,
    check_gradients,
    check_inner,
    counter_of,
    headroom,
    parts_of,
    scope_of,
    trackable_of,
)
from amp_tf.loss_scaling.keras3_saving import Saving, ScaleState
from amp_tf.loss_scaling.keras3_step import apply_inner
from amp_tf.loss_scaling.misuse import check_in_replica
from amp_tf.loss_scaling.recognizing.usage import Gradients, scaled_step
from amp_tf.loss_scaling.scaler import Memory, Scaler
from amp_tf.loss_scaling.scaling_methods import ScalingMethods
from amp_tf.loss_scaling.schedule import DEFAULT_GROWTH_STEPS, DEFAULT_INITIAL_SCALE, Schedule, build_schedule

_DynamicTracking: Any = tf.__internal__.tracking.DelegatingTrackableMixin
_KerasWrapper: Any = keras.optimizers.LossScaleOptimizer


@keras.saving.register_keras_serializable(package="amp_tf")
class LossScaleOptimizer(ScalingMethods, Saving, InnerInterface, _DynamicTracking, _KerasWrapper):  # type: ignore[misc]
    """A Keras 3 optimizer that scales the loss and skips steps with nonfinite gradients.

    Keras takes it for its own ``LossScaleOptimizer``, so ``compile`` does not wrap it again, and a model's default
    ``train_step`` scales the loss with it. A custom loop adds two lines::

        scaled_loss = optimizer.scale_loss(loss)              # inside the GradientTape
        gradients = tape.gradient(scaled_loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))  # unscales, checks, applies or skips

    or, as with tf_keras, ``get_scaled_loss`` and ``get_unscaled_gradients``. Gradients are unscaled first, then checked
    on all replicas together, then given to the inner optimizer, which clips, accumulates and averages. A skipped step
    changes nothing but ``loss_scale`` and ``counters``.

    With Horovod or another all-reduce between ``tape.gradient`` and ``apply_gradients``, reduce the scaled gradients: a
    NaN or infinity on one worker then reaches all, and all skip.

    Args:
        inner_optimizer: a ``keras.optimizers.Optimizer``. Clipping, averages and accumulation are its settings.
        initial_scale, dynamic_growth_steps, **settings: see :func:`amp_tf.loss_scaling.schedule.build_schedule`.
        name: of the optimizer.

    Raises:
        TypeError: ``inner_optimizer`` is not a Keras 3 optimizer.
        ConfigError: it scales its loss already, or a setting is outside its range.
    """

    _trackable: Any

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = DEFAULT_INITIAL_SCALE,
        dynamic_growth_steps: int = DEFAULT_GROWTH_STEPS,
        name: str | None = None,
        **settings: Any,
    ) -> None:
        check_inner(inner_optimizer)
        schedule = build_schedule(initial_scale, dynamic_growth_steps, **settings)
        # Checkpoints see the inner optimizer in this one's place (the mixin), so no attribute here may be tracked.
        object.__setattr__(self, "_self_setattr_tracking", False)
        object.__setattr__(self, "_trackable", trackable_of(inner_optimizer))
        super(_DynamicTracking, self).__init__(inner_optimizer, initial_scale, dynamic_growth_steps, name=name)
        self._settings = dict(settings)
        self._pending_weights = None
        for setting in INNER_SETTINGS:  # from now on they are read from the inner optimizer
            self.__dict__.pop(setting, None)
        self._create_state(schedule)

    def _create_state(self, schedule: Schedule) -> None:
        # The base class created a learning rate and an iteration counter that nothing reads.
        self._variables.clear()
        start = schedule.initial_state()
        with scope_of(getattr(self.inner_optimizer, "_distribution_strategy", None) or tf.distribute.get_strategy()):
            self._scale = self.add_variable(
                (), initializer=keras.initializers.Constant(start.scale), dtype="float32", name="loss_scale"
            )
            # good_steps, skipped, skipped_in_row, steps, last_change and nonfinite_losses of State
            self._counters = self.add_variable((6,), initializer="zeros", dtype="int64", name="loss_scale_counters")
            memory = Memory(self._scale.value, self._counters.value)
        self._scaler = Scaler(schedule, memory, label=self.inner_optimizer.name)
        self.loss_scale_state = ScaleState(lambda: {"scale": self._scale, "counters": self._counters})
        checkpointed = tf.__internal__.tracking.AutoTrackable()
        checkpointed.current_loss_scale = self._scale.value
        checkpointed.counters = self._counters.value
        self._trackable._track_trackable(checkpointed, "loss_scale", overwrite=True)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Applies one step, or skips it.

        Args:
            grads_and_vars: pairs of gradient and variable.

        Returns:
            The inner optimizer's iteration counter, which skipped steps do not advance.

        Raises:
            ValueError: there are no gradients.
        """
        pairs = list(grads_and_vars)
        self._step("apply_gradients", [gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return counter_of(self.inner_optimizer)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Applies one step, or skips it.

        Args:
            grads: one gradient for each variable: a tensor, a ``tf.IndexedSlices`` or ``None``.
            trainable_variables: the variables; those that the optimizer was built with, if left out.

        Raises:
            ValueError: there are no gradients, not one for each variable, the optimizer was built with other variables,
                or it is called outside a replica.
        """
        self._step("apply", grads, trainable_variables)

    def _step(self, method: str, grads: Sequence[Any], trainable_variables: Sequence[Any] | None) -> None:
        if len(grads) == 0:
            return
        if trainable_variables is not None and not self.built:
            self.build(list(trainable_variables))
        where = f"optimizer '{self.inner_optimizer.name}'"
        if not self._scaler.decides(where) or (trainable_variables is None and not self.built):
            if method == "apply" or trainable_variables is None:
                with scaled_step():
                    self.inner_optimizer.apply(grads, trainable_variables)
            else:
                apply_inner(None, self.inner_optimizer, method, grads, trainable_variables)
            return
        check_in_replica(method)
        variables = list(trainable_variables or self.inner_optimizer._trainable_variables)
        check_gradients(self.inner_optimizer, grads, variables)
        gradients = self._scaler.unscaled(
            grads,
            variables,
            lambda place: not getattr(variables[place], "overwrite_with_gradient", False),
            by_hand=Gradients.SCALED,
            where=where,
        )
        inner = self.inner_optimizer
        self._scaler.step(
            gradients,
            lambda strategy, grads: apply_inner(strategy, inner, method, grads, variables),
            norm_clip=NormClip.of(parts_of(inner)),
            headroom=headroom(inner),
            variables=variables,
        )

    def build(self, var_list: Sequence[Any]) -> None:
        """Creates the variables of the inner optimizer, and restores those that were loaded before they existed.

        Args:
            var_list: the variables to train.
        """
        if self.built:
            return
        # Lifted out of the step that may be traced: TensorFlow would run initializers in a condition around the step,
        # which fails where replicas make the step.
        with tf.init_scope(), scope_of(self.inner_optimizer._distribution_strategy):
            if not self.inner_optimizer.built:
                self.inner_optimizer.build(list(var_list))
            self._scaler.nonfinite_variables.watch(self.inner_optimizer._trainable_variables)
        for name in ("_trainable_variables", "_trainable_variables_indices"):
            # Avoids Keras' tracking, which would take them for variables of this optimizer.
            object.__setattr__(self, name, getattr(self.inner_optimizer, name))
        self.built = True
        if self._pending_weights is not None:
            pending, self._pending_weights = self._pending_weights, None
            with tf.init_scope():  # build may be called by a training step
                self.load_own_variables(pending)

    dynamic_scale = ScalingMethods.loss_scale  #: Keras' own name

    @property
    def step_counter(self) -> Any:
        """Finite steps since the scale last changed; int64."""
        return self._counters[0]

    dynamic_counter = step_counter  #: under the name of tf_keras


wrap = LossScaleOptimizer  #: the adapter's entry, for ``amp_tf.LossScaleOptimizer``
