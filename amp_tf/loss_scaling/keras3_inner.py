"""What the Keras 3 wrapper asks of the optimizer inside it."""

from __future__ import annotations

import contextlib
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


def norm_clip(optimizer: Any) -> finite.NormClip:
    """Which norm the optimizer divides gradients by."""
    if optimizer.clipnorm:
        return finite.NormClip.EACH
    return finite.NormClip.GLOBAL if optimizer.global_clipnorm else finite.NormClip.NONE


def headroom(optimizer: Any) -> float:
    """How many gradients the optimizer adds up, over accumulated steps and the replicas of the strategy in use."""
    accumulated = optimizer.gradient_accumulation_steps or 1
    return float(accumulated * tf.distribute.get_strategy().num_replicas_in_sync)


def scope_of(strategy: Any) -> contextlib.AbstractContextManager[Any]:
    """The scope to create variables in, so that they are the strategy's; nothing where it is entered already."""
    if strategy is tf.distribute.get_strategy() or (
        not tf.distribute.in_cross_replica_context() and tf.distribute.has_strategy()
    ):
        return contextlib.nullcontext()
    return strategy.scope()  # type: ignore[no-any-return]
