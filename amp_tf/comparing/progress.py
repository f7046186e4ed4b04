"""What a comparison is doing, for those who wait."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Progress = Callable[[str], None]  #: is told what is done now; nothing, where it is done
_UP_TO = 79


def silent(_: str) -> None:
    """Tells nobody."""


def on_terminal(stream: Any = None) -> Progress:
    """Writes one line, over the one before it; nothing where nobody looks at a terminal.

    Args:
        stream: where to; stderr by default.
    """
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        return silent
    return lambda text: print(f"\r\033[K{text[:_UP_TO]}", end="", file=out, flush=True)
