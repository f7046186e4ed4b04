"""Runs a function when SIGTERM arrives, even while the program is inside C++; the process then ends by the signal.

The obvious ways do not work. A Python handler runs on the main thread between two bytecodes, and ``Server.join()``
never returns to them. There is only one wakeup descriptor in a process: event loops need it, and Twisted gives up where
it finds another. A signal blocked for ``sigwait`` stays blocked in the processes that the program starts. So the
handler is that of :mod:`faulthandler`, which is C: it writes the stack into a pipe, and a thread waits at the other
end. ``signal.getsignal`` still says that SIGTERM has its default, and a handler that the program sets at any time
replaces this one.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
import threading
from collections.abc import Callable

_lock = threading.RLock()
_pipe: tuple[int, int] | None = None  # of this process, to read from and to write to
_forking = threading.local()  # the signals that a thread had blocked before its fork


def watch(ending: Callable[[], None]) -> None:
    """Arranges for SIGTERM to call a function before it ends the process, unless the program handles it. Idempotent.

    Args:
        ending: called once, on a thread of its own; the process ends by the signal when it returns.
    """
    with _lock:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            faulthandler.unregister(signal.SIGTERM)  # the program may have had a handler and removed it
            # Of all threads: for a thread that Python does not know, such as a server's, nothing would be written.
            faulthandler.register(signal.SIGTERM, file=_writing_end(ending), all_threads=True)


def unwatch() -> None:
    """Restores SIGTERM's default, unless the program handles it. Idempotent."""
    with _lock:
        if _pipe is not None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            faulthandler.unregister(signal.SIGTERM)


def _writing_end(ending: Callable[[], None]) -> int:
    global _pipe
    if _pipe is None:
        _pipe = os.pipe()
        os.set_blocking(_pipe[1], False)  # nobody reads a second time
        threading.Thread(target=_wait, args=(_pipe[0], ending), name="amp_tf SIGTERM", daemon=True).start()
        _watch_forks()
    return _pipe[1]


def _wait(pipe: int, ending: Callable[[], None]) -> None:
    os.read(pipe, 1)
    try:
        ending()
    finally:
        with _lock:  # or a rewrite in progress would install the handler again
            unwatch()
            os.kill(os.getpid(), signal.SIGTERM)


@functools.cache
def _watch_forks() -> None:
    """Restores SIGTERM's default in forked children, such as workers of a pool.

    The signal is blocked while a thread forks: a child that received it too early would write into its parent's pipe.
    """
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_leave_parent)


def _hold() -> None:
    _forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)


def _leave_parent() -> None:
    global _lock, _pipe
    _lock = threading.RLock()  # a thread that the child does not have may have held the old one
    unwatch()
    if _pipe is not None:
        for end in _pipe:
            os.close(end)
        _pipe = None
    _release()
