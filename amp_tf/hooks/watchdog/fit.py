"""The patch of Keras and tf_keras: the train function of a compiled model is watched, where its steps can be.

An optimizer without a loss scale is wrapped by one that stays 1, as a guard: in bfloat16 nothing is scaled, but a step
that is not finite is skipped as well. The wrapper is there only while the step is traced: the model keeps the user's
optimizer.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from amp_tf.comparing.train_functions import owner_of, steps_a_call
from amp_tf.config import AmpConfig
from amp_tf.hooks.patches import Patches, calling
from amp_tf.hooks.process import notices, state, summary
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

    reverts.begin(config)
    summary.add_part(reverts.describe)
    for library in _LIBRARIES:
        if hasattr(sys.modules.get(library), "Model"):
            owner = owner_of(importlib.import_module(library).Model)
            _patches.put(owner, "make_train_function", calling(_make_train_function, owner))


def uninstall() -> None:
    """Watches nothing any more. Idempotent."""
    global _config
    _config = None
    _patches.restore()
    if reverts := sys.modules.get("amp_tf.hooks.watchdog.reverts"):
        reverts.end()


def _make_train_function(owner: Any, original: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    before = model.train_function
    result = original(model, *args, **kwargs)
    if _config is None or model.train_function is before or model.optimizer is None:
        return result
    from amp_tf.hooks.watchdog import reverts

    try:
        if why := why_not(model, owner, _config):
            reverts.tell_not_watched(model.name, why)
        else:
            model.train_function = _watch(owner, original, model)
    except Exception as error:
        notices.warn_once(
            "watchdog.not_watched",
            f"model {model.name!r} is not watched ({type(error).__name__}: {error})",
            where="watchdog",
            fix="It trains as without the watchdog; please report this",
        )
    return result if result is None else model.train_function  # tf_keras returns it, Keras 3 does not


def why_not(model: Any, owner: Any, config: AmpConfig) -> str:
    """Why a compiled model's steps are not watched, as far as its settings say; empty if they are.

    Args:
        model: of Keras or tf_keras.
        owner: the class that has the library's own ``train_step``.
        config: the settings in force.
    """
    import tensorflow as tf

    from amp_tf.callbacks import has_loss_scale
    from amp_tf.loss_scaling import is_loss_scaled

    with model.distribute_strategy.scope():
        is_distributed = tf.distribute.has_strategy()
    is_librarys = getattr(model.train_step, "__func__", None) is owner.train_step and owner_of(type(model)) is owner
    has_other_scale = is_loss_scaled(model.optimizer) and not has_loss_scale(model)
    steps = "varying" if getattr(model, "autotune_steps_per_execution", False) else steps_a_call(model)
    reasons = {
        "nothing is 16 bit on this machine": resolve_target(config, state.hardware()).target is None,
        "it runs eagerly (run_eagerly=True)": model.run_eagerly,
        f"it trains under {type(model.distribute_strategy).__name__}": is_distributed,
        "it has a train_step or make_train_function of its own": not is_librarys,
        "its optimizer is a property": "optimizer" not in vars(model),
        "its optimizer has a loss scale that is not amp_tf's (compile with the bare one)": has_other_scale,
        "XLA compiles it (jit_compile=True, which Keras 3 chooses by itself on GPUs)": model.jit_compile,
        f"it makes several steps a call (steps_per_execution={steps})": steps != 1,
    }
    return next((why for why, is_so in reasons.items() if is_so), "")


def _watch(owner: Any, original: Any, model: Any) -> Any:
    from amp_tf.callbacks import has_loss_scale
    from amp_tf.hooks.watchdog.watched import Watched
    from amp_tf.loss_scaling import LossScaleOptimizer

    optimizer = model.optimizer
    if not has_loss_scale(model):
        optimizer = LossScaleOptimizer(optimizer, initial_scale=1.0, dynamic=False)
        optimizer._scaler.label = ""  # a scale that stays 1 is not worth a word at exit
        if hasattr(model.optimizer, "_delete_tracking"):
            model.optimizer._delete_tracking("loss_scale")  # nor a place in checkpoints

    def make() -> Any:
        kept = model.train_function
        try:
            original(model, force=True)
            return model.train_function
        finally:
            model.train_function = kept

    return Watched(make, model, optimizer, owner, lambda: _config)
