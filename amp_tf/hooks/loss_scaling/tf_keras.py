"""The patches of tf_keras: ``compile`` wraps the optimizer, ``fit`` adds the monitor, bare loops are warned."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from amp_tf.hooks.loss_scaling.automatic import Context, survive
from amp_tf.hooks.loss_scaling.keras3 import _compile, _fit, _owner, metadata_rows, warn_if_unscaled


def patches(context: Context) -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """Rows of owner, attribute, and what makes its replacement from the original.

    Args:
        context: what decides whether to act.
    """
    import tf_keras

    rows = [
        (_owner(tf_keras.Model, "compile"), "compile", lambda original: _compile(original, context)),
        (_owner(tf_keras.Model, "fit"), "fit", lambda original: _fit(original)),
        *metadata_rows("tf_keras.src.saving.legacy.saving_utils", tf_keras.saving.get_registered_name),
    ]
    # What tf_keras.Model becomes after tf.compat.v1.disable_v2_behavior(). Its monitor would have nothing to read.
    model_v1 = importlib.import_module("tf_keras.src.engine.training_v1").Model
    rows.append((model_v1, "compile", lambda original: _compile(original, context)))
    for cls in (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer):
        owner = _owner(cls, "apply_gradients")
        rows.append((owner, "apply_gradients", lambda original: _apply_gradients(original, context)))
    return rows


def _apply_gradients(original: Any, context: Context) -> Any:
    def apply_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(self, "_is_wrapped_by_loss_scale_optimizer", False):  # tf_keras' wrappers set it
            survive("Optimizer.apply_gradients", warn_if_unscaled, self, "apply_gradients", context)
        return original(self, *args, **kwargs)

    return apply_gradients
