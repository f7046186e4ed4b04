"""The wrappers for tf_keras optimizers: the new ones, and the legacy ones of TF 2.10 and older."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import tensorflow as tf
import tf_keras
from tf_keras.src.mixed_precision import loss_scale_optimizer as keras_wrappers
from tf_keras.src.optimizers import utils as optimizer_utils

from amp_tf.loss_scaling import finite, kept, replicas
from amp_tf.loss_scaling.scaler import Memory, Pairs, Scaler, unzip
from amp_tf.loss_scaling.schedule import (
    DEFAULT_GROWTH_STEPS,
    DEFAULT_INITIAL_SCALE,
    Schedule,
    build_schedule,
)
from amp_tf.loss_scaling.wrapping import (
    InnerSettings,
    SavedScale,
    ScalingMethods,
    delegating,
    untrack,
    without_autograph,
)


class _ScaleVariables(keras_wrappers._DynamicLossScaleState):  # type: ignore[misc]
    """The scale and its counters as variables.

    The first two are named as in tf_keras' own checkpoints.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(
            schedule.initial_state().scale, getattr(schedule, "growth_steps", 0), multiplier=2
        )
        self.counters = self._add_weight(name="counters", dtype=tf.int64, initial_value=[0] * 5)


class _ScaleState(SavedScale, tf_keras.losses.Loss):  # type: ignore[misc]
    """The part of a file that holds the scale."""


class _Scaling(ScalingMethods, InnerSettings):
    """The methods of both wrappers, in front of tf_keras' own class.

    That one's checkpoints and delegation stay.
    """

    _inner = "_optimizer"

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = DEFAULT_INITIAL_SCALE,
        dynamic_growth_steps: int = DEFAULT_GROWTH_STEPS,
        **settings: Any,
    ) -> None:
        schedule = build_schedule(initial_scale, dynamic_growth_steps, **settings)
        # A program may compile twice with one optimizer, which is then wrapped twice, with a scale
        # for each model.
        inner_optimizer._is_wrapped_by_loss_scale_optimizer = False
        untrack(inner_optimizer, "loss_scale", "base_optimizer")
        super().__init__(inner_optimizer)  # type: ignore[call-arg]
        variables = _ScaleVariables(schedule)
        named = {
            "scale": variables.current_loss_scale,
            "good_steps": variables.counter,
            "counters": variables.counters,
        }
        settings["initial_scale"] = initial_scale
        settings["dynamic_growth_steps"] = dynamic_growth_steps
        label = type(inner_optimizer).__name__
        # tf_keras' __setattr__ would track them in the inner optimizer.
        vars(self).update(
            _loss_scale=variables,
            _settings=settings,
            _scaler=Scaler(schedule, Memory(*named.values()), label=label),
            loss_scale_state=_ScaleState(named),
        )
        self._track_trackable(variables, "loss_scale", overwrite=True)

    _optimizer: Any
    _settings: dict[str, Any]
    _sum: ClassVar[str]  #: the method by which an optimizer sums gradients over replicas

    def get_config(self) -> dict[str, Any]:
        """The settings, from which ``from_config`` makes the same optimizer."""
        return {"inner_optimizer": tf_keras.optimizers.serialize(self._optimizer), **self._settings}

    @property
    def _place(self) -> str:
        return f"{type(self._optimizer).__name__} optimizer"  # for messages

    def _step(self, given: Pairs, *arguments: Any) -> Any:
        """Takes or skips the inner optimizer's step, which sums gradients over replicas itself.

        ``arguments`` are those of the caller: positional ones, and those by name.
        """
        inner = self._optimizer

        def step(pairs: Any, args: Any, kwargs: Any) -> Any:
            return inner.apply_gradients(pairs, *args, **kwargs)

        if not self._scaler.decides(self._place):
            return step(given, *arguments)
        with tf.init_scope():  # variables must not be created inside a condition
            self._create(given)
        replicas.check_in_replica("apply_gradients")
        keras_wrappers._raise_if_strategy_unsupported()
        pairs = optimizer_utils.filter_empty_gradients(given)
        gradients, variables = unzip(pairs)
        self._scaler.nonfinite_variables.watch(variables)

        def apply(gradients: Any, *arguments: Any) -> Any:
            result = step(list(zip(gradients, variables, strict=True)), *arguments)
            kept.store_result(inner, result)
            return result

        taken = self._scaler.step(
            self._scaler.unscale_for_step(gradients, variables, where=self._place),
            apply,
            around=lambda _: replicas.sums_of_one([inner], self._sum),
            clips_norm=finite.clips_norm([inner]),
            headroom=replicas.count(),
            variables=variables,
            arguments=arguments,
            owner=inner,
        )
        return kept.take_result(inner, self._done(taken))


@tf_keras.saving.register_keras_serializable(package="amp_tf")
@delegating(
    "add_variable",
    "add_variable_from_reference",
    "aggregate_gradients",
    "exclude_from_weight_decay",
    "load_own_variables",
    "save_own_variables",
    "set_weights",
    "update_step",
)
class LossScaleOptimizer(_Scaling, keras_wrappers.LossScaleOptimizerV3):  # type: ignore[misc]
    """A new-style tf_keras optimizer that scales the loss and skips steps with nonfinite gradients.

    ``minimize`` and ``Model.fit`` need nothing else. A custom loop calls ``get_scaled_loss``, then
    ``get_unscaled_gradients``, then ``apply_gradients``, as with tf_keras' own wrapper. A skipped
    step changes nothing but the scale and its counters: not ``iterations`` either. Arguments:
    :func:`amp_tf.LossScaleOptimizer`.
    """

    _sum = "aggregate_gradients"

    def build(self, var_list: Iterable[Any]) -> None:
        """Creates all variables, before the first step, which would otherwise be traced twice."""
        variables = list(var_list)
        self._optimizer.build(variables)
        self._scaler.nonfinite_variables.watch(variables)

    @without_autograph
    def apply_gradients(self, grads_and_vars: Pairs, *args: Any, **kwargs: Any) -> Any:
        """Applies one step, or skips it; returns the inner optimizer's counter.

        Other arguments are those of the inner optimizer, which may be a user's own; then its result
        is returned, and tensors in it are zero for a step that was skipped.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            return self.iterations
        return self._step(pairs, args, kwargs)

    def _create(self, given: Pairs) -> None:
        # As in the inner optimizer's own step, whose files name its variables so.
        with tf.name_scope(self._optimizer.name or "optimizer"):
            self.build([variable for _, variable in given])

    def _done(self, taken: Any) -> Any:
        return self.iterations


@tf_keras.saving.register_keras_serializable(package="amp_tf")
@delegating("_decayed_lr", "add_slot", "add_weight")
class LegacyLossScaleOptimizer(_Scaling, keras_wrappers.LossScaleOptimizer):  # type: ignore[misc]
    """A legacy tf_keras optimizer that scales the loss and skips nonfinite steps.

    It works in TF1 graphs, too.
    """

    _sum = "_aggregate_gradients"

    @property
    def _name(self) -> Any:
        """The inner optimizer's name."""
        return self._optimizer._name

    @without_autograph
    def apply_gradients(self, grads_and_vars: Pairs, *args: Any, **kwargs: Any) -> Any:
        """Applies one step, or skips it; in a TF1 graph returns the operation to run.

        Arguments and results of a user's own optimizer are passed on, as by
        :meth:`LossScaleOptimizer.apply_gradients`.
        """
        return self._step(list(grads_and_vars), args, kwargs)

    def _create(self, given: Pairs) -> None:
        gradients, variables = unzip(given)
        # As in the inner optimizer's own step, whose files name its variables so.
        with tf.name_scope(self._optimizer._name):
            self._optimizer._create_all_weights(finite.with_gradient(variables, gradients))

    def _done(self, taken: Any) -> Any:
        if tf.executing_eagerly():
            return self._optimizer.iterations
        return tf.group(taken)


def wrap(inner_optimizer: Any, initial_scale: float, **settings: Any) -> Any:
    """Wraps an optimizer, for ``amp_tf.LossScaleOptimizer``."""
    wrapper: type[_Scaling] = LossScaleOptimizer
    if isinstance(inner_optimizer, tf_keras.optimizers.legacy.Optimizer):
        wrapper = LegacyLossScaleOptimizer
    return wrapper(inner_optimizer, initial_scale, **settings)
