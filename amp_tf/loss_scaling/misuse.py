"""Checks that all wrappers share, with the same messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import is_loss_scaled


def check_not_scaled(optimizer: Any) -> None:
    """Refuses to wrap an optimizer that already scales its loss.

    Raises:
        ConfigError: it does.
    """
    factor = getattr(optimizer, "loss_scale_factor", None)
    if factor is not None:
        raise ConfigError(
            f"the optimizer scales its loss already, by loss_scale_factor={factor}",
            where="LossScaleOptimizer",
            fix="Leave out loss_scale_factor, or use LossScaleOptimizer(…, initial_scale=…, dynamic=False)",
        )
    if is_loss_scaled(optimizer):
        raise ConfigError(
            "the optimizer is a LossScaleOptimizer already", where="LossScaleOptimizer", fix="Wrap it once"
        )


def check_in_replica(method: str) -> None:
    """Refuses a step that is made for all replicas at once.

    Raises:
        ValueError: it is called in the cross-replica context.
    """
    if tf.distribute.in_cross_replica_context():
        raise ValueError(f"{method}() must be called in a replica context: from a function given to strategy.run().")


def check_any(gradients: Iterable[Any]) -> None:
    """Refuses a step without gradients.

    Raises:
        ValueError: all of them are ``None``, or there are none.
    """
    if all(gradient is None for gradient in gradients):
        raise ValueError("No gradients provided for any variable.")
