"""Whether this thread is in a garbage collection: there nothing of ours takes a lock or runs a graph.

A collection begins anywhere, also where this thread holds a lock, of ours or of TensorFlow's, and runs finalizers of
others: that of a session closes it, which is patched. To wait there for a lock, or for a graph that another thread
rewrites under one, may be for ever. An object whose last reference goes ends where its owner let it go, which is no
such place; only the collector tells which of the two it is.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Mapping


class _Here(threading.local):
    is_collecting = False


_here = _Here()


def watch() -> None:
    """Notes from now on, for good, when this process collects. Idempotent."""
    if _note not in gc.callbacks:
        gc.callbacks.append(_note)


def is_running() -> bool:
    """Whether this thread is in a garbage collection; never, before :func:`watch`."""
    return _here.is_collecting


def _note(phase: str, info: Mapping[str, int]) -> None:
    _here.is_collecting = phase == "start"
