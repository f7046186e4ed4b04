"""Tools that look at a program from outside: they compare, tune and time it, and measure this
machine.

The core converts without this package and imports nothing of it. The command line imports its
tools.
"""

from __future__ import annotations

from collections.abc import Sequence


def some(texts: Sequence[str], most: int, mark: str = ", ", kind: str = "") -> str:
    """Joins the first of some texts, and tells how many more there are, of which kind."""
    more = f" and {len(texts) - most} more{kind}" if len(texts) > most else ""
    return f"{mark.join(texts[:most])}{more}"
