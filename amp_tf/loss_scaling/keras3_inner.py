"""What the Keras 3 wrapper asks of the optimizer inside it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import finite

# Settings that are the inner optimizer's alone; the base class of the wrapper has them too, dead.
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
    """Refuses what cannot be wrapped.

    Raises:
        TypeError: it is no Keras 3 optimizer.
        ConfigError: it scales its loss already, or Keras does not run on TensorFlow.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"inner_optimizer: expected a keras.optimizers.Optimizer, got {optimizer!r}.")
    where = f"LossScaleOptimizer('{optimizer.name}')"
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigError("the optimizer is a LossScaleOptimizer already", where=where, fix="Wrap it once")
    if optimizer.loss_scale_factor is not None:
        raise ConfigError(
            f"the optimizer scales its loss already, by loss_scale_factor={optimizer.loss_scale_factor}",
            where=where,
            fix="Leave out loss_scale_factor, or use LossScaleOptimizer(…, initial_scale=…, dynamic=False)",
        )
    if keras.backend.backend() != "tensorflow":
        raise ConfigError(
            f"Keras runs on {keras.backend.backend()}", where=where, fix="Set KERAS_BACKEND=tensorflow before importing"
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
    if all(gradient is None for gradient in gradients):
        raise ValueError(f"{where}: No gradients provided for any variable.")
    known = optimizer._trainable_variables_indices
    unknown = [getattr(v, "path", v.name) for v in variables if optimizer._var_key(v) not in known]
    if unknown:
        raise ValueError(
            f"{where}: Unknown variable: {', '.join(unknown)}. An optimizer trains the variables that it was built "
            "with. Build it with all of them, optimizer.build(variables), or make a new one for other variables."
        )


def with_gaps(gradients: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Gradients with ``None`` put back where ``like`` has it."""
    rest = iter(gradients)
    return [None if place is None else next(rest) for place in like]


def norm_clip(optimizer: Any) -> finite.NormClip:
    """Which norm the optimizer divides gradients by."""
    parts = _parts(optimizer)
    if any(part.global_clipnorm for part in parts):
        return finite.NormClip.GLOBAL
    return finite.NormClip.EACH if any(part.clipnorm for part in parts) else finite.NormClip.NONE


def headroom(optimizer: Any) -> float:
    """How many gradients the optimizer adds up, over accumulated steps and the replicas of the strategy in use."""
    accumulated = max(accumulated_steps(part) or 1 for part in _parts(optimizer))
    return float(accumulated * tf.distribute.get_strategy().num_replicas_in_sync)


def accumulated_steps(optimizer: Any) -> int | None:
    """Over how many steps the optimizer accumulates gradients; ``None`` where it does not; Keras 3.0.0 never does."""
    return getattr(optimizer, "gradient_accumulation_steps", None)


def counter_of(optimizer: Any) -> Any:
    """The variable that counts the optimizer's steps, accumulated ones too: ``iterations`` itself up to Keras 3.4."""
    return optimizer._iterations if hasattr(optimizer, "_iterations") else optimizer.iterations


def trackable_of(optimizer: Any) -> Any:
    """What checkpoints see of the optimizer: itself, or nothing yet where they do not know it, as in Keras 3.0."""
    return optimizer if hasattr(optimizer, "_track_trackable") else tf.__internal__.tracking.AutoTrackable()


def _parts(optimizer: Any) -> list[Any]:
    """The optimizers that make the step: several in a MultiOptimizer."""
    return optimizer.optimizers if isinstance(optimizer, _MULTI_OPTIMIZER) else [optimizer]


def scope_of(strategy: Any) -> contextlib.AbstractContextManager[Any]:
    """The scope to create variables in, so that they are the strategy's; nothing where it is entered already."""
    if strategy is tf.distribute.get_strategy() or (
        not tf.distribute.in_cross_replica_context() and tf.distribute.has_strategy()
    ):
        return contextlib.nullcontext()
    return strategy.scope()  # type: ignore[no-any-return]
