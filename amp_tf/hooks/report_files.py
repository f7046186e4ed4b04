"""Writes the report of a process to a file when it ends (``AMP_TF_REPORT=folder``).

Python's own exit covers an uncaught error, too. A signal that ends the process leaves no report,
unless the program turns it into an exit.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

from amp_tf.config import variable_of
from amp_tf.hooks import notices, summary
from amp_tf.hooks import state as process_state
from amp_tf.hooks.patches import Patches
from amp_tf.reporting import files
from amp_tf.rewriting.pipeline import pause_garbage_collector

# The time for the report's figures: at least so many seconds, or a share of the run.
_LEAST_SECONDS = 0.4
_SHARE = 0.005


def install(patches: Patches) -> None:
    """Checks the folder that the settings name, before anything is trained.

    Idempotent.
    """
    folder = process_state.settings().report_path
    if not folder:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        _warn(folder, error)


def write() -> None:
    """Writes the report, if a folder was named. Never raises."""
    folder = process_state.settings().report_path
    if not folder:
        return
    try:
        seconds = max(_LEAST_SECONDS, _SHARE * process_state.seconds())
        # One pass over TensorFlow's objects takes longer than the report.
        with pause_garbage_collector():
            document = summary.report().to_dict(seconds=seconds)
        name = f"amp_tf_{socket.gethostname()}_{os.getpid()}_{time.time_ns() // 1_000_000}"
        Path(folder).mkdir(parents=True, exist_ok=True)
        files.put(Path(folder) / f"{name}.json", json.dumps(document))
    except OSError as error:
        _warn(folder, error)
    except Exception as error:  # must not disturb the end of the user's program
        print(f"amp_tf: no report: {type(error).__name__}: {error}", file=sys.stderr)


def _warn(folder: str, error: OSError) -> None:
    notices.warn_once(
        "report.folder",
        f"cannot write to {folder!r} ({error.strerror or error})",
        where=variable_of("report_path"),
        fix="The run goes on without a report; name a folder that can be written",
    )
