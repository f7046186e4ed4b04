"""Automatic loss scaling: what ``TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING`` does to Keras, tf_keras and TF1.

:func:`install` patches each library that is imported so far and may be called again after another import. A patch acts
only if the process' graphs run in float16, which is asked when an optimizer is used, because devices are not known
before. An optimizer that already scales its loss is left alone.

Optimizers are wrapped after ``compile``, so that saved configurations name the bare optimizer and load without amp_tf.
The monitor that is added automatically only logs, and adds nothing to the history; one added by the user raises.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.hooks.patches import Patches
from amp_tf.hooks.process import notices, summary
from amp_tf.hooks.process import state as process_state
from amp_tf.loss_scaling import is_loss_scaled, ledger
from amp_tf.oplists.targets import resolve_target
from amp_tf.precision import Precision

# library -> (module, its function that returns the library's patches); a context decides whether they act
_PATCHES = {
    "keras": (("keras", "keras3_patches"),),
    "tf_keras": (("keras", "tf_keras_patches"),),
    "tensorflow": (("v1", "patches"), ("loops", "patches")),
}
_CUSTOM_LOOP = "loss_scaling.custom_loop"
_MODELS_SHOWN = 3  # in the line at exit, because a hyperparameter search trains hundreds
# what patches use, which exists once the library's import is done
_NEEDED = {"keras": ("Model", "optimizers"), "tf_keras": ("Model", "optimizers"), "tensorflow": ("compat",)}


class Context:
    """What a patch needs to know: whether the graphs of this process run in float16."""

    def __init__(self, runs_in_float16: Callable[[], bool]) -> None:
        self.runs_in_float16 = runs_in_float16

    def should_scale(self, optimizer: Any) -> bool:
        """Whether this optimizer needs a loss scale and does not have one."""
        return optimizer is not None and not is_loss_scaled(optimizer) and self.runs_in_float16()

    @property
    def is_told(self) -> bool:
        """Whether this process was warned already that a loop does not scale its loss."""
        return notices.was_said(_CUSTOM_LOOP)

    def warn_bare_loop(self, where: str) -> None:
        """Warns once that a float16 loop without an optimizer does not scale its loss, and says what to write."""
        notices.warn_once(
            _CUSTOM_LOOP,
            "variables are written by gradients of a loss that is not scaled, in float16, so small gradients are lost",
            where=where,
            fix="Write scaler = amp_tf.LossScaler() before the loop and in the step, in this order, loss = "
            "scaler.scale(loss) inside the GradientTape, gradients = scaler.unscale(gradients), and "
            "scaler.step(apply, gradients), where apply(gradients) writes the variables. For no scaling at all, or "
            "where the program scales its loss itself, set TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0",
        )

    def warn_unscaled_loop(self, where: str) -> None:
        """Warns once that a custom float16 loop does not scale its loss, and says what to write."""
        notices.warn_once(
            _CUSTOM_LOOP,
            "a custom training loop runs in float16 without loss scaling, so small gradients are lost",
            where=where,
            fix="Write optimizer = amp_tf.LossScaleOptimizer(optimizer) before the loop and, inside the GradientTape, "
            "scaled_loss = optimizer.scale_loss(loss), and take the gradients of that; apply_gradients unscales them. "
            "For no scaling at all set TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0",
        )


def survive(where: str, action: Callable[..., Any], *args: Any) -> Any:
    """Calls a part of a hook; if it fails, warns once and returns ``None``, and the program goes on."""
    try:
        return action(*args)
    except Exception as error:
        notices.warn_once(
            f"loss_scaling.{where}",
            f"automatic loss scaling failed ({type(error).__name__}: {error}); the program goes on without it",
            where=where,
            fix="Wrap the optimizer in amp_tf.LossScaleOptimizer by hand, and please report this",
        )
        return None


def install(config: AmpConfig, runs_in_float16: Callable[[], bool] | None = None) -> bool:
    """Wraps optimizers automatically from now on. Idempotent; call it again after another library was imported.

    With the precision ``bfloat16`` nothing is ever scaled, and nothing is patched. ``runs_in_float16`` is asked each
    time an optimizer is used; by default it resolves the precision on the devices that TensorFlow sees then.

    Returns:
        Whether any patch is in place.
    """
    with _lock:
        if config.precision == "bfloat16":
            uninstall()
            return False
        _context.runs_in_float16 = runs_in_float16 or functools.partial(resolves_to_float16, config)
        for library in _PATCHES:
            # import keras imports tensorflow while keras is half done
            module = vars(sys.modules.get(library, object))
            if library not in _patches and all(name in module for name in _NEEDED[library]):
                survive(f"amp_tf.hooks ({library})", _patch, library)
        summary.add_part(describe)
        return bool(_patches)


def resolves_to_float16(config: AmpConfig) -> bool:
    """Whether the graphs of this process run in float16. Asks for the GPUs, so not before a script may choose them."""
    target = resolve_target(config, process_state.hardware()).target
    return target is not None and target.precision is Precision.FLOAT16


def is_scaling() -> bool:
    """Whether losses are scaled automatically in this process. Asks for the GPUs."""
    return _context.runs_in_float16()


def replace(library: str, owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
    """Adds a patch to those of a library, which :func:`uninstall` takes back; does nothing once they are taken back."""
    with _lock:
        if library in _patches:
            _patches[library].put(owner, attribute, make)


def describe() -> str:
    """The part of the line at exit about loss scaling; empty where no loss was scaled."""
    from amp_tf.reporting import process

    seen, more = ledger.statuses()
    state = process_state.current()
    if state.off == "" and not state.idle and Precision.FLOAT16 not in process.totals().precisions:
        # the rewrite is on and no graph became float16, so no loss needed to be scaled
        seen = [(label, status) for label, status in seen if status.skipped]
    more += len(seen[:-_MODELS_SHOWN])
    is_alone = len(seen) == 1 and not more
    labels = [label for label, _ in seen]
    numbers = {label: itertools.count(1) for label in labels if labels.count(label) > 1}
    names = ["" if is_alone else f"{n} {next(numbers[n])}: " if n in numbers else f"{n}: " for n in labels]
    parts = [
        f"{name}loss scale {ledger.format_scale(status.scale)}, {status.skipped:,} of {status.steps:,} steps skipped"
        for name, (_, status) in list(zip(names, seen, strict=True))[-_MODELS_SHOWN:]
    ]
    return "; ".join([*parts, *([f"{more:,} more model{'s' * (more > 1)}"] if more else [])])


def uninstall() -> None:
    """Takes every patch back. Optimizers that were wrapped stay wrapped. Idempotent.

    A patch that was wrapped by others stays inside their wrapper, and does nothing any more.
    """
    with _lock:
        _context.runs_in_float16 = _never
        for patches in _patches.values():
            patches.restore()
        _patches.clear()


def _patch(library: str) -> None:
    homes = [(importlib.import_module(f"amp_tf.hooks.loss_scaling.{name}"), make) for name, make in _PATCHES[library]]
    rows = [row for home, make in homes for row in getattr(home, make)(_context)]
    _patches[library] = Patches()
    for owner, attribute, make in rows:
        replace(library, owner, attribute, make)


def _never() -> bool:
    return False


_lock = threading.RLock()
_context = Context(_never)
_patches: dict[str, Patches] = {}
