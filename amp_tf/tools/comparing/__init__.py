"""Compares a step in float32 with the same step as amp_tf rewrites it, and finds where 16 bit goes
wrong.

The step is traced (``steps``) and flattened (``flattening``). Versions of it run one after another
on the same batches and variables (``joining``); their outputs are measured against float32's and
judged (``work``, ``verdicts``). If something is wrong, remedies are tried (``findings``). For
single nodes, float32 and 16 bit run in one graph, in which reductions compare them (``nodes``).

``amp-tf compare -- python train.py`` starts the program with amp_tf off and calls :func:`install`
in every Python below it. The first training step is compared in that process (``training``), on the
program's own batches, so model, data, seeds and variables are the program's own and the same in
both precisions. The command prints the result. A program that trains nothing is compared as it
ends, by its forward calls (``forward``).

After a training step the program ends, as by ``sys.exit``: nobody who asks where it goes wrong
wants hours of training after the answer, or checkpoints and logs that overwrite earlier ones. If
the comparison fails, the program gets back the batches that were taken and goes on, with one
warning.

This package itself is imported by every Python below the command, so it imports little.
"""

from __future__ import annotations

import os
import sys

from amp_tf.hooks import imports

TYPE_CHECKING = False  # the name that type checkers know; importing typing costs every start
if TYPE_CHECKING:
    from types import TracebackType

    from amp_tf.tools.comparing.training import Training

#: names the request's folder; internal, so it is in no table of variables
VARIABLE = "_AMP_TF_COMPARE"
PYTHON = "python"  #: the mark of a Python that found amp_tf
TENSORFLOW = "tensorflow"  #: the mark of one that imported TensorFlow
LIBRARIES = (TENSORFLOW, "keras", "tf_keras")
_training: Training | None = None


def install() -> None:
    """Waits for the imports of TensorFlow and Keras, if the command's variable names a folder that
    exists.
    """
    folder = os.environ.get(VARIABLE, "")
    if not os.path.isdir(folder):
        return
    open(os.path.join(folder, PYTHON), "a").close()
    sys.excepthook = _except_interrupts
    # Keras imports TensorFlow, so its own import has begun by then.
    imports.watch("keras", "tf_keras")
    for library in LIBRARIES:
        imports.after_import(library, _on_import)


def _except_interrupts(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Hides the traceback of an interrupt: the command itself says that it was interrupted."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _on_import(library: str) -> None:
    global _training
    import atexit
    from pathlib import Path

    from amp_tf.hooks import layer_paths, switch
    from amp_tf.tools.comparing import training

    if _training is None:
        _training = training.Training(training.CompareRequest.receive(Path(os.environ[VARIABLE])))
        atexit.register(_training.compare_at_exit)
    if library == TENSORFLOW:
        (_training.request.folder / TENSORFLOW).touch()
    with _training.surviving():
        switch.install(layer_paths.__name__)  # for patterns that are for layers
        training.install(_training, library)
