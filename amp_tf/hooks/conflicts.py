"""Detects conflicts: another plugin of amp_tf's kind, and Keras' own mixed precision.

*Other plugins.* TensorFlow aborts when two register for the same device type
(``RegisterPluginOptimizerOrDie``), and does not say which are taken. So amp_tf looks at what is
loaded, and stays away if there is one.

*Keras' policies.* Using both does no harm: Keras' layers cast by themselves, amp_tf converts what
they leave in float32, and an optimizer that Keras wrapped for its loss scale is not wrapped again.
But nobody wants both, and measurements then mostly show Keras' precision. Every policy is an object
of one class in each library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from amp_tf.config import ENABLE_VAR
from amp_tf.hooks import notices, state
from amp_tf.hooks.internals import POLICIES, is_imported
from amp_tf.hooks.native import FOLDER
from amp_tf.hooks.patches import Patches

#: TensorFlow's own variable, not a setting of amp_tf
_PATH_VAR = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
#: what is wrong where another plugin is loaded, with its path, and what to do
OTHER_PLUGIN = (
    "another graph optimizer plugin is loaded, and TensorFlow takes only one, so amp_tf converts "
    "nothing ({})"
)
WITHOUT_IT = f"Uninstall that plugin, or unset {_PATH_VAR}, to use amp_tf"
_NARROW = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16")


def install(patches: Patches) -> None:
    """Watches the libraries that are imported by now.

    Idempotent; call it again after another was imported.
    """
    # Its old names are in every version of both; keras.dtype_policies is there since Keras 3.0.5.
    POLICIES.surround(patches, _make_policy)
    for library in ("keras", "tf_keras"):
        if is_imported(library):
            _notice(sys.modules[library].mixed_precision.global_policy())


def _make_policy(call: Any) -> None:
    call()
    _notice(call.args[0])


def _notice(policy: Any) -> None:
    name = getattr(policy, "name", None)
    if name in _NARROW:
        state.note(policy=name)
        notices.warn_once(
            "keras_policy",
            "the program asks for 16 bit by itself: its layers keep the types that the policy "
            "gives them and amp_tf converts what they leave in float32",
            where=f"Keras policy {name!r}",
            fix=f"Take one of the two: remove the policy, or unset {ENABLE_VAR}",
        )


def other_graph_plugins() -> list[str]:
    """Paths of the libraries in this process that export ``TF_InitGraph``, without amp_tf's own."""
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    paths = [Path(line.split(maxsplit=5)[-1]) for line in lines if ".so" in line]
    found = []
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError):  # the file is no longer there
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            if path.parent != FOLDER and hasattr(library, "TF_InitGraph"):
                found.append(str(path))
    return found
