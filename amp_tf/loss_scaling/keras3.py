"""The adapter for Keras 3 optimizers."""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import replicas
from amp_tf.loss_scaling.calls import scaled_step
from amp_tf.loss_scaling.finite import clips_norm
from amp_tf.loss_scaling.kept import store_result, take_result
from amp_tf.loss_scaling.scaler import Memory, Pairs, Scaler, unzip
from amp_tf.loss_scaling.schedule import (
    DEFAULT_GROWTH_STEPS,
    DEFAULT_INITIAL_SCALE,
    build_schedule,
    usable_scale,
)
from amp_tf.loss_scaling.wrapping import (
    InnerSettings,
    SavedScale,
    ScalingMethods,
    delegating,
    without_autograph,
)

_DynamicTracking: Any = tf.__internal__.tracking.DelegatingTrackableMixin
_KerasWrapper: Any = keras.optimizers.LossScaleOptimizer
_MULTI_OPTIMIZER = getattr(keras.optimizers, "MultiOptimizer", ())  # Keras has it since 3.13
_ACCUMULATION = "gradient_accumulation_steps"
_STEP = "_backend_apply_gradients"  # Keras' method that has conditions in it; 3.0.0 has none
_SUM = "_all_reduce_sum_gradients"  # Keras' method that sums gradients over replicas
_CONDITIONAL = ("ops", "backend")  # It calls ops.cond, since Keras 3.16 backend.ops.cond.
# Settings of the inner optimizer alone; the wrapper's base class has them too, unused.
_AVERAGES = ("use_ema", "ema_momentum", "ema_overwrite_frequency")
_INNER_SETTINGS = frozenset(
    {"clipnorm", "clipvalue", "global_clipnorm", *_AVERAGES, _ACCUMULATION, "weight_decay"}
)
# Keras' own wrapper writes these before the variables of its inner optimizer, the first two of them
# unused.
_KERAS_WRAPPER = ("iteration", "learning_rate", "step_counter", "dynamic_scale")


class _ScaleState(SavedScale, keras.losses.Loss):  # type: ignore[misc]
    """The part of a file that holds the scale."""


@keras.saving.register_keras_serializable(package="amp_tf")
@delegating(
    "add_optimizer_variables",
    "add_variable_from_reference",
    "exclude_from_weight_decay",
    "finalize_variable_values",
    "set_weights",
    "stateless_apply",
    "update_step",
    "variables",
)
class LossScaleOptimizer(ScalingMethods, InnerSettings, _DynamicTracking, _KerasWrapper):  # type: ignore[misc]
    """A Keras 3 optimizer that scales the loss and skips steps with nonfinite gradients.

    Keras takes it for its own, so ``compile`` does not wrap it again, and a model's default
    ``train_step`` scales the loss with it. A custom loop adds two lines::

        scaled_loss = optimizer.scale_loss(loss)              # inside the GradientTape
        gradients = tape.gradient(scaled_loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))  # unscales, checks, applies or skips

    or, as with tf_keras, ``get_scaled_loss`` and ``get_unscaled_gradients``. Gradients are unscaled
    first, then checked on all replicas together, then given to the inner optimizer, which clips,
    accumulates and averages by settings of its own. A skipped step changes nothing but the scale
    and its counters. With Horovod or another all-reduce of your own, reduce the scaled gradients: a
    NaN or infinity on one worker then reaches all, and all skip.

    Arguments and errors are those of :func:`amp_tf.LossScaleOptimizer`.
    """

    built: bool
    _trackable: Any
    _of_inner = _INNER_SETTINGS

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = DEFAULT_INITIAL_SCALE,
        dynamic_growth_steps: int = DEFAULT_GROWTH_STEPS,
        name: str | None = None,
        **settings: Any,
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ConfigError(
                f"Keras runs on {keras.backend.backend()}",
                where="LossScaleOptimizer",
                fix="Set KERAS_BACKEND=tensorflow before importing",
            )
        schedule = build_schedule(initial_scale, dynamic_growth_steps, **settings)
        # Checkpoints see the inner optimizer (in Keras 3.0 an empty object) in this one's place, by
        # the mixin, so no attribute here may be tracked.
        is_trackable = hasattr(inner_optimizer, "_track_trackable")
        seen = inner_optimizer if is_trackable else tf.__internal__.tracking.AutoTrackable()
        object.__setattr__(self, "_self_setattr_tracking", False)
        object.__setattr__(self, "_trackable", seen)
        name = name or inner_optimizer.name
        super(_DynamicTracking, self).__init__(
            inner_optimizer, initial_scale, dynamic_growth_steps, name=name
        )
        self._settings = dict(settings)
        # Loaded before build made the variables for them.
        self._pending_weights: dict[str, Any] | None = None
        # From now on these are read from the inner optimizer.
        for name in (*_INNER_SETTINGS, "_iterations", "_learning_rate"):
            self.__dict__.pop(name, None)
        self._variables.clear()  # of the two that had been made for the base class
        start = keras.initializers.Constant(schedule.initial_state().scale)
        with _scope_of(inner_optimizer):
            self._scale = self.add_variable(
                (), initializer=start, dtype="float32", name="loss_scale"
            )
            self._counters = self.add_variable(
                (6,), initializer="zeros", dtype="int64", name="loss_scale_counters"
            )
            memory = Memory(self._scale.value, self._counters.value)
        self._scaler = Scaler(schedule, memory, label=inner_optimizer.name)
        self.loss_scale_state = _ScaleState({"scale": self._scale, "counters": self._counters})
        checkpointed = tf.train.Checkpoint(
            current_loss_scale=self._scale.value, counters=self._counters.value
        )
        seen._track_trackable(checkpointed, "loss_scale", overwrite=True)

    @without_autograph
    def apply_gradients(self, grads_and_vars: Pairs, *args: Any, **kwargs: Any) -> Any:
        """As :meth:`apply`, by pairs.

        Other arguments go to a user's own optimizer, whose result is returned; tensors in it are
        zero for a step that was skipped. Others give the inner optimizer's counter, which skipped
        steps do not advance.
        """
        inner = self.inner_optimizer

        def step(grads: Any, variables: Any, args: Any, kwargs: Any) -> None:
            pairs = list(zip(grads, variables, strict=True))
            store_result(inner, inner.apply_gradients(pairs, *args, **kwargs))

        self._step("apply_gradients", step, *unzip(grads_and_vars), args, kwargs)
        return take_result(inner, _counter_of(inner))

    @without_autograph
    def apply(
        self,
        grads: Sequence[Any],
        trainable_variables: Sequence[Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Applies one step, or skips it.

        ``grads`` has a gradient or ``None`` for each of ``trainable_variables``. Without these, the
        variables are those with which the optimizer was built. Other arguments and results are
        those of a user's own optimizer, as for :meth:`apply_gradients`.
        """
        inner = self.inner_optimizer

        def step(grads: Any, variables: Any, args: Any, kwargs: Any) -> None:
            store_result(inner, inner.apply(grads, variables, *args, **kwargs))

        self._step("apply", step, grads, trainable_variables, args, kwargs)
        return take_result(inner, None)

    def _step(
        self,
        method: str,
        step: Callable[..., None],
        grads: Sequence[Any],
        trainable_variables: Sequence[Any] | None,
        *arguments: Any,
    ) -> None:
        """Takes or skips a step of the inner optimizer.

        Args:
            method: the one that the loop called.
            step: calls that method of the inner optimizer, which may be the user's; it is called
                with the gradients, their variables and the arguments.
            grads, trainable_variables: as for :meth:`apply`.
            *arguments: positional ones and those by name.
        """
        if len(grads) == 0:
            return
        inner = self.inner_optimizer
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        # The inner optimizer may have been built before it was wrapped.
        if inner.built or trainable_variables is not None:
            with keras.name_scope(inner.name, caller=inner):  # as its own first step does
                self.build(trainable_variables or ())
        where = f"optimizer '{inner.name}'"
        if not self._scaler.decides(where) or not self.built:
            with scaled_step(), replicas.sums_of_one(_parts_of(inner), _SUM):
                step(grads, trainable_variables, *arguments)
            return
        replicas.check_in_replica(method)
        if trainable_variables is None:
            trainable_variables = inner._trainable_variables
        variables = list(trainable_variables)
        _check_variables(inner, grads, variables, where)
        parts = _parts_of(inner)
        accumulated = [getattr(part, _ACCUMULATION, None) or 1 for part in parts]
        self._scaler.step(
            self._scaler.unscale_for_step(grads, variables, where),
            lambda grads, *arguments: step(grads, variables, *arguments),
            around=functools.partial(_around_step, parts),
            clips_norm=clips_norm(parts),
            headroom=max(accumulated) * replicas.count(),
            variables=variables,
            arguments=arguments,
            owner=inner,
        )

    def build(self, var_list: Sequence[Any]) -> None:
        """Creates the inner optimizer's variables, and restores those that were loaded before."""
        if self.built:
            return
        if not self.inner_optimizer.built:
            with _lifted_for(var_list), _scope_of(self.inner_optimizer):
                self.inner_optimizer.build(list(var_list))
        with tf.init_scope(), _scope_of(self.inner_optimizer):
            self._scaler.nonfinite_variables.watch(self.inner_optimizer._trainable_variables)
        for name in ("_trainable_variables", "_trainable_variables_indices"):
            # Avoids Keras' tracking, which would take them for variables of this optimizer.
            object.__setattr__(self, name, getattr(self.inner_optimizer, name))
        object.__setattr__(self, "_variables", self.inner_optimizer.variables)  # a model's map
        self.built = True
        pending = self._pending_weights
        self._pending_weights = None
        if pending is not None:
            with tf.init_scope():  # build may be called by a training step
                self.load_own_variables(pending)

    dynamic_scale = ScalingMethods.loss_scale  #: Keras' own name

    @property
    def step_counter(self) -> Any:
        """Finite steps since the scale last changed; int64."""
        return self._counters[0]

    dynamic_counter = step_counter  #: under the name of tf_keras

    @property
    def iterations(self) -> Any:
        """The wrapped optimizer's counter."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        # Before, the base class sets it, which up to Keras 3.4 has a counter of its own.
        if "_scaler" in self.__dict__:
            self.inner_optimizer.iterations = value

    def save_own_variables(self, store: Any) -> None:
        """Writes what the inner optimizer alone would write; the scale goes to its own group."""
        if self._pending_weights is None:
            self.inner_optimizer.save_own_variables(store)
            return
        for key, array in self._pending_weights.items():
            store[key] = array

    def load_own_variables(self, store: Any) -> None:
        """Reads the state that was saved wrapped, bare or in Keras' own wrapper.

        If there are no variables for it yet, it waits for ``build``.
        """
        # It has keys() but is no mapping.
        arrays = {key: store[key][()] for key in store.keys()}  # noqa: SIM118
        if not arrays:
            return
        inner = self.inner_optimizer
        expected = len(inner.variables)
        if not self.built and len(arrays) > expected:
            self._pending_weights = arrays
            return
        if len(arrays) == expected:
            inner.load_own_variables(arrays)
            return
        if not _is_of_keras_wrapper(arrays, inner.variables):
            warnings.warn(
                f"amp_tf: optimizer '{self.name}': the file holds {len(arrays)} variables of an "
                f"optimizer, not {expected}; its state is not loaded. Compile the model with the "
                "optimizer that was saved.",
                stacklevel=2,
            )
            return
        of_wrapper = len(_KERAS_WRAPPER)
        shifted = {str(number): arrays[str(number + of_wrapper)] for number in range(expected)}
        inner.load_own_variables(shifted)
        wrapper = {name: arrays[str(number)] for number, name in enumerate(_KERAS_WRAPPER)}
        self._scale.assign(usable_scale(float(wrapper["dynamic_scale"]), self._scaler.schedule))
        self._counters.assign([int(wrapper["step_counter"]), 0, 0, 0, 0, 0])

    def get_config(self) -> dict[str, Any]:
        """The settings, from which :meth:`from_config` makes the same optimizer."""
        config: dict[str, Any] = super().get_config()
        # Up to Keras 3.8 the base class gives loss_scale_factor, too.
        for setting in (*_INNER_SETTINGS, "loss_scale_factor"):
            config.pop(setting, None)
        return {**config, **self._settings}


wrap = LossScaleOptimizer  #: the adapter's entry, for ``amp_tf.LossScaleOptimizer``


def _is_of_keras_wrapper(arrays: Mapping[str, Any], variables: Sequence[Any]) -> bool:
    """Tells by the shapes whether Keras' own wrapper saved arrays, around these variables."""
    shapes = [()] * len(_KERAS_WRAPPER) + [tuple(variable.shape) for variable in variables]
    found = [arrays[str(number)].shape for number in range(len(arrays))]
    return found == shapes


def _check_variables(
    inner: Any, grads: Sequence[Any], variables: Sequence[Any], where: str
) -> None:
    """Refuses, by a ValueError, a step that the inner optimizer cannot make."""
    if len(grads) != len(variables):
        raise ValueError(
            f"{where}: got {len(grads)} gradients for {len(variables)} variables. Give one for "
            "each variable, None where there is none."
        )
    known = inner._trainable_variables_indices
    others = [variable for variable in variables if inner._var_key(variable) not in known]
    if others:
        unknown = [getattr(variable, "path", variable.name) for variable in others]
        raise ValueError(
            f"{where}: Unknown variable: {', '.join(unknown)}. An optimizer trains the variables "
            "that it was built with. Build it with all of them, optimizer.build(variables), or "
            "make a new one for other variables."
        )


@contextlib.contextmanager
def _around_step(parts: Sequence[Any], strategy: Any) -> Iterator[None]:
    """Surrounds a step of Keras optimizers."""
    if strategy is not None:
        _share_conditions(parts)
    with replicas.sums_of_one(parts, _SUM):
        yield


def _share_conditions(parts: Iterable[Any]) -> None:
    """Lets all replicas together make the conditions of Keras' step.

    The step has one for accumulated gradients and one for averages, in which replicas cannot meet.
    The optimizer gets a changed copy of Keras' method, because other threads would see a change
    of Keras' module. A step of the user's own stays as it is.
    """
    for part in parts:
        step = getattr(type(part), _STEP, None)
        if replicas.is_of_keras(step) and _STEP not in vars(part):
            vars(part)[_STEP] = types.MethodType(_with_shared_conditions(step), part)


def _with_shared_conditions(function: Any) -> Any:
    """Copies a function of Keras; the copy calls ``choose_together`` for ``cond``."""
    seen = dict(function.__globals__)
    for name in _CONDITIONAL:
        if name in seen:
            seen[name] = _SharedConditions(seen[name])
    return types.FunctionType(function.__code__, seen, closure=function.__closure__)


class _SharedConditions:
    """A module of Keras, seen with another ``cond``."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name == "cond":
            return replicas.choose_together
        found = getattr(self._module, name)
        return _SharedConditions(found) if name in _CONDITIONAL else found


def _counter_of(optimizer: Any) -> Any:
    """The variable that counts the optimizer's steps, accumulated ones included."""
    if hasattr(optimizer, "_iterations"):  # since Keras 3.5
        return optimizer._iterations
    return optimizer.iterations


def _parts_of(optimizer: Any) -> list[Any]:
    """The optimizers that make the step: several in a MultiOptimizer."""
    if isinstance(optimizer, _MULTI_OPTIMIZER):
        return list(optimizer.optimizers)
    return [optimizer]


def _lifted_for(weights: Iterable[Any]) -> contextlib.AbstractContextManager[Any]:
    """Where to create the variables of an optimizer of some weights: outside of the step, which may
    be traced.

    TensorFlow would run initializers in a condition around the step, which fails where replicas
    make the step. Weights that the step itself creates have no value outside of it, from which the
    optimizer's may begin; then, without replicas, it is the step.
    """
    is_alone = not tf.distribute.has_strategy()
    with tf.init_scope():
        if is_alone and tf.executing_eagerly():
            variables = [
                weight.value if isinstance(weight, keras.Variable) else weight for weight in weights
            ]
            if not all(variable.is_initialized() for variable in variables):
                return contextlib.nullcontext()
    return tf.init_scope()  # type: ignore[no-any-return]


def _scope_of(optimizer: Any) -> contextlib.AbstractContextManager[Any]:
    """The scope in which to create an optimizer's variables; a null context if it is entered."""
    strategy = getattr(optimizer, "_distribution_strategy", None) or tf.distribute.get_strategy()
    is_in_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
    if is_in_replica or strategy is tf.distribute.get_strategy():
        return contextlib.nullcontext()
    return strategy.scope()  # type: ignore[no-any-return]
