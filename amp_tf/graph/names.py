"""Names of nodes: of new ones, of parts of others, and of those that a graph does not have."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence

from amp_tf.errors import GraphError

HOIST_SUFFIX = "AmpTfHoist"  #: ends the names of variables' reads before loops, and of what brings them in
SPLIT_SUFFIX = "AmpTfSplit"  #: ends the names of the nodes that a fused product is split into
_PART = re.compile(rf"(.+)-\w+-\d+-{SPLIT_SUFFIX}", re.DOTALL)
_SHOWN = 3  #: of the closest names


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


def whole_of(name: str) -> str:
    """The name of the fused product that a node was a part of; of other nodes their own."""
    part = _PART.fullmatch(name) if name.endswith(SPLIT_SUFFIX) else None
    return part[1] if part else name


def missing_node(wanted: str, names: Sequence[str], where: str) -> GraphError:
    """The error for what is not a node name; it lists the closest ones."""
    close = closest(wanted, names)
    return GraphError(
        f"the graph has no node {wanted!r}",
        where=where,
        fix=f"The closest names: {', '.join(close)}" if close else "amp-tf rewrite --report lists all names",
    )


def closest(wanted: str, names: Sequence[str]) -> list[str]:
    """Up to three names, first those that end in what was typed: Keras puts the model's name before the layer's."""
    inner = sorted((name for name in names if name.endswith(f"/{wanted}")), key=len)
    return list(dict.fromkeys([*inner, *difflib.get_close_matches(wanted, names, n=_SHOWN, cutoff=0.5)]))[:_SHOWN]
