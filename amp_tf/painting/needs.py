"""Needs, backwards: what a reader wants of a value that is lost once the value is rounded.

x - y is exact, but where x and y are alike and rounded, it is made of their roundings; a root or a logarithm shows what
is left of them at full size. So who subtracts, takes a root or a logarithm asks for its operands in float32, and the
need passes back through what is linear, and through what only moves values, to the products that they come from. There
it ends: a product is 16 bit, whoever reads it. Where TensorFlow has fused a bias into it, the bias is what was asked
for, and is split from it (:mod:`amp_tf.rewriting.splitting`).

A need costs nothing in ordinary models, because it ends at sums and means, in which roundings of either sign cancel,
and because x - mean(x) asks nothing of x: both sides have the same rounding. What is lost there depends on sizes that
only a run knows, and is for a comparison to find.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from amp_tf.graph.indices import Mask
from amp_tf.oplists.table import (
    CONSTANTS,
    DECOMPOSING,
    FUSED_PRODUCTS,
    LINEAR,
    LOGARITHMS,
    LONG_PRODUCTS,
    ROOTS,
    SUBTRACTING,
    TOTALS,
)
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.reasons import Rule
from amp_tf.painting.values import Values


@dataclasses.dataclass(frozen=True)
class Need:
    """A row of the table.

    Attributes:
        asked_by: the ops that ask it of all that they read.
        through: the ops of the infer list that pass it on to what they read; ``None`` for all. What only moves values
            always does.
    """

    asked_by: frozenset[str]
    through: frozenset[str] | None


NEEDS = (
    Need(SUBTRACTING | ROOTS, LINEAR - TOTALS),
    Need(LOGARITHMS | DECOMPOSING | LONG_PRODUCTS, None),
)


def keep_needed(canvas: Canvas) -> None:
    """What somebody subtracts, or takes a root or a logarithm of, is painted deny, back to the product.

    Difference "need": TensorFlow converts it where it lies between or follows products.

    Example (bfloat16)::

        allow1 = MatMul(x, x)           f16
        given = Mul(allow1, x)          f16 → float32
        difference = Sub(bias, given)   f16 → float32
        root = Sqrt(difference)         f16 → float32
        allow2 = MatMul(root, x)        f16
    """
    flow = canvas.flow
    values, moving = flow.unmasked, flow.is_open & ~flow.computes
    found = np.zeros(canvas.view.node_count, np.bool_)
    causes: dict[int, int] = {}
    pointless = values.readers_of(values.nodes_of(CONSTANTS)) | _centred(values, moving)
    for need in NEEDS:
        asking = values.nodes_of(need.asked_by) & ~(values.nodes_of(SUBTRACTING) & pointless)
        passing = flow.is_open if need.through is None else flow.is_open & (moving | values.nodes_of(need.through))
        found |= asking | values.upstream(asking, through=passing, causes=causes)
    canvas.keep(found, Rule.NEEDED, causes)
    fused = flow.products & values.nodes_of(FUSED_PRODUCTS) & values.sources_of(found)
    canvas.to_split += np.flatnonzero(fused).tolist()


def _centred(values: Values, moving: Mask) -> Mask:
    """Differences of values and their own sum or mean."""
    found = np.zeros(values.view.node_count, np.bool_)
    totals = values.nodes_of(TOTALS)
    near = totals | values.downstream(totals, through=moving)

    def origin(node: int) -> int:
        seen = {node}
        while moving[node] and len(sources := values.sources_at(node)) == 1 and sources[0] not in seen:
            (node,) = sources
            seen.add(node)
        return node

    for node in np.flatnonzero(values.nodes_of(SUBTRACTING) & values.readers_of(near)).tolist():
        sides = {origin(source) for source in values.sources_at(node)}
        found[node] = any(origin(term) in sides for side in sides if totals[side] for term in values.sources_at(side))
    return found
