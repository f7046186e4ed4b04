"""Scales losses dynamically, for Keras 3, tf_keras and TF1 optimizers.

Importing this package imports no TensorFlow.

A step::

    loss --scale_loss--> scaled loss --tape--> scaled gradients --unscale--> gradients
       --find_nonfinite, summed over replicas--> one decision --> inner optimizer's step, or nothing
        --schedule--> next scale

Its modules:

- *The algorithm* is ``schedule``: three schedules with one interface, a pure function from state to
  state.
- *The step* is ``scaler``: the schedule's state in variables (``Memory``), and the arrows above
  (``Scaler``). Its tensor operations are in ``finite``, the decision of all replicas in
  ``replicas``, the tensors that an optimizer stores in its step in ``kept``, and the record of
  scaled losses in ``calls``.
- *The public classes*: ``loss_scaler`` for loops without an optimizer; ``keras3``, ``tf_keras`` and
  ``v1`` for the optimizers of each library. They share ``wrapping``.
- *The record* is ``ledger``: the status of a scale, why training is stuck, and the scalers for the
  summary line.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import schedule

if TYPE_CHECKING:
    from typing_extensions import Unpack  # type checkers know it even where it is not installed

# Which module a class comes from decides the adapter: nothing is imported that the program has not
# imported itself.
_ADAPTERS = (
    ("keras", ("optimizers", "Optimizer"), "amp_tf.loss_scaling.keras3"),
    ("tf_keras", ("optimizers", "Optimizer"), "amp_tf.loss_scaling.tf_keras"),
    ("tf_keras", ("optimizers", "legacy", "Optimizer"), "amp_tf.loss_scaling.tf_keras"),
    ("tensorflow", ("compat", "v1", "train", "Optimizer"), "amp_tf.loss_scaling.v1"),
)


class LossScaleSettings(schedule.ScheduleSettings, total=False):
    """The settings of :func:`LossScaleOptimizer` beside the first scale.

    Only Keras 3 has ``name``.
    """

    dynamic_growth_steps: int
    name: str | None


def LossScaleOptimizer(  # noqa: N802 - the name that Keras gives the class
    inner_optimizer: Any, initial_scale: float = 2.0**15, **settings: Unpack[LossScaleSettings]
) -> Any:
    """Wraps an optimizer: it then scales its loss, unscales gradients and skips nonfinite steps.

    The wrapper is of the kind that the optimizer's own library accepts.

    Args:
        inner_optimizer: a Keras 3, tf_keras (new or legacy) or ``tf.compat.v1.train`` optimizer,
            not yet wrapped.
        initial_scale: the first loss scale.
        **settings: ``dynamic_growth_steps=2000``, ``dynamic=True``, ``enabled=True``,
            ``growth_factor=2.0``, ``backoff_factor=0.5``, ``hysteresis=1``, ``min_scale=2**-24``,
            ``max_scale=2**127`` as in :func:`amp_tf.loss_scaling.schedule.build_schedule`; and
            ``name`` for Keras 3, by default the inner optimizer's.

    Raises:
        TypeError: ``inner_optimizer`` is not an optimizer of these libraries.
        ConfigError: it is wrapped already, or a setting is unknown or outside its range.
    """
    if (factor := getattr(inner_optimizer, "loss_scale_factor", None)) is not None:
        raise ConfigError(
            f"the optimizer scales its loss already, by loss_scale_factor={factor}",
            where="LossScaleOptimizer",
            fix=(
                "Leave out loss_scale_factor, or use LossScaleOptimizer(…, initial_scale=…, "
                "dynamic=False)"
            ),
        )
    if is_loss_scaled(inner_optimizer):
        raise ConfigError(
            "the optimizer is a LossScaleOptimizer already",
            where="LossScaleOptimizer",
            fix="Wrap it once",
        )
    adapter = find_adapter(inner_optimizer)
    if not adapter:
        raise TypeError(
            "LossScaleOptimizer: expected an optimizer of keras, tf_keras or tf.compat.v1.train, "
            f"got {inner_optimizer!r} of type "
            f"{type(inner_optimizer).__module__}.{type(inner_optimizer).__qualname__}."
        )
    return importlib.import_module(adapter).wrap(inner_optimizer, initial_scale, **settings)


def find_adapter(optimizer: Any) -> str:
    """Returns the name of the module that wraps an optimizer; empty if there is none."""
    for module_name, path, adapter in _ADAPTERS:
        cls: Any = sys.modules.get(module_name)
        for part in path:
            cls = getattr(cls, part, None)
        if cls is not None and isinstance(optimizer, cls):
            return adapter
    return ""


def is_loss_scaled(optimizer: Any) -> bool:
    """Tells whether the optimizer scales its loss already.

    This package, Keras, tf_keras and TF1 have wrappers that do, and Keras has a constant factor.
    """
    wrappers = {"LossScaleOptimizer", "LossScaleOptimizerV3", "MixedPrecisionLossScaleOptimizer"}
    if any(cls.__name__ in wrappers for cls in type(optimizer).__mro__):
        return True
    return getattr(optimizer, "loss_scale_factor", None) is not None
