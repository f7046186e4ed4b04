"""How amp_tf comes into a program: called by ``_amp_tf_start``, ``amp-tf run`` and ``python -m amp_tf``.

It runs before TensorFlow is imported, so it is small, reads no settings (that happens when TensorFlow is there) and
never raises.

If a Python that began with the switch on turns it off itself, ``_amp_tf_start`` loads the package all the same, so that
somebody is there to say so at exit. Settings without the switch are told at exit by ``_amp_tf_start`` alone, unless
somebody read them.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost more than the rest of the start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def start() -> None:
    """Lets amp_tf look at the environment once TensorFlow is imported, unless ``AMP_TF_DISABLE`` is set. Idempotent."""
    try:
        if os.environ.get("AMP_TF_DISABLE", "").strip().lower() in ("1", "true"):
            return
        from amp_tf.hooks import imports

        imports.watch("keras", "tf_keras")  # Keras imports TensorFlow, so its own import has begun by then
        imports.after_import("tensorflow", _on_tensorflow)
    except Exception as error:
        _say(error)


def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
    """Starts, and lets the import that is under way be noticed: for the finder of ``_amp_tf_start``.

    Returns:
        The module's own spec, watched, or ``None`` where amp_tf is disabled or the module does not exist.
    """
    start()
    try:
        from amp_tf.hooks import imports

        return imports.find_spec(name, path, target)
    except Exception as error:
        _say(error)
        return None


def _on_tensorflow(name: str) -> None:
    from amp_tf.hooks import environment

    environment.follow()


def _say(error: BaseException) -> None:
    import sys

    print(f"amp_tf: stays off: {type(error).__name__}: {error}", file=sys.stderr)
