"""Warns where a program uses Keras' own mixed precision as well.

Using both does no harm: Keras' layers cast by themselves, so amp_tf finds them in 16 bit and converts what is left in
float32; an optimizer that Keras wrapped for its loss scale is not wrapped again. But nobody wants both, and
measurements then mostly show Keras' precision. Every policy, global or of one layer, is an object of one class in each
library, so its constructor is patched.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from amp_tf.config import ENABLE_VAR, AmpConfig
from amp_tf.hooks import notices
from amp_tf.hooks import state as process_state
from amp_tf.hooks.patches import Patches, calling

_NARROW = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16")

_patches = Patches()


def install(config: AmpConfig) -> None:
    """Watches the Keras libraries that are imported by now. Idempotent; call it again after another was imported."""
    for library in ("keras", "tf_keras"):
        if hasattr(sys.modules.get(library), "layers"):  # which is there once the library's import is done
            # Its old names are in every version of both; keras.dtype_policies is there since Keras 3.0.5.
            home = importlib.import_module(f"{library}.mixed_precision")
            if _patches.put(home.Policy, "__init__", calling(_watch)):
                _notice(home.global_policy())


def uninstall() -> None:
    """Stops watching for policies. Idempotent."""
    _patches.restore()


def _watch(init: Any, policy: Any, /, *args: Any, **kwargs: Any) -> None:
    init(policy, *args, **kwargs)
    _notice(policy)


def _notice(policy: Any) -> None:
    name = getattr(policy, "name", None)
    if name in _NARROW:
        process_state.note(policy=name)
        notices.warn_once(
            "keras_policy",
            "the program asks for 16 bit by itself: its layers keep the types that the policy gives them and amp_tf "
            "converts what they leave in float32",
            where=f"Keras policy {name!r}",
            fix=f"Take one of the two: remove the policy, or unset {ENABLE_VAR}",
        )
