"""``AMP_TF_REPORT=folder``: writes the report of a process to a file when it ends, also when SIGTERM ends it.

If TensorBoard's files are in that folder, its scalars are written beside them, as a run with the report's name.

Python's own exit also covers an uncaught error. SIGTERM by default ends a process without it, so where the program has
no handler of its own the report is written first, wherever the program is at that moment. Nothing can be written after
a crash of the interpreter or a SIGKILL.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from amp_tf.config import AmpConfig
from amp_tf.hooks.process import notices, sigterm
from amp_tf.hooks.process import state as process_state

VARIABLE = "AMP_TF_REPORT"
_SIGTERM_WAIT, _SIGTERM_FIGURES = 8.0, 3.0  # seconds, of the ten that containers are given to end in
_LEAST_SECONDS, _SHARE = 0.4, 0.005  # of the run, for the report
_lock = threading.Lock()
_is_written = False


def install(config: AmpConfig) -> None:
    """Arranges for the report to be written as the process ends, if the configuration names a folder. Idempotent."""
    before = process_state.current().config
    process_state.note(config=config)
    if config.report_path and (before is None or before.report_path != config.report_path):
        _check_folder(config.report_path)
    if config.report_path:
        sigterm.watch(_end_by_sigterm)


def uninstall() -> None:
    """Restores SIGTERM's default; what was rewritten so far is still reported. Idempotent."""
    sigterm.unwatch()


def write(most_seconds: float = float("inf")) -> None:
    """Writes the report once, if a folder was named; an error is printed in one line. Never raises.

    Args:
        most_seconds: for the figures of the report that are tried.
    """
    global _is_written
    with _lock:
        if not _is_written:
            _is_written = True
            _try_to_write(most_seconds)


def _try_to_write(most_seconds: float) -> None:
    folder = process_state.settings().report_path
    if not folder:
        return
    try:
        with _no_garbage_collection():
            _write(folder, min(most_seconds, max(_LEAST_SECONDS, _SHARE * process_state.seconds())))
    except OSError as error:
        _tell(folder, error)
    except Exception as error:  # must not disturb the end of the user's program
        print(f"amp_tf: no report: {type(error).__name__}: {error}", file=sys.stderr)


def _write(folder: str, seconds: float) -> None:
    import json

    from amp_tf.hooks.process import summary
    from amp_tf.reporting import files
    from amp_tf.reporting.document import make_document

    document = make_document(summary.report(), seconds=seconds)
    name = f"amp_tf_{socket.gethostname()}_{os.getpid()}_{time.time_ns() // 1_000_000}"
    Path(folder).mkdir(parents=True, exist_ok=True)
    files.put(Path(folder) / f"{name}.json", json.dumps(document))
    if files.holds_logs(Path(folder)):
        files.write_scalars(document, Path(folder) / name)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turns garbage collection off in the block: one pass over TensorFlow's objects takes longer than the report."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _check_folder(folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        _tell(folder, error)


def _tell(folder: str, error: OSError) -> None:
    notices.warn_once(
        "report.folder",
        f"cannot write to {folder!r} ({error.strerror or error})",
        where=VARIABLE,
        fix="The run goes on without a report; name a folder that can be written",
    )


def _end_by_sigterm() -> None:
    """Writes the report on a thread of its own, with a time limit, because the program's threads may hold any lock."""
    process_state.note(ended="by SIGTERM")
    writer = threading.Thread(target=write, args=(_SIGTERM_FIGURES,), name="amp_tf report", daemon=True)
    writer.start()
    writer.join(_SIGTERM_WAIT)
