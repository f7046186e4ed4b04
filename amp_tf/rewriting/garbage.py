"""Keeps Python's cyclic garbage collector out of a rewrite.

Reading a graph makes tens of thousands of small objects, none of them in a cycle. Each few thousand start a collection,
and in a process that holds TensorFlow and Keras a full one takes about 0.2 s, several times the rewrite itself
(measured with cProfile on ResNet-50's training graph).
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator


class _Pause:
    """Counts who asks for the pause, so that concurrent rewrites resume the collector once, and only if it was on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._holders += 1

    def end(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and self._was_enabled:
                gc.enable()


_pause = _Pause()


@contextlib.contextmanager
def pause_garbage_collector() -> Iterator[None]:
    """Pauses the collector for the length of a ``with`` block."""
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()
