"""The patches of tf_keras: ``compile`` wraps the optimizer, ``fit`` adds the monitor, bare loops are warned."""

from __future__ import annotations

import importlib
from typing import Any

from amp_tf.hooks.loss_scaling.automatic import Context, survive
from amp_tf.hooks.loss_scaling.keras3 import _compile, _fit, _owner, metadata_rows, warn_if_unscaled
from amp_tf.hooks.patches import Patch, calling


def patches(context: Context) -> list[Patch]:
    """The patches of models, of the metadata in .h5 files, and of optimizers."""
    import tf_keras

    # What tf_keras.Model becomes after tf.compat.v1.disable_v2_behavior(). Its monitor would have nothing to read.
    model_v1 = importlib.import_module("tf_keras.src.engine.training_v1").Model
    optimizers = tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer
    return [
        (_owner(tf_keras.Model, "compile"), "compile", calling(_compile, context)),
        (_owner(tf_keras.Model, "fit"), "fit", calling(_fit)),
        *metadata_rows("tf_keras.src.saving.legacy.saving_utils", tf_keras.saving.get_registered_name),
        (model_v1, "compile", calling(_compile, context)),
        *((_owner(cls, "apply_gradients"), "apply_gradients", calling(_apply, context)) for cls in optimizers),
    ]


def _apply(context: Context, apply_gradients: Any, optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
    if not getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False):  # tf_keras' wrappers set it
        survive("Optimizer.apply_gradients", warn_if_unscaled, optimizer, "apply_gradients", context)
    return apply_gradients(optimizer, *args, **kwargs)
