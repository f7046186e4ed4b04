"""Installs the patches that wait for the first training of a process."""

from __future__ import annotations

import atexit
import contextlib
from pathlib import Path

from amp_tf.hooks import layer_paths
from amp_tf.hooks.comparison import fit, functions, sessions
from amp_tf.hooks.comparison.request import TENSORFLOW, CompareRequest
from amp_tf.hooks.comparison.training import Training
from amp_tf.hooks.patches import Patches

#: Library to the modules with its patches: patches(training), rows of owner, attribute, and what makes the replacement.
MODULES = {"keras": (fit,), "tf_keras": (fit,), "tensorflow": (functions, sessions)}


def install(library: str, folder: str) -> None:
    """Patches a library that was just imported.

    Args:
        library: its name.
        folder: the request's.
    """
    global _training
    if _training is None:
        _training = Training(CompareRequest.receive(Path(folder)))
        atexit.register(_at_exit)
    if library == "tensorflow":
        _training.request.mark(TENSORFLOW)
    with _training.surviving():
        layer_paths.install(_training.request.config)  # for patterns that are for layers
        for module in MODULES[library]:
            for owner, attribute, make in module.patches(_training, library):
                _patches.put(owner, attribute, make)


def _at_exit() -> None:
    """Compares a function that was called fewer times than wanted, as the program ends."""
    if _training is not None and _training.is_awaited:
        with _training.surviving(), contextlib.suppress(SystemExit):
            functions.compare_what_is_there(_training)
            sessions.compare_what_is_there(_training)


_training: Training | None = None
_patches = Patches()
