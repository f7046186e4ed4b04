"""What the Keras 3 wrapper needs to know of the optimizer that it wraps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import replicas
from amp_tf.loss_scaling.misuse import check_any, check_not_scaled
from amp_tf.loss_scaling.scaling_methods import InnerSettings

# Settings that are the inner optimizer's alone; the wrapper's base class has them too, unused.
INNER_SETTINGS = frozenset(
    {
        "clipnorm",
        "clipvalue",
        "ema_momentum",
        "ema_overwrite_frequency",
        "global_clipnorm",
        "gradient_accumulation_steps",
        "use_ema",
        "weight_decay",
    }
)

_MULTI_OPTIMIZER = getattr(keras.optimizers, "MultiOptimizer", ())  # Keras has it since 3.13


def check_inner(optimizer: Any) -> None:
    """Refuses optimizers that cannot be wrapped.

    Raises:
        TypeError: it is not a Keras 3 optimizer.
        ConfigError: it scales its loss already, or Keras does not run on TensorFlow.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"inner_optimizer: expected a keras.optimizers.Optimizer, got {optimizer!r}.")
    check_not_scaled(optimizer)
    if keras.backend.backend() != "tensorflow":
        raise ConfigError(
            f"Keras runs on {keras.backend.backend()}",
            where="LossScaleOptimizer",
            fix="Set KERAS_BACKEND=tensorflow before importing",
        )


def check_gradients(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Refuses gradients that the optimizer has no variables for, before a condition is traced around its step.

    Args:
        optimizer: a built Keras 3 optimizer.
        gradients: one for each variable, or ``None``.
        variables: the variables.

    Raises:
        ValueError: their numbers differ, there is no gradient at all, or a variable is not the optimizer's.
    """
    where = f"optimizer '{optimizer.name}'"
    if len(gradients) != len(variables):
        raise ValueError(
            f"{where}: got {len(gradients)} gradients for {len(variables)} variables. Give one for each variable, None "
            "where there is none."
        )
    check_any(gradients)
    known = optimizer._trainable_variables_indices
    unknown = [getattr(v, "path", v.name) for v in variables if optimizer._var_key(v) not in known]
    if unknown:
        raise ValueError(
            f"{where}: Unknown variable: {', '.join(unknown)}. An optimizer trains the variables that it was built "
            "with. Build it with all of them, optimizer.build(variables), or make a new one for other variables."
        )


def headroom(optimizer: Any) -> float:
    """How many gradients the optimizer adds up, over accumulated steps and the replicas of the current strategy."""
    accumulated = max(accumulated_steps(part) or 1 for part in parts_of(optimizer))
    return accumulated * replicas.count()


def accumulated_steps(optimizer: Any) -> int | None:
    """The number of steps over which the optimizer accumulates gradients; ``None`` if it does not."""
    return getattr(optimizer, "gradient_accumulation_steps", None)


def counter_of(optimizer: Any) -> Any:
    """The variable that counts the optimizer's steps, accumulated ones included: ``_iterations`` since Keras 3.5."""
    return optimizer._iterations if hasattr(optimizer, "_iterations") else optimizer.iterations


def trackable_of(optimizer: Any) -> Any:
    """The object that checkpoints track for the optimizer: itself, or an empty one in Keras 3.0."""
    return optimizer if hasattr(optimizer, "_track_trackable") else tf.__internal__.tracking.AutoTrackable()


def parts_of(optimizer: Any) -> list[Any]:
    """The optimizers that make the step: several in a MultiOptimizer."""
    return optimizer.optimizers if isinstance(optimizer, _MULTI_OPTIMIZER) else [optimizer]


def scope_of(strategy: Any) -> contextlib.AbstractContextManager[Any]:
    """The strategy's scope in which to create variables; a null context where it is entered already."""
    if strategy is tf.distribute.get_strategy() or (
        not tf.distribute.in_cross_replica_context() and tf.distribute.has_strategy()
    ):
        return contextlib.nullcontext()
    return strategy.scope()  # type: ignore[no-any-return]


class InnerInterface(InnerSettings):
    """The part of Keras' optimizer interface that is delegated to the wrapped optimizer."""

    inner_optimizer: Any
    _of_inner = INNER_SETTINGS

    @property
    def iterations(self) -> Any:
        """The wrapped optimizer's counter."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        if "_scaler" in self.__dict__:  # else it is the base class, which up to Keras 3.4 has a counter of its own
            self.inner_optimizer.iterations = value

    @property
    def learning_rate(self) -> Any:
        """The wrapped optimizer's learning rate."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    def __dir__(self) -> Iterable[str]:
        # Keras' saving walks dir(): the inner optimizer's state is saved once, in this one's place.
        return sorted(set(super().__dir__()) - {"inner_optimizer", "_trackable"})

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Calls the wrapped optimizer's method."""
        self.inner_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Refused with TensorFlow, as by every Keras optimizer.

        Raises:
            ValueError: always.
        """
        return self.inner_optimizer.stateless_apply(optimizer_variables, grads, trainable_variables)
