"""Names of nodes that a graph does not have, and what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from amp_tf.errors import GraphError

_SHOWN = 3


def missing_node(wanted: str, names: Sequence[str], where: str) -> GraphError:
    """The error for a node that none of the names is; it tells the closest ones."""
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
