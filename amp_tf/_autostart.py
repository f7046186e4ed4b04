"""What ``amp_tf.pth`` and ``amp_tf.start`` call at the start of every interpreter that has amp_tf switched on.

It runs before the user's program, in every Python of the environment, so it is small: it imports no TensorFlow, reads
no settings (that happens when TensorFlow is imported) and never raises.
"""

from __future__ import annotations

import os

# The switches of config.ENV_VARS. They are read properly, and bad values are told, when TensorFlow is imported: here
# anything but a plain no is taken for a yes.
_SWITCHES = (
    "TF_ENABLE_AUTO_MIXED_PRECISION",
    "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE",
    "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING",
)
_OFF = ("", "0", "false")


def start() -> None:
    """Turns amp_tf on after TensorFlow's import, if the environment asks for it. Idempotent."""
    try:
        if os.environ.get("AMP_TF_DISABLE", "").strip().lower() in ("1", "true"):
            return
        if all(os.environ.get(name, "").strip().lower() in _OFF for name in _SWITCHES):
            return
        from amp_tf.hooks import imports

        imports.watch("keras", "tf_keras")  # Keras imports TensorFlow, so its own import has begun by then
        imports.after_import("tensorflow", _on_tensorflow)
    except Exception as error:
        _say(error)


def _on_tensorflow(name: str) -> None:
    from amp_tf.hooks import switch

    switch.enable_from_environment()


def _say(error: BaseException) -> None:
    import sys

    print(f"amp_tf: stays off: {type(error).__name__}: {error}", file=sys.stderr)
