"""Dynamic loss scaling for Keras 3, tf_keras and TF1 optimizers. Importing this package imports no TensorFlow.

The way a step goes::

    loss --scale_loss--> scaled loss --tape--> scaled gradients --unscale--> gradients
        --find_nonfinite, summed over replicas--> one decision --> inner optimizer's step, or nothing
        --schedule--> next scale

``schedule`` is the pure state machine, ``finite`` the tensor operations, ``diagnosis`` what is told to people, and
``keras3``, ``tf_keras`` and ``v1`` are thin shells that put TensorFlow variables around the schedule.
"""

from __future__ import annotations

import sys
from typing import Any

# Which module a class comes from decides the adapter: nothing is imported that the program has not imported itself.
_ADAPTERS = (
    ("keras", ("optimizers", "Optimizer"), "amp_tf.loss_scaling.keras3"),
    ("tf_keras", ("optimizers", "Optimizer"), "amp_tf.loss_scaling.tf_keras"),
    ("tf_keras", ("optimizers", "legacy", "Optimizer"), "amp_tf.loss_scaling.tf_keras"),
    ("tensorflow", ("compat", "v1", "train", "Optimizer"), "amp_tf.loss_scaling.v1"),
)


def LossScaleOptimizer(inner_optimizer: Any, initial_scale: float = 2.0**15, **settings: Any) -> Any:  # noqa: N802 - the name that Keras gives the class
    """Wraps an optimizer so that it scales the loss, unscales the gradients and skips nonfinite steps.

    The wrapper is of the kind that the optimizer's own library accepts: a ``LossScaleOptimizer`` of
    ``keras.optimizers`` or ``tf_keras.mixed_precision``, or a ``MixedPrecisionLossScaleOptimizer`` of
    ``tf.compat.v1.mixed_precision``.

    Args:
        inner_optimizer: a Keras 3, tf_keras (new or legacy) or ``tf.compat.v1.train`` optimizer, not yet wrapped.
        initial_scale: the first loss scale.
        **settings: ``dynamic_growth_steps=2000``, ``dynamic=True``, ``enabled=True``, ``growth_factor=2.0``,
            ``backoff_factor=0.5``, ``hysteresis=1``, ``min_scale=2**-24``, ``max_scale=2**127`` as in
            :func:`amp_tf.loss_scaling.schedule.build_schedule`; and ``name`` for Keras 3.

    Raises:
        TypeError: ``inner_optimizer`` is no optimizer of these libraries.
        ConfigError: it is wrapped already, or a setting is outside its range.
    """
    import importlib

    for module_name, path, adapter in _ADAPTERS:
        cls: Any = sys.modules.get(module_name)
        for part in path:
            cls = getattr(cls, part, None)
        if cls is not None and isinstance(inner_optimizer, cls):
            return importlib.import_module(adapter).wrap(inner_optimizer, initial_scale, **settings)
    raise TypeError(
        "LossScaleOptimizer: expected an optimizer of keras, tf_keras or tf.compat.v1.train, got "
        f"{inner_optimizer!r} of type {type(inner_optimizer).__module__}.{type(inner_optimizer).__qualname__}."
    )


def is_loss_scaled(optimizer: Any) -> bool:
    """Whether the optimizer scales its loss already: by this package, by Keras, tf_keras or TF1, or by a fixed factor.

    Args:
        optimizer: any object.
    """
    wrapper_names = {"LossScaleOptimizer", "LossScaleOptimizerV3", "MixedPrecisionLossScaleOptimizer"}
    if any(cls.__name__ in wrapper_names for cls in type(optimizer).__mro__):
        return True
    return getattr(optimizer, "loss_scale_factor", None) is not None
