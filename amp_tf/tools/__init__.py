"""What looks at a program from outside: compares and tunes it, and measures this machine.

The core converts without this package and imports nothing of it. The command line imports its tools.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

Progress = Callable[[str], None]  #: called with what is being done; with an empty text at the end


def some(texts: Sequence[str], most: int, mark: str = ", ", kind: str = "") -> str:
    """The first of some texts, and how many more there are, of which kind."""
    more = f" and {len(texts) - most} more{kind}" if len(texts) > most else ""
    return f"{mark.join(texts[:most])}{more}"


def silent(_: str) -> None:
    """Shows nothing."""


def on_terminal() -> Progress:
    """Shows one line on stderr, which replaces the one before; nothing where that is not a terminal."""
    if not sys.stderr.isatty():
        return silent
    return lambda text: print(f"\r\033[K{text[:79]}", end="", file=sys.stderr, flush=True)
