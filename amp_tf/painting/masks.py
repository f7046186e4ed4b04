"""Masks over the three index spaces of a graph, the ways between them, and reachability.

A mask is a bool array with one entry for each node, each unit or each edge; its name says which.
The three names are aliases of one type, because to mypy the result of ``a | b`` is an array, so
that distinct types would need a cast at each operator.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from amp_tf.graph.algorithms import flood
from amp_tf.graph.datatypes import Mask
from amp_tf.graph.view import Adjacency, GraphView

NodeMask: TypeAlias = Mask  #: one entry for each node of a graph
UnitMask: TypeAlias = Mask  #: one entry for each unit of a graph
EdgeMask: TypeAlias = Mask  #: one entry for each edge of a value graph


def units_of(view: GraphView, nodes: NodeMask) -> UnitMask:
    """Returns all units of some nodes."""
    found: UnitMask = view.spread(nodes)
    return found


def fixed_units(view: GraphView) -> UnitMask:
    """Returns the units whose type the op's definition fixes."""
    is_fixed = [slot.is_fixed for kind in view.of_kind for slot in kind.slots]
    found: UnitMask = view.of_slots(np.array(is_fixed, np.bool_))
    return found


def nodes_of(view: GraphView, units: UnitMask) -> NodeMask:
    """Returns the nodes that have at least one of some units."""
    node_of = np.asarray(view.unit_nodes, np.int32)
    return mask_of(node_of[units], view.node_count)


def mask_of(numbers: Iterable[int], count: int) -> Mask:
    """Returns the mask of some numbers below a count."""
    found = np.zeros(count, np.bool_)
    if not isinstance(numbers, np.ndarray):
        numbers = list(numbers)
    found[numbers] = True
    return found


def indices(mask: Mask) -> list[int]:
    """Returns the numbers whose entry is set, in order."""
    return mask.nonzero()[0].tolist()  # type: ignore[no-any-return]


class Direction(enum.Enum):
    """A direction in which edges are followed."""

    FORWARD = enum.auto()  #: from a value to its readers
    BACKWARD = enum.auto()  #: from a reader to its values
    BOTH = enum.auto()


def reach(
    links: Adjacency, seeds: Iterable[int], through: Mask, direction: Direction
) -> dict[int, int]:
    """Searches a graph breadth-first.

    Args:
        links: the adjacency of nodes or of units.
        seeds: where the search begins, in this order; they need not be in ``through``.
        through: what may be reached and passed.

    Returns:
        Each number that is reached, nearest first, with the neighbour from which it was reached.
        A seed is among them only if another one leads to it.
    """
    ways = []
    if direction is not Direction.BACKWARD:
        ways.append(links.outward)
    if direction is not Direction.FORWARD:
        ways.append(links.inward)
    causes: dict[int, int] = {}
    flood(seeds, bytearray(through.tobytes()), ways, causes)
    return causes
