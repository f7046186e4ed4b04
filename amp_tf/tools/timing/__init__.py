"""Times a program's own steps in float32 and with amp_tf, in turns, and says which is faster.

``amp-tf time -- python train.py`` runs the program in rounds, in each once without amp_tf and once
with it (``rounds``). Every Python below the command calls :func:`install`. Steps are measured by
the clock of reports (:mod:`amp_tf.hooks.step_times`); once there are enough, the program ends, as
by ``sys.exit`` (``recording``). ``amp_tf.time`` does the same with a function in this process.

This package itself is imported by every Python below the command, so it imports little.
"""

from __future__ import annotations

import os

from amp_tf.hooks import imports

#: names the folder for the answer; internal, so it is in no table of variables
FOLDER = "_AMP_TF_TIME"
STEP = "_AMP_TF_TIME_STEP"  #: names the step to time; empty for the one that takes longest
PYTHON = "python"  #: the mark of a Python that found amp_tf


def install() -> None:
    """Times steps once TensorFlow or Keras is imported, if the command's variable names a folder
    that exists.
    """
    folder = os.environ.get(FOLDER, "")
    if not os.path.isdir(folder):
        return
    open(os.path.join(folder, PYTHON), "a").close()
    # Keras imports TensorFlow, so its own import has begun by then.
    imports.watch("keras", "tf_keras")
    for library in ("tensorflow", "keras", "tf_keras"):
        imports.after_import(library, _on_import)


def _on_import(library: str) -> None:
    from amp_tf.tools.timing import recording

    recording.start(os.environ[FOLDER], os.environ.get(STEP, ""))
