"""``AMP_TF_WATCHDOG=1``: a step of ``fit`` that goes wrong in 16 bit is done again, with the layer at fault in float32.

A step, one batch at a time (:mod:`watched`)::

    the step, guarded: with gradients that are not finite, or a loss above the limit, no trained variable is written
    fine                         go on; the loss moves the limit
    the loss scale was too high  go on as without the watchdog: loss scaling has lowered it, and drops the batch
    the batch in float32, from the same variables, held so that none is written:
        not finite there too     bad data: said with the batch's number; what else the step wrote is put back
        no smaller loss there    a hard batch: the step is made, without the limit
        fine there               precision: the layer at fault joins the lock (:mod:`reverts`), the step is traced again
                                 and made again with the same batch, from the same state; it counts once

The flags are the loss, which a forward pass that is not finite makes so or whose gradients it does, and whether the
gradients are finite, which loss scaling asks in any case: reductions over every tensor would cost a pass over each of
them in every step, and find only what neither loss nor gradients see. Where a value first is not finite, and in
which layer, is found on the batch at fault by :mod:`amp_tf.tools.comparing`.

A step is watched only where it is known how to do it again exactly (:func:`why_not`, :meth:`Watched.why_not`).
Elsewhere the program trains as without the watchdog, and a warning at its first step says why.

An optimizer without a loss scale is wrapped by one that stays 1, as a guard: in bfloat16 nothing is scaled, but a step
that is not finite is skipped as well. The wrapper is there only while the step is traced: the model keeps the user's
optimizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.hooks import notices, state, summary
from amp_tf.hooks.patches import Patches
from amp_tf.oplists.targets import resolve_target
from amp_tf.tools import train_functions
from amp_tf.tools.train_functions import owner_of, steps_a_call

_config: AmpConfig | None = None
_patches = Patches()


def install(config: AmpConfig) -> None:
    """Watches train functions that are made from now on. Idempotent."""
    global _config
    _config = config
    from amp_tf.tools.watchdog import reverts

    reverts.begin(config)
    summary.add_part(reverts.describe)
    for library in ("keras", "tf_keras"):
        if hasattr(sys.modules.get(library), "Model"):
            _patches.put(*train_functions.patch(library, _watch))


def uninstall() -> None:
    """Watches nothing any more. Idempotent."""
    global _config
    _config = None
    _patches.restore()
    if reverts := sys.modules.get("amp_tf.tools.watchdog.reverts"):
        reverts.end()


def _watch(model: Any, owner: Any, make: Callable[[], Any]) -> Any:
    if _config is None or model.optimizer is None:
        return model.train_function
    import tensorflow as tf

    from amp_tf.callbacks import has_loss_scale
    from amp_tf.loss_scaling import LossScaleOptimizer
    from amp_tf.tools.watchdog import reverts
    from amp_tf.tools.watchdog.watched import Watched

    what, fix = f"model {model.name!r} is not watched", "It trains as without the watchdog; please report this"
    with notices.surviving("watchdog.not_watched", what, where="watchdog", fix=fix):
        if why := why_not(model, owner, _config):
            reverts.tell_not_watched(model.name, why)
            return model.train_function
        optimizer = model.optimizer
        if not has_loss_scale(model):
            optimizer = LossScaleOptimizer(optimizer, initial_scale=1.0, dynamic=False)
            optimizer._scaler.label = ""  # a scale that stays 1 is not worth a word at exit
            if hasattr(model.optimizer, "_track_trackable"):  # nor a place in checkpoints, of legacy optimizers either
                tf.__internal__.tracking.AutoTrackable._delete_tracking(model.optimizer, "loss_scale")
        return Watched(make, model, optimizer, owner, lambda: _config)
    return model.train_function


def why_not(model: Any, owner: Any, config: AmpConfig) -> str:
    """Why a compiled model's steps are not watched, as far as its settings say; empty if they are."""
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
