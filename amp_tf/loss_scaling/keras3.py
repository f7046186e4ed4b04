"""The wrapper for Keras 3 optimizers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from amp_tf.loss_scaling import finite, replicas, witness
from amp_tf.loss_scaling.diagnosis import Status
from amp_tf.loss_scaling.keras3_inner import (
    INNER_SETTINGS,
    check_gradients,
    check_inner,
    counter_of,
    headroom,
    norm_clip,
    scope_of,
    trackable_of,
    with_gaps,
)
from amp_tf.loss_scaling.keras3_saving import ScaleState, match_state, read_state
from amp_tf.loss_scaling.scaler import Memory, Scaler
from amp_tf.loss_scaling.scaling_methods import ScalingMethods
from amp_tf.loss_scaling.schedule import build_schedule, check_scale, usable_scale
from amp_tf.loss_scaling.usage import Gradients, scaled_step

_DynamicTracking: Any = tf.__internal__.tracking.DelegatingTrackableMixin


@keras.saving.register_keras_serializable(package="amp_tf")
class LossScaleOptimizer(ScalingMethods, _DynamicTracking, keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
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
        TypeError: ``inner_optimizer`` is no Keras 3 optimizer.
        ConfigError: it scales its loss already, or a setting is outside its range.
    """

    built: bool
    _trackable: Any

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
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
        self._schedule = schedule
        self._pending_weights: dict[str, Any] | None = None
        self._nonfinite_gradients: Any = None
        for setting in INNER_SETTINGS:  # from now on they are read from the inner optimizer
            self.__dict__.pop(setting, None)
        self._create_state()

    def _create_state(self) -> None:
        # The base class made a learning rate and an iteration counter that nothing would ever read.
        self._variables.clear()
        start = self._schedule.initial_state()
        strategy = getattr(self.inner_optimizer, "_distribution_strategy", None) or tf.distribute.get_strategy()
        with scope_of(strategy):
            self._scale = self.add_variable(
                (), initializer=keras.initializers.Constant(start.scale), dtype="float32", name="loss_scale"
            )
            # good_steps, skipped, skipped_in_row, steps, last_change and nonfinite_losses of State
            self._counters = self.add_variable((6,), initializer="zeros", dtype="int64", name="loss_scale_counters")
            last_skip = witness.make_variable()
        memory = Memory(self._scale.value, self._counters.value, last_skip=last_skip)
        self._scaler = Scaler(self._schedule, memory, label=self.inner_optimizer.name)
        self.loss_scale_state = ScaleState(lambda: [self._scale, self._counters])
        checkpointed = tf.__internal__.tracking.AutoTrackable()
        checkpointed.current_loss_scale = self._scale.value
        checkpointed.counters = self._counters.value
        self._trackable._track_trackable(checkpointed, "loss_scale", overwrite=True)

    # ---------------------------------------------------------------- the step

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Applies one step, or skips it.

        Args:
            grads_and_vars: pairs of gradient and variable.

        Returns:
            The inner optimizer's iteration counter, which skipped steps do not advance.

        Raises:
            ValueError: not one of the gradients is there.
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
            ValueError: not one of the gradients is there, their number is not that of the variables, the optimizer was
                built with others, or it is called outside a replica.
        """
        self._step("apply", grads, trainable_variables)

    def _step(self, method: str, grads: Sequence[Any], trainable_variables: Sequence[Any] | None) -> None:
        if len(grads) == 0:
            return
        if trainable_variables is not None and not self.built:
            self.build(list(trainable_variables))
        if not self._schedule.skips_nonfinite or (trainable_variables is None and not self.built):
            if method == "apply" or trainable_variables is None:
                with scaled_step():
                    self.inner_optimizer.apply(grads, trainable_variables)
            else:
                replicas.apply_inner(None, self.inner_optimizer, method, grads, trainable_variables)
            return
        if tf.distribute.in_cross_replica_context():
            raise ValueError("apply() must be called in a replica context: from a function given to strategy.run().")
        where = f"optimizer '{self.name}'"
        variables = list(trainable_variables or self.inner_optimizer._trainable_variables)
        check_gradients(self.inner_optimizer, grads, variables)
        gradients = [finite.as_tensor(g, variable) for g, variable in zip(grads, variables, strict=True)]
        if self._scaler.are_scaled(gradients, by_hand=Gradients.SCALED, where=where):
            own = [bool(getattr(variable, "overwrite_with_gradient", False)) for variable in variables]
            gradients = self._scaler.unscale(gradients, is_scaled=lambda place: not own[place])
        present = [gradient for gradient in gradients if gradient is not None]
        trained = [variable for gradient, variable in zip(gradients, variables, strict=True) if gradient is not None]

        def take(strategy: Any, grads: Any) -> None:
            replicas.apply_inner(strategy, self.inner_optimizer, method, with_gaps(grads, gradients), variables)

        self._scaler.step(
            present,
            take,
            norm_clip=norm_clip(self.inner_optimizer),
            headroom=headroom(self.inner_optimizer),
            on_skip=lambda found: self._note_nonfinite(found, trained),
        )

    def _note_nonfinite(self, found: replicas.Nonfinite, variables: Sequence[Any]) -> list[Any]:
        indices = [[self.inner_optimizer._get_variable_index(variable)] for variable in variables]
        seen = tf.scatter_nd(indices, tf.cast(found.gradients, tf.int32), self._nonfinite_gradients.shape)
        self._nonfinite_gradients.assign(seen)
        return []

    # ---------------------------------------------------------------- variables and settings

    def build(self, var_list: Sequence[Any]) -> None:
        """Creates the variables of the inner optimizer, and restores those that were loaded before they existed.

        Args:
            var_list: the variables to train.
        """
        if self.built:
            return
        variables = list(var_list)
        # Lifted out of the step that may be traced: TensorFlow would run initializers in a condition around the step,
        # which fails where replicas make the step.
        with tf.init_scope(), scope_of(self.inner_optimizer._distribution_strategy):
            if not self.inner_optimizer.built:
                self.inner_optimizer.build(variables)
            count = max(len(self.inner_optimizer._trainable_variables), 1)
            seen = keras.Variable(
                initializer="zeros", shape=(count,), dtype="int32", trainable=False, name="nonfinite_gradients"
            )
        # Past Keras' tracking, which would take them for variables of this optimizer.
        object.__setattr__(self, "_nonfinite_gradients", seen)
        object.__setattr__(self, "_trainable_variables", self.inner_optimizer._trainable_variables)
        object.__setattr__(self, "_trainable_variables_indices", self.inner_optimizer._trainable_variables_indices)
        self.built = True
        if self._pending_weights is not None:
            pending, self._pending_weights = self._pending_weights, None
            with tf.init_scope():  # a training step may be what builds
                self.load_own_variables(pending)

    @property
    def variables(self) -> list[Any]:
        """The inner optimizer's variables, then the scale and its counters."""
        return [*self.inner_optimizer.variables, *self._variables]

    @property
    def loss_scale(self) -> Any:
        """The scale now, a float32 variable. Assigning a number takes effect at the next step, also in traced ones.

        A traced loop may multiply its loss by it instead of calling :meth:`scale_loss`; eager ones may not.

        Raises:
            ConfigError: it is set to a number that is not finite and above zero.
        """
        self._scaler.usage.note_reading()
        return self._scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        check_scale(value)
        self._scale.assign(value)

    dynamic_scale = loss_scale

    @property
    def step_counter(self) -> Any:
        """Finite steps since the scale last changed; int64."""
        return self._counters[0]

    @property
    def dynamic_counter(self) -> Any:
        """As ``step_counter``, under the name of tf_keras."""
        return self._counters[0]

    def status(self) -> Status:
        """The state as Python numbers. Waits for the device: for callbacks and people, not for traced steps."""
        names: list[str] = []
        if self._nonfinite_gradients is not None:
            flags = self._nonfinite_gradients.numpy()
            variables = self.inner_optimizer._trainable_variables
            names = [getattr(v, "path", v.name) for v, flag in zip(variables, flags, strict=False) if flag]
        return self._scaler.memory.status(self._schedule, names)

    @property
    def iterations(self) -> Any:
        """The inner optimizer's."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        if "_schedule" in self.__dict__:  # else it is the base class, which up to Keras 3.4 has a counter of its own
            self.inner_optimizer.iterations = value

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    def __getattr__(self, name: str) -> Any:
        # Only reached where the wrapper has no such attribute: clipnorm, momentum, beta_1 and the like.
        if name.startswith("_") or "inner_optimizer" not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self.inner_optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_schedule" in self.__dict__ and self._is_of_inner(name):
            setattr(self.inner_optimizer, name, value)
        else:
            super().__setattr__(name, value)

    def _is_of_inner(self, name: str) -> bool:
        """Whether a setting is read from the inner optimizer, so that it must be set there: momentum and the like."""
        if name in INNER_SETTINGS:
            return True
        is_own = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        return not is_own and hasattr(self.inner_optimizer, name)

    def __dir__(self) -> Iterable[str]:
        # Keras' saving walks dir(): the inner optimizer's state is saved once, in this one's place.
        return sorted(set(super().__dir__()) - {"inner_optimizer", "_trackable"})

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """As on the inner optimizer."""
        self.inner_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Not with TensorFlow, as for every Keras optimizer.

        Raises:
            ValueError: always.
        """
        return self.inner_optimizer.stateless_apply(optimizer_variables, grads, trainable_variables)

    # ---------------------------------------------------------------- saving

    def save_own_variables(self, store: Any) -> None:
        """Writes what the inner optimizer alone would write; the scale goes to its own group."""
        if self._pending_weights is not None:  # loaded, and no step has built the variables for it yet
            for key, array in self._pending_weights.items():
                store[key] = array
            return
        self.inner_optimizer.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the state of an optimizer that was saved wrapped, bare, or in Keras' own wrapper.

        Args:
            store: maps "0", "1", … to arrays. What has no variable yet waits for ``build``.
        """
        arrays = read_state(store)
        if not arrays:
            return
        expected = len(self.inner_optimizer.variables)
        if not self.built and len(arrays) > expected:
            self._pending_weights = arrays
            return
        saved = match_state(arrays, expected)
        if saved is None:
            warnings.warn(
                f"amp_tf: optimizer '{self.name}': the file holds {len(arrays)} variables of an optimizer, not "
                f"{expected}; its state is not loaded. Compile the model with the optimizer that was saved.",
                stacklevel=2,
            )
            return
        self.inner_optimizer.load_own_variables(saved.inner)
        if saved.scale is not None:
            self._scale.assign(usable_scale(float(saved.scale), self._schedule))
            self._counters.assign([int(saved.good_steps), 0, 0, 0, 0, 0])

    def get_weights(self) -> list[Any]:
        """Copies of all ``variables`` as numpy arrays."""
        return [variable.numpy() for variable in self.variables]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets all ``variables``, or those of the inner optimizer alone (what a float32 run's optimizer gives).

        Args:
            weights: arrays, in the order of ``variables``.

        Raises:
            ValueError: their number fits neither, or a shape differs.
        """
        variables = self.variables
        if len(weights) not in (len(variables), len(variables) - len(self._variables)):
            raise ValueError(
                f"optimizer '{self.name}' has {len(variables)} variables, got {len(weights)} arrays. Build the "
                "optimizer first with build(trainable_variables)."
            )
        for variable, weight in zip(variables, weights, strict=False):
            if tuple(variable.shape) != tuple(weight.shape):
                raise ValueError(f"variable '{variable.path}' has shape {variable.shape}, the array {weight.shape}.")
            variable.assign(weight)

    def get_config(self) -> dict[str, Any]:
        """The settings, from which :meth:`from_config` makes the same optimizer."""
        config = super().get_config()
        for setting in INNER_SETTINGS | {"loss_scale_factor"}:  # which the base class gives up to Keras 3.8
            config.pop(setting, None)
        return {**config, **self._settings}


def wrap(inner_optimizer: Any, initial_scale: float, **settings: Any) -> LossScaleOptimizer:
    """The adapter's entry, for ``amp_tf.LossScaleOptimizer``."""
    return LossScaleOptimizer(inner_optimizer, initial_scale, **settings)
