"""``AMP_TF_REPORT=folder``: writes the report of a process to a file when it ends, also when
SIGTERM ends it.

Python's own exit also covers an uncaught error. SIGTERM by default ends a process without it, so
where the program has no handler of its own the report is written first, wherever the program is at
that moment, even inside C++. Nothing can be written after a crash of the interpreter or a SIGKILL.

For SIGTERM the obvious ways do not work. A Python handler runs on the main thread between two
bytecodes, and ``Server.join()`` never returns to them. Event loops need a process' only wakeup
descriptor. A signal blocked for ``sigwait`` stays blocked in the processes that the program starts.
So the handler is that of :mod:`faulthandler`, which is C: it writes the stack into a pipe, and a
thread waits at the other end. ``signal.getsignal`` still says that SIGTERM has its default, and a
handler that the program sets at any time replaces this one.
"""

from __future__ import annotations

import faulthandler
import functools
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

_SIGTERM_WAIT, _SIGTERM_FIGURES = (
    8.0,
    3.0,
)  # seconds, of the ten that containers are given to end in
_LEAST_SECONDS, _SHARE = 0.4, 0.005  # of the run, for the report


class _Ending:
    is_written = False
    pipe: tuple[int, int] | None = None  # of this process, to read from and to write to

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sigterm_lock = threading.RLock()


# It stands here, because a process ends once, whatever was in force, and a forked child changes
# what it got of it.
_ending = _Ending()


def install(patches: Patches) -> None:
    """Arranges for the report to be written as the process ends, if the settings name a folder.

    Idempotent.
    """
    if folder := process_state.settings().report_path:
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
    with _ending.lock:
        folder = process_state.settings().report_path
        if _ending.is_written or not folder:
            return
        _ending.is_written = True
        try:
            seconds = min(most_seconds, max(_LEAST_SECONDS, _SHARE * process_state.seconds()))
            with (
                pause_garbage_collector()
            ):  # one pass over TensorFlow's objects takes longer than the report
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
    with _ending.sigterm_lock:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            faulthandler.unregister(
                signal.SIGTERM
            )  # the program may have had a handler and removed it
            if _ending.pipe is None:
                _ending.pipe = os.pipe()
                os.set_blocking(_ending.pipe[1], False)  # nobody reads a second time
                threading.Thread(
                    target=_wait, args=(_ending.pipe[0],), name="amp_tf SIGTERM", daemon=True
                ).start()
                _watch_forks()
            # Of all threads: for a thread that Python does not know, such as a server's, nothing
            # would be written.
            faulthandler.register(signal.SIGTERM, file=_ending.pipe[1], all_threads=True)


def uninstall() -> None:
    """Restores SIGTERM's default, unless the program handles it; what was rewritten is still
    reported. Idempotent.
    """
    with _ending.sigterm_lock:
        if _ending.pipe is not None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
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
        with _ending.sigterm_lock:  # or a rewrite in progress would install the handler again
            uninstall()
            os.kill(os.getpid(), signal.SIGTERM)


@functools.cache
def _watch_forks() -> None:
    """Restores SIGTERM's default in forked children, such as workers of a pool.

    The signal is blocked while a thread forks: a child that received it too early would write into
    its parent's pipe.
    """

    def hold() -> None:
        process_state.current().here.blocked = signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGTERM}
        )

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, process_state.current().here.blocked)

    def leave_parent() -> None:
        _ending.sigterm_lock = (
            threading.RLock()
        )  # a thread that the child does not have may have held the old one
        uninstall()
        for end in _ending.pipe or ():
            os.close(end)
        _ending.pipe = None
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=leave_parent)
