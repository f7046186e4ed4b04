"""Names for new nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable


class FreshNames:
    """Makes names that no node has.

    Args:
        taken: the names that nodes have.
        suffix: ends every name, and says who made it.
    """

    def __init__(self, taken: Iterable[str], suffix: str) -> None:
        self._taken = set(taken)
        self._suffix = suffix

    def make(self, stem: str) -> str:
        """A name that begins with the stem; a number stands between it and the suffix."""
        name = next(n for i in itertools.count() if (n := f"{stem}-{i}-{self._suffix}") not in self._taken)
        self._taken.add(name)
        return name
