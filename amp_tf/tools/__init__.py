"""What looks at a program from outside: compares, tunes and watches it, and measures this machine.

The core converts without this package and imports nothing of it. The command line imports its tools, and one row of
:mod:`amp_tf.hooks.switch` loads the watchdog by name where the settings ask for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

TYPE_CHECKING = False  # importing typing would cost the start of every Python below amp-tf compare
if TYPE_CHECKING:
    from typing import TextIO

Progress = Callable[[str], None]  #: called with what is being done; with an empty text at the end
_UP_TO = 79


def some(texts: Sequence[str], most: int, mark: str = ", ", kind: str = "") -> str:
    """The first of some texts, and how many more there are, of which kind."""
    more = f" and {len(texts) - most} more{kind}" if len(texts) > most else ""
    return f"{mark.join(texts[:most])}{more}"


def silent(_: str) -> None:
    """Shows nothing."""


def on_terminal(stream: TextIO | None = None) -> Progress:
    """Shows one line, which replaces the one before, on stderr or a stream; nothing where that is not a terminal."""
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        return silent
    return lambda text: print(f"\r\033[K{text[:_UP_TO]}", end="", file=out, flush=True)
