"""Names for new nodes."""

from __future__ import annotations

import itertools
import re
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


SPLIT_SUFFIX = "AmpTfSplit"  #: ends the names of the nodes that a fused product is split into
_PART = re.compile(rf"(.+)-\w+-\d+-{SPLIT_SUFFIX}", re.DOTALL)


def whole_of(name: str) -> str:
    """The name of the fused product that a node was a part of; of other nodes their own."""
    part = _PART.fullmatch(name) if name.endswith(SPLIT_SUFFIX) else None
    return part[1] if part else name
