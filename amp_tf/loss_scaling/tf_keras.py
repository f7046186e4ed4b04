"""The wrappers for tf_keras optimizers: the new ones, and the legacy ones that TF 2.10 and older had."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.mixed_precision import loss_scale_optimizer as keras_wrappers
from tf_keras.src.optimizers import utils as optimizer_utils

from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import finite, is_loss_scaled, replicas, witness
from amp_tf.loss_scaling.diagnosis import Status
from amp_tf.loss_scaling.scaler import Memory, Scaler
from amp_tf.loss_scaling.scaling_methods import ScalingMethods
from amp_tf.loss_scaling.schedule import DynamicScale, Schedule, build_schedule, check_scale
from amp_tf.loss_scaling.usage import Gradients


class _ScaleVariables(keras_wrappers._DynamicLossScaleState):  # type: ignore[misc]
    """The scale and its counters as variables; the first two are named as in tf_keras' own checkpoints."""

    def __init__(self, schedule: Schedule) -> None:
        growth_steps = getattr(schedule, "growth_steps", 0)
        super().__init__(schedule.initial_state().scale, growth_steps, multiplier=2)
        # skipped, skipped_in_row, steps, last_change and nonfinite_losses of State
        self.counters = self._add_weight(name="counters", dtype=tf.int64, initial_value=[0] * 5)


class _SavedScale(tf_keras.losses.Loss):  # type: ignore[misc]
    """The part of a ``.keras`` or ``.weights.h5`` file that holds the scale: a child of its own, as in ``keras3``."""

    def __init__(self, variables: Any) -> None:
        super().__init__(name="loss_scale_state")
        self._read_variables = variables

    def save_own_variables(self, store: Any) -> None:
        """Called by tf_keras when it saves."""
        for name, variable in self._read_variables():
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Called by tf_keras when it loads; a file of a run without loss scaling has nothing here."""
        for name, variable in self._read_variables():
            if name in store.keys():  # noqa: SIM118 - the store has keys() but is no mapping
                variable.assign(store[name][()])


class _Scaling(ScalingMethods):
    """What both wrappers share; comes before tf_keras' own class, whose checkpoints and delegation stay as they are."""

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
        **settings: Any,
    ) -> None:
        initial_scale = 2.0**15 if initial_scale is None else initial_scale
        dynamic_growth_steps = 2000 if dynamic_growth_steps is None else dynamic_growth_steps
        schedule = build_schedule(initial_scale, dynamic_growth_steps, **settings)
        if is_loss_scaled(inner_optimizer):
            raise ConfigError(
                "the optimizer is a LossScaleOptimizer already", where="LossScaleOptimizer", fix="Wrap it once"
            )
        # A model that is compiled twice with one optimizer wraps it twice, which only matters if both are used.
        inner_optimizer._is_wrapped_by_loss_scale_optimizer = False
        super().__init__(inner_optimizer)  # type: ignore[call-arg]
        variables = _ScaleVariables(schedule)
        is_eager = tf.compat.v1.executing_eagerly_outside_functions()
        memory = Memory(
            variables.current_loss_scale,
            variables.counter,
            variables.counters,
            last_skip=witness.make_variable() if is_eager else None,
        )
        own: dict[str, Any] = {
            "_loss_scale": variables,
            "_schedule": schedule,
            "_settings": dict(settings, initial_scale=initial_scale, dynamic_growth_steps=dynamic_growth_steps),
            "_scaler": Scaler(schedule, memory, label=type(inner_optimizer).__name__ if is_eager else ""),
            "_step_variables": [],
            "_nonfinite_gradients": None,
            "loss_scale_state": _SavedScale(lambda: [("scale", variables.current_loss_scale),
                                                     ("good_steps", variables.counter),
                                                     ("counters", variables.counters)]),
        }  # fmt: skip
        for name, value in own.items():  # past tf_keras' __setattr__, which would track them in the inner optimizer
            object.__setattr__(self, name, value)
        self._track_trackable(variables, "loss_scale", overwrite=True)  # type: ignore[attr-defined]

    _optimizer: Any
    _loss_scale: Any
    _schedule: Schedule
    _scaler: Scaler
    _settings: dict[str, Any]
    _step_variables: list[Any]
    _nonfinite_gradients: Any

    @property
    def loss_scale(self) -> Any:
        """The scale now, a float32 scalar tensor.

        Raises:
            ConfigError: it is set to a number that is not finite and above zero.
        """
        self._scaler.usage.note_reading()
        return self._scaler.memory.read_scale()

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        check_scale(value)
        self._loss_scale.current_loss_scale.assign(value)

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return isinstance(self._schedule, DynamicScale)

    def status(self) -> Status:
        """The state as Python numbers. Waits for the device."""
        names: list[str] = []
        if self._nonfinite_gradients is not None:
            flags = self._nonfinite_gradients.numpy()
            names = [variable.name for variable, flag in zip(self._step_variables, flags, strict=False) if flag]
        return self._scaler.memory.status(self._schedule, names)

    def get_config(self) -> dict[str, Any]:
        """The settings, from which ``from_config`` makes the same optimizer."""
        return {"inner_optimizer": tf_keras.optimizers.serialize(self._optimizer), **self._settings}

    def __dir__(self) -> Iterable[str]:
        # tf_keras' saving walks dir(): the inner optimizer's state is saved once, in this one's place.
        return sorted(set(super().__dir__()) - {"inner_optimizer", "_optimizer", "_trackable"})

    def _decide(self, gradients: list[Any], variables: list[Any], take: Any) -> Any:
        """Checks aggregated gradients and takes the step or skips it; ``take(gradients)`` is the inner step."""
        self._remember_nonfinite(variables)

        def step(strategy: Any, grads: Any) -> Any:
            return take(grads) if strategy is None else strategy.extended.call_for_each_replica(take, args=(grads,))

        return self._scaler.step(
            gradients,
            step,
            norm_clip=_norm_clip(self._optimizer),
            on_skip=lambda found: self._note_nonfinite(found, variables),
        )

    def _note_nonfinite(self, found: replicas.Nonfinite, variables: list[Any]) -> list[Any]:
        if self._nonfinite_gradients is None:
            return []
        known = len(self._step_variables)
        places = {id(variable): place for place, variable in enumerate(self._step_variables)}
        indices = [[places.get(id(variable), known)] for variable in variables]  # others: past the end
        seen = tf.scatter_nd(indices, tf.cast(found.gradients, tf.int32), [known + 1])[:known]
        return [self._nonfinite_gradients.assign(seen, read_value=False)]

    def _remember_nonfinite(self, variables: list[Any]) -> None:
        """Creates what remembers whose gradients were nonfinite, unless it is there."""
        if self._nonfinite_gradients is None and tf.compat.v1.executing_eagerly_outside_functions():
            # All replicas create it together: it is set only once every one of them has come by here.
            with tf.init_scope():
                seen = tf.Variable([0] * len(variables), dtype=tf.int32, trainable=False, name="nonfinite_gradients")
            object.__setattr__(self, "_step_variables", variables)
            object.__setattr__(self, "_nonfinite_gradients", seen)

    def _prepare(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        if tf.distribute.in_cross_replica_context():
            raise ValueError("apply_gradients() must be called in a replica context.")
        keras_wrappers._raise_if_strategy_unsupported()
        pairs = [(finite.as_tensor(gradient, variable), variable) for gradient, variable in pairs]
        pairs = list(optimizer_utils.filter_empty_gradients(pairs))
        gradients, variables = zip(*pairs, strict=True)
        is_scaled = self._scaler.are_scaled(
            list(gradients),
            by_hand=Gradients.UNSCALED_BY_LOOP,  # as with tf_keras' own wrapper, which leaves the division to the loop
            where=f"{type(self._optimizer).__name__} optimizer",
        )
        if is_scaled:
            return list(zip(self._scaler.unscale(gradients), variables, strict=True))
        return pairs


@tf_keras.saving.register_keras_serializable(package="amp_tf")
class LossScaleOptimizer(_Scaling, keras_wrappers.LossScaleOptimizerV3):  # type: ignore[misc]
    """A new-style tf_keras optimizer that scales the loss and skips steps with nonfinite gradients.

    ``minimize`` and ``Model.fit`` need nothing else. A custom loop calls ``get_scaled_loss``, then
    ``get_unscaled_gradients``, then ``apply_gradients``, as with tf_keras' own wrapper. A skipped step changes nothing
    but the scale and its counters: not ``iterations`` either.

    Args:
        inner_optimizer: a ``tf_keras.optimizers.Optimizer``.
        initial_scale, dynamic_growth_steps, **settings: see :func:`amp_tf.loss_scaling.schedule.build_schedule`.

    Raises:
        ConfigError: the optimizer is wrapped already, or a setting is outside its range.
    """

    def __getattr__(self, name: str) -> Any:
        # Only reached where the wrapper has no such attribute: clipnorm, momentum, beta_1 and the like.
        if name.startswith("_"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if is_own or not hasattr(self._optimizer, name):
            super().__setattr__(name, value)
        else:
            setattr(self._optimizer, name, value)

    def build(self, var_list: Iterable[Any]) -> None:
        """Creates all variables, so that the first step creates none, which TensorFlow would trace twice.

        Args:
            var_list: the variables to train.
        """
        variables = list(var_list)
        self._optimizer.build(variables)
        self._remember_nonfinite(variables)

    def set_weights(self, weights: Any) -> None:
        """Sets the variables of the inner optimizer, which are all that ``variables`` has; HDF5 files hold no more.

        Args:
            weights: arrays, in the order of ``variables``.

        Raises:
            ValueError: the optimizer is not built, or a shape differs.
        """
        self._optimizer.set_weights(weights)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], skip_gradients_aggregation: bool = False, **kwargs: Any
    ) -> Any:
        """Applies one step, or skips it.

        Args:
            grads_and_vars: pairs of gradient and variable.
            skip_gradients_aggregation: whether the gradients are summed over replicas already.
            **kwargs: ``experimental_aggregate_gradients``, the older opposite of it.

        Returns:
            The inner optimizer's iteration counter.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            return self.iterations
        aggregate = not skip_gradients_aggregation and kwargs.pop("experimental_aggregate_gradients", True)
        if not self._schedule.skips_nonfinite:
            return self._optimizer.apply_gradients(pairs, skip_gradients_aggregation=not aggregate)
        with tf.init_scope():
            self.build([variable for _, variable in pairs])
        pairs = self._prepare(pairs)
        if aggregate and not (self._optimizer._run_with_dtensor or self._optimizer._mesh):
            # Before the check: a nonfinite gradient of one replica, or their sum, is then seen by all.
            pairs = list(self._optimizer.aggregate_gradients(pairs))
        variables = [variable for _, variable in pairs]

        def take(gradients: Any) -> Any:
            self._optimizer.apply_gradients(zip(gradients, variables, strict=True), skip_gradients_aggregation=True)

        self._decide([gradient for gradient, _ in pairs], variables, take)
        return self.iterations


@tf_keras.saving.register_keras_serializable(package="amp_tf")
class LegacyLossScaleOptimizer(_Scaling, keras_wrappers.LossScaleOptimizer):  # type: ignore[misc]
    """As :class:`LossScaleOptimizer`, for ``tf_keras.optimizers.legacy`` optimizers; works in TF1 graphs too."""

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Applies one step, or skips it.

        Args:
            grads_and_vars: pairs of gradient and variable.
            name: of the operation.
            experimental_aggregate_gradients: whether to sum the gradients over replicas.

        Returns:
            In a TF1 graph the operation to run.
        """
        inner = self._optimizer
        if not self._schedule.skips_nonfinite:
            return inner.apply_gradients(grads_and_vars, name, experimental_aggregate_gradients)
        pairs = self._prepare(list(grads_and_vars))
        if experimental_aggregate_gradients:
            pairs = list(inner._aggregate_gradients(inner._transform_unaggregated_gradients(pairs)))
        variables = [variable for _, variable in pairs]
        with tf.init_scope():  # slots may not be born inside a condition
            _ = inner.iterations
            inner._create_all_weights(variables)

        def take(gradients: Any) -> Any:
            return inner.apply_gradients(
                list(zip(gradients, variables, strict=True)), name=name, experimental_aggregate_gradients=False
            )

        taken = self._decide([gradient for gradient, _ in pairs], variables, take)
        return tf.group(taken) if not tf.executing_eagerly() else inner.iterations


def wrap(inner_optimizer: Any, initial_scale: float, **settings: Any) -> Any:
    """The adapter's entry, for ``amp_tf.LossScaleOptimizer``."""
    is_legacy = isinstance(inner_optimizer, tf_keras.optimizers.legacy.Optimizer)
    return (LegacyLossScaleOptimizer if is_legacy else LossScaleOptimizer)(inner_optimizer, initial_scale, **settings)


def _norm_clip(optimizer: Any) -> finite.NormClip:
    if getattr(optimizer, "clipnorm", None):
        return finite.NormClip.EACH
    return finite.NormClip.GLOBAL if getattr(optimizer, "global_clipnorm", None) else finite.NormClip.NONE
