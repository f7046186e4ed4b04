"""Starts the comparison inside a program. It is imported by every Python below the command, so it imports little."""

from __future__ import annotations

import os
import sys

from amp_tf.hooks import imports

TYPE_CHECKING = False  # the name that type checkers know; importing typing costs every start
if TYPE_CHECKING:
    from types import TracebackType

VARIABLE = "_AMP_TF_COMPARE"  # that of request.py, which imports too much
_LIBRARIES = ("tensorflow", "keras", "tf_keras")


def install() -> None:
    """Waits for the imports of TensorFlow and Keras, if the command's variable names a folder that exists."""
    folder = os.environ.get(VARIABLE, "")
    if not os.path.isdir(folder):
        return
    open(os.path.join(folder, "python"), "a").close()
    sys.excepthook = _except_interrupts
    imports.watch("keras", "tf_keras")  # Keras imports TensorFlow, so its own import has begun by then
    for library in _LIBRARIES:
        imports.after_import(library, _on_import)


def _except_interrupts(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Hides the traceback of an interrupt: the command itself says that it was interrupted."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _on_import(library: str) -> None:
    from amp_tf.hooks.comparison import waiting

    waiting.install(library, os.environ[VARIABLE])
