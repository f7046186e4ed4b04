"""Writes the report of a process to a file when it ends (``AMP_TF_REPORT=folder``).

Python's own exit also covers an uncaught error. SIGTERM by default ends a process without it. So if
the program has no handler of its own, the report is written first, wherever the program is at that
moment, even inside C++. Nothing can be written after a crash of the interpreter or a SIGKILL.

For SIGTERM the obvious ways do not work. A Python handler runs on the main thread between two
bytecodes, and ``Server.join()`` never returns to them. Event loops need a process' only wakeup
descriptor. A signal blocked for ``sigwait`` stays blocked in the processes that the program starts.
So the handler is that of :mod:`faulthandler`, which is C: it writes the stack into a pipe, and a
thread waits at the other end. ``signal.getsignal`` still says that SIGTERM has its default, and a
handler that the program sets at any time replaces this one.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from amp_tf.config import variable_of
from amp_tf.hooks import notices, summary
from amp_tf.hooks import state as process_state
from amp_tf.hooks.patches import Patches
from amp_tf.reporting import files
from amp_tf.rewriting.pipeline import pause_garbage_collector

# Seconds, of the ten that containers are given to end in.
_SIGTERM_WAIT = 8.0
_SIGTERM_FIGURES = 3.0
# The time for the report: at least so many seconds, or a share of the run.
_LEAST_SECONDS = 0.4
_SHARE = 0.005


class _Ending:
    """The arrangements for the end of the process."""

    is_written = False
    watches_forks = False
    pipe: tuple[int, int] | None = None  #: of this process, to read from and to write to

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sigterm_lock = threading.RLock()


def install(patches: Patches) -> None:
    """Arranges for the report to be written as the process ends, if the settings name a folder.

    Idempotent.
    """
    folder = process_state.settings().report_path
    if not folder:
        return
    try:  # so that an error shows before anything is trained
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        _warn(folder, error)
    _watch_sigterm()


def write(most_seconds: float = float("inf")) -> None:
    """Writes the report once, if a folder was named, with at most so many seconds for its figures.

    Never raises.
    """
    ending = process_state.record(_Ending)
    with ending.lock:
        folder = process_state.settings().report_path
        if ending.is_written or not folder:
            return
        ending.is_written = True
        try:
            seconds = min(most_seconds, max(_LEAST_SECONDS, _SHARE * process_state.seconds()))
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


def _watch_sigterm() -> None:
    """Has SIGTERM write the report before it ends the process, unless the program handles it.

    Idempotent.
    """
    ending = process_state.record(_Ending)
    with ending.sigterm_lock:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        faulthandler.unregister(signal.SIGTERM)  # the program may have removed a handler of its own
        if ending.pipe is None:
            ending.pipe = os.pipe()
            reader, writer = ending.pipe
            os.set_blocking(writer, False)  # nobody reads a second time
            name = "amp_tf SIGTERM"
            threading.Thread(target=_wait, args=(reader,), name=name, daemon=True).start()
            _watch_forks(ending)
        # All threads, because for one that Python does not know, such as a server's, nothing would
        # be written.
        faulthandler.register(signal.SIGTERM, file=ending.pipe[1], all_threads=True)


def uninstall() -> None:
    """Restores SIGTERM's default, unless the program handles it; the report is still written.

    Idempotent.
    """
    ending = process_state.record(_Ending)
    with ending.sigterm_lock:
        if ending.pipe is not None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            faulthandler.unregister(signal.SIGTERM)


def _wait(pipe: int) -> None:
    os.read(pipe, 1)
    # on a thread of its own, with a time limit, because the program's threads may hold any lock
    try:
        process_state.note(ended="by SIGTERM")
        writer = threading.Thread(
            target=write, args=(_SIGTERM_FIGURES,), name="amp_tf report", daemon=True
        )
        writer.start()
        writer.join(_SIGTERM_WAIT)
    finally:
        # Or a rewrite in progress would install the handler again.
        with process_state.record(_Ending).sigterm_lock:
            uninstall()
            os.kill(os.getpid(), signal.SIGTERM)


def _watch_forks(ending: _Ending) -> None:
    """Restores SIGTERM's default in forked children, such as workers of a pool. Idempotent.

    The signal is blocked while a thread forks: a child that received it too early would write into
    its parent's pipe.
    """
    if ending.watches_forks:
        return
    ending.watches_forks = True

    def hold() -> None:
        here = process_state.current().here
        here.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, process_state.current().here.blocked)

    def leave_parent() -> None:
        # A thread that the child does not have may have held the old one.
        ending.sigterm_lock = threading.RLock()
        uninstall()
        for end in ending.pipe or ():
            os.close(end)
        ending.pipe = None
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=leave_parent)
