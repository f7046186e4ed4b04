"""Records the metrics of Keras' ``fit``: the last values of the last one."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from amp_tf.hooks.patches import Patches
from amp_tf.reporting import files
from amp_tf.tools.starting import FOLDER, TENSORFLOW

ANSWER = "metrics.json"


def start(library: str, _: str) -> None:
    """Patches ``"keras"`` or ``"tf_keras"``, which was imported."""
    if library != TENSORFLOW:
        Patches().put(sys.modules[library].Model, "fit", _fit)  # as long as the process lives


def _fit(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    result = original(self, *args, **kwargs)
    metrics = {}
    for name, values in getattr(result, "history", {}).items():
        with contextlib.suppress(IndexError, TypeError, ValueError):  # no number
            metrics[name] = float(values[-1])
    files.put_plain(Path(os.environ[FOLDER]) / ANSWER, metrics)
    return result
