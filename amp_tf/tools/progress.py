"""Shows what long work is doing: on a terminal at once, elsewhere in a line every half minute.

Shorter work prints no line to a log, a pipe or a job's output. A thread prints the lines, so that
they come in time although a single step takes long.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator

Progress = Callable[[str], None]  #: called with what is being done; with an empty text at the end

_EVERY_S = 30.0
_WIDTH = 79
_MINUTE = 60
_HOUR = 60  # minutes


def silent(_: str) -> None:
    """Shows nothing."""


def on_stderr(command: str) -> Progress:
    """Shows on stderr what a command is doing."""
    if sys.stderr.isatty():
        return _on_terminal
    return _Lines(command)


def teller(command: str) -> Progress:
    """Returns a function that prints a line of a command to stderr."""
    return functools.partial(print, f"{command}:", file=sys.stderr, flush=True)


@contextlib.contextmanager
def during(progress: Progress, text: str) -> Iterator[None]:
    """Shows what is being done for the length of a ``with`` block."""
    progress(text)
    try:
        yield
    finally:
        progress("")


def lasting(seconds: float) -> str:
    """Returns a time for people, such as ``40 s``, ``3 min`` or ``1 h 20 min``."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    minutes = round(seconds / _MINUTE)
    if minutes < _HOUR:
        return f"{minutes} min"
    hours, rest = divmod(minutes, _HOUR)
    return f"{hours} h {rest} min"


def _on_terminal(text: str) -> None:
    """Replaces the line before."""
    print(f"\r\033[K{text[:_WIDTH]}", end="", file=sys.stderr, flush=True)


class _Lines:
    """Prints every half minute what is being done, and for how long work has been going on."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._text = ""
        self._ended: threading.Event | None = None  #: ends the thread, if there is one

    def __call__(self, text: str) -> None:
        if not text:
            self._end()
            return
        self._text = text
        if self._ended is None:
            self._ended = threading.Event()
            name = f"{self._command} tells what it is doing"
            threading.Thread(target=self._tell, args=(self._ended,), name=name, daemon=True).start()

    def _end(self) -> None:
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    def _tell(self, ended: threading.Event) -> None:
        begin = time.monotonic()
        while not ended.wait(_EVERY_S):
            spent = lasting(time.monotonic() - begin)
            print(f"{self._command}: {self._text} ({spent} so far)", file=sys.stderr, flush=True)
