"""Shows what a tool is doing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Progress = Callable[[str], None]  #: called with what is being done; with an empty text at the end
_UP_TO = 79


def silent(_: str) -> None:
    """Shows nothing."""


def on_terminal(stream: Any = None) -> Progress:
    """Shows one line, which replaces the one before; nothing where the stream is not a terminal.

    Args:
        stream: where to; stderr by default.
    """
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        return silent
    return lambda text: print(f"\r\033[K{text[:_UP_TO]}", end="", file=out, flush=True)
