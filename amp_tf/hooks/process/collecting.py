"""Tells whether this thread is inside a garbage collection, where amp_tf must not take locks or run graphs.

A collection may begin anywhere, also while this thread holds a lock of ours or of TensorFlow's, and it runs other
people's finalizers: that of a session closes it, which is patched. Waiting there for a lock, or for a graph that
another thread rewrites under one, may take for ever. An object also ends when its last reference goes, which is a safe
place; only the collector's callbacks tell one from the other.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Mapping


class _Here(threading.local):
    is_collecting = False


_here = _Here()


def watch() -> None:
    """Records from now on, permanently, when this process collects garbage. Idempotent."""
    if _note not in gc.callbacks:
        gc.callbacks.append(_note)


def is_running() -> bool:
    """Whether this thread is inside a garbage collection; always false before :func:`watch`."""
    return _here.is_collecting


def _note(phase: str, info: Mapping[str, int]) -> None:
    _here.is_collecting = phase == "start"
