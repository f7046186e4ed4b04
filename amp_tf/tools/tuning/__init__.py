"""Finds the smallest part of a model that has to stay in float32, by training it, and writes it to
a file.

``amp-tf tune -- python train.py`` runs the program, which stays as it is. Its metric is a number
that it prints, or a name in the history of Keras' ``fit``, which is recorded here: the last value
of the last ``fit`` counts. Every Python below the command imports this package, so it imports
little.
"""

from __future__ import annotations

import os
import sys

from amp_tf.hooks import imports

TYPE_CHECKING = False  # the name that type checkers know; importing typing costs every start
if TYPE_CHECKING:
    from typing import Any

#: names the folder for the answer; internal, so it is in no table of variables
FOLDER = "_AMP_TF_METRICS"
ANSWER = "metrics.json"


def install() -> None:
    """Waits for the import of Keras, if the command's variable names a folder that exists."""
    if not os.path.isdir(os.environ.get(FOLDER, "")):
        return
    # Keras imports TensorFlow, so its own import has begun by then.
    imports.watch("keras", "tf_keras")
    for library in ("keras", "tf_keras"):
        imports.after_import(library, _on_import)


def _on_import(library: str) -> None:
    from amp_tf.hooks.patches import Patches

    Patches().put(sys.modules[library].Model, "fit", _fit)  # as long as the process lives


def _fit(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    result = original(self, *args, **kwargs)
    import contextlib
    import json
    from pathlib import Path

    from amp_tf.reporting import files

    metrics = {}
    for name, values in getattr(result, "history", {}).items():
        with contextlib.suppress(IndexError, TypeError, ValueError):  # no number
            metrics[name] = float(values[-1])
    files.put(Path(os.environ[FOLDER]) / ANSWER, json.dumps(metrics))
    return result
