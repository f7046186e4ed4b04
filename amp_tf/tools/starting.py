"""Starts a tool in the programs that ``amp-tf compare``, ``tune`` and ``time`` run.

The command names the tool, and a folder for its answer, in the environment of the program. Every
Python below the command calls :func:`install`, so this module imports little. The tool's own module
is imported with TensorFlow or Keras.
"""

from __future__ import annotations

import importlib
import os
import sys

from amp_tf.hooks import imports

TYPE_CHECKING = False  # the name that type checkers know; importing typing costs every start
if TYPE_CHECKING:
    from types import TracebackType

# Internal, so they are in no table of variables.
TOOL = "_AMP_TF_TOOL"  #: names the tool's module in this package
FOLDER = "_AMP_TF_FOLDER"
PYTHON = "python"  #: the mark of a Python that found amp_tf
TENSORFLOW = "tensorflow"  #: the mark of one that imported TensorFlow
_LIBRARIES = (TENSORFLOW, "keras", "tf_keras")


def install() -> None:
    """Waits for the imports of TensorFlow and Keras, if the folder exists."""
    folder = os.environ.get(FOLDER, "")
    if not os.path.isdir(folder):
        return
    mark(folder, PYTHON)
    sys.excepthook = _except_interrupts
    # Keras imports TensorFlow, so its own import has begun by then.
    imports.watch("keras", "tf_keras")
    for library in _LIBRARIES:
        imports.after_import(library, _on_import)


def mark(folder: str, name: str) -> None:
    """Leaves a mark in the folder."""
    open(os.path.join(folder, name), "a").close()


def _except_interrupts(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Hides the traceback of an interrupt: the command itself says that it was interrupted."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _on_import(library: str) -> None:
    folder = os.environ[FOLDER]
    if library == TENSORFLOW:
        mark(folder, TENSORFLOW)
    importlib.import_module(f"amp_tf.tools.{os.environ[TOOL]}").start(library, folder)
