"""The patch of Keras and tf_keras: the train function of a compiled model is watched.

An optimizer without a loss scale gets one that stays 1, as a guard: in bfloat16 nothing is scaled, but a step that is
not finite is skipped as well.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from amp_tf.comparing.train_functions import steps_a_call
from amp_tf.config import AmpConfig
from amp_tf.hooks.patches import Patches, calling
from amp_tf.hooks.process import devices, notices, summary
from amp_tf.oplists.targets import resolve_target

_LIBRARIES = ("keras", "tf_keras")
_config: AmpConfig | None = None
_patches = Patches()


def install(config: AmpConfig) -> None:
    """Watches train functions that are made from now on, if the settings say so. Idempotent."""
    if not config.watchdog:
        uninstall()
        return
    global _config
    _config = config
    from amp_tf.hooks.watchdog import reverts

    summary.add_part(reverts.describe)
    for library in _LIBRARIES:
        if hasattr(sys.modules.get(library), "Model"):
            model = importlib.import_module(library).Model
            owner = next(base for base in model.__mro__ if "make_train_function" in vars(base))
            _patches.put(owner, "make_train_function", calling(_make_train_function, owner))


def uninstall() -> None:
    """Watches nothing any more. Idempotent."""
    global _config
    _config = None
    _patches.restore()


def _make_train_function(owner: Any, original: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    before = model.train_function
    result = original(model, *args, **kwargs)
    if _config is None or model.train_function is before or not _can_be_watched(model, _config):
        return result
    try:
        model.train_function = _watch(owner, original, model)
    except Exception as error:
        notices.warn_once(
            "watchdog.not_watched",
            f"model {model.name!r} is not watched ({type(error).__name__}: {error})",
            where="watchdog",
            fix="It trains as without the watchdog; please report this",
        )
    return result if result is None else model.train_function  # tf_keras returns it, Keras 3 does not


def _can_be_watched(model: Any, config: AmpConfig) -> bool:
    """Whether a model's steps are converted, and may be skipped by a loss scale of ours."""
    from amp_tf.callbacks import has_loss_scale
    from amp_tf.loss_scaling import is_loss_scaled

    is_scheduled = getattr(model, "_cluster_coordinator", None) is not None  # its steps run on other machines
    if model.run_eagerly or is_scheduled or resolve_target(config, devices.hardware()).target is None:
        return False
    if has_loss_scale(model) or not is_loss_scaled(model.optimizer):
        return model.optimizer is not None
    notices.warn_once(
        "watchdog.other_scale",
        f"model {model.name!r} is not watched, because its optimizer has a loss scale that is not amp_tf's",
        where="watchdog",
        fix="Compile it with the bare optimizer, which amp_tf wraps itself",
    )
    return False


def _watch(owner: Any, original: Any, model: Any) -> Any:
    from amp_tf.callbacks import has_loss_scale
    from amp_tf.hooks.loss_scaling.keras3 import wrap_optimizer
    from amp_tf.hooks.watchdog.watched import Watched
    from amp_tf.loss_scaling.guard import Guard

    if not has_loss_scale(model):
        wrap_optimizer(model, initial_scale=1.0, dynamic=False)
        model.optimizer._scaler.label = ""  # a scale that stays 1 is not worth a word at exit
    scaler = model.optimizer._scaler
    if scaler.guard is None:
        with model.distribute_strategy.scope():
            scaler.guard = Guard()

    def make() -> Any:
        kept = model.train_function
        try:
            with _one_batch(model):
                original(model, force=True)
            return model.train_function
        finally:
            model.train_function = kept

    return Watched(make, model, scaler, owner, steps_a_call(model), lambda: _config)


@contextlib.contextmanager
def _one_batch(model: Any) -> Iterator[None]:
    """Makes functions of one batch a call in the block."""
    count = steps_a_call(model)
    if count == 1:
        yield
        return
    if hasattr(model, "_steps_per_execution") and hasattr(model._steps_per_execution, "assign"):  # tf_keras
        model._steps_per_execution.assign(1)
    else:
        model.steps_per_execution = 1
    try:
        yield
    finally:
        if hasattr(model, "_steps_per_execution") and hasattr(model._steps_per_execution, "assign"):
            model._steps_per_execution.assign(count)
        else:
            model.steps_per_execution = count
