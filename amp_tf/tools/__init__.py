"""Compares, tunes and times programs from outside, and measures this machine.

The core converts without this package and imports nothing of it. The command line imports its
tools.
"""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 2


def some(texts: Sequence[str]) -> str:
    """Joins the first two of some texts, and tells how many more there are."""
    joined = ", ".join(texts[:_SHOWN])
    if len(texts) > _SHOWN:
        return f"{joined} and {len(texts) - _SHOWN} more"
    return joined
