"""Needs, backwards: what a reader wants of a value that is lost once the value is rounded.

x - y is exact, but where x and y are alike and rounded, it is made of their roundings; a root or a logarithm shows what
is left of them at full size. So who subtracts, takes a root or a logarithm asks for its operands in float32, and the
need passes back through what is linear, and through what only moves values, to the products that they come from. There
it ends: a product is 16 bit, whoever reads it. Where TensorFlow has fused a bias into it, the bias is what was asked
for, and is split from it (:mod:`amp_tf.rewriting.splitting`).

A need costs nothing in ordinary models, because it ends at sums and means, in which roundings of either sign cancel,
because a sum of a value and of a negative one asks nothing (the gradients of a Gelu and of a gate are such), and
because x - mean(x) asks nothing of x, but that the mean is not rounded: both sides have the rounding of x. What is lost
there depends on sizes that only a run knows, and is for a comparison to find.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from amp_tf.graph.attributes import of_constants
from amp_tf.graph.datatypes import Mask
from amp_tf.oplists.table import (
    DECOMPOSING,
    FUSED_PRODUCTS,
    LINEAR,
    LOGARITHMS,
    LONG_PRODUCTS,
    ROOTS,
    SCALING,
    SUBTRACTING,
    TOTALS,
)
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.reasons import Rule
from amp_tf.painting.values import Values

FARTHEST = 64  #: nodes behind a difference among which the mean is looked for that it takes off


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

        allow1 = MatMul(x, x)          f16
        given = Mul(allow1, x)         f16 → float32
        difference = Sub(bias, given)  f16 → float32
        root = Sqrt(difference)        f16 → float32
        allow2 = MatMul(root, x)       f16
    """
    flow = canvas.flow
    values, moving = flow.unmasked, flow.is_open & ~flow.computes
    found = np.zeros(canvas.view.node_count, np.bool_)
    causes: dict[int, int] = {}
    for need in NEEDS:
        asking = values.nodes_of(need.asked_by)
        if need.asked_by >= SUBTRACTING:
            differences, centred = _differences(values, moving)
            asking = (asking & ~values.nodes_of(SUBTRACTING)) | differences
            found |= centred
        passing = flow.is_open if need.through is None else flow.is_open & (moving | values.nodes_of(need.through))
        found |= asking | values.upstream(asking, through=passing, causes=causes)
    canvas.keep(found, Rule.NEEDED, causes)
    fused = flow.products & values.nodes_of(FUSED_PRODUCTS) & values.sources_of(found)
    canvas.to_split += np.flatnonzero(fused).tolist()


def _differences(values: Values, moving: Mask) -> tuple[Mask, Mask]:
    """What takes a value from another that may be like it, not from a single number; and what takes off a mean.

    The second are differences of a value and its own sum or mean, weighted or not, with that mean and what moves it.
    """
    single = of_constants(values.view, lambda number: number.size == 1, np.bool_)
    found = values.nodes_of(SUBTRACTING) & ~values.readers_of(single)
    totals, factors = values.nodes_of(TOTALS), values.nodes_of(SCALING)
    near = totals | values.downstream(totals, through=moving)
    centred = np.zeros(values.view.node_count, np.bool_)

    def way_back(node: int) -> list[int]:
        """A node, and the nodes that only move its value to it, back to the one that computed it."""
        way = [node]
        while moving[way[-1]] and len(way) < FARTHEST and len(sources := values.sources_at(way[-1])) == 1:
            way += sources
        return way

    for node in np.flatnonzero(found & values.readers_of(near)).tolist():
        ways = [way_back(source) for source in values.sources_at(node)]
        origins = {way[-1] for way in ways}
        for way in ways:
            terms = {way_back(term)[-1] for term in values.sources_at(way[-1])} if totals[way[-1]] else set()
            weighted = {way_back(factor)[-1] for term in terms if factors[term] for factor in values.sources_at(term)}
            if origins & (terms | weighted):
                centred[[node, *way]] = True
    return found & ~centred, centred
