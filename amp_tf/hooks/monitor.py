"""``AMP_TF_MONITOR=folder``: reads the layers of each Keras model that ``fit`` trains, every so many steps."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from amp_tf.comparing import in_force
from amp_tf.comparing.in_force import InForce
from amp_tf.config import AmpConfig
from amp_tf.hooks.patches import Patches, calling
from amp_tf.hooks.process import devices, notices

_LIBRARIES = ("keras", "tf_keras")
_patches = Patches()
_monitors: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def install(config: AmpConfig) -> None:
    """Reads from now on, in the libraries that are imported by now, if the configuration names a folder. Idempotent."""
    in_force.take(InForce(config, devices.hardware))
    if not config.monitor_path:
        return
    from amp_tf.comparing.train_functions import owner_of

    for library in _LIBRARIES:
        if hasattr(sys.modules.get(library), "Model"):
            owner = owner_of(sys.modules[library].Model)
            _patches.put(owner, "make_train_function", calling(_make_train_function, config))


def uninstall() -> None:
    """Stops reading models that train from now on. Idempotent."""
    in_force.take(InForce())
    _patches.restore()


def _make_train_function(config: AmpConfig, original: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
    result = original(model, *args, **kwargs)
    try:
        if result is not None:  # tf_keras returns it, and stores it too
            model.train_function = result
        _watch(config, model)
    except Exception as error:
        _warn(f"{type(error).__name__}: {error}")
    return result if result is None else model.train_function


def _watch(config: AmpConfig, model: Any) -> None:
    from amp_tf.callbacks import loss_scale_of
    from amp_tf.comparing.monitor import Monitor, watch

    if model not in _monitors:
        assert config.monitor_path is not None
        _monitors[model] = Monitor(config.monitor_path, config.monitor_every, scale_of=loss_scale_of, warn=_warn)
    watch(model, _monitors[model])


def _warn(why: str) -> None:
    notices.warn_once(
        "monitor",
        f"a model's layers are not read ({why.rstrip('.')})",
        where="AMP_TF_MONITOR",
        fix="The training goes on without; amp-tf compare looks at one step of any program",
    )
