"""Shapes of a graph that leaves its batch size open, for the batch that it will run with.

A function that is called with tensors runs with theirs; any other batch is assumed. TensorFlow says
of a first dimension only that it is open: whether it counts examples, or the words of all of them,
it does not say. So the elements of each tensor follow from op to op. A reshape keeps their number;
what any other op writes has as many rows as the first of its inputs whose first dimension is open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import numpy as np

from amp_tf.graph.attributes import value_of
from amp_tf.graph.datatypes import Node
from amp_tf.graph.sizes import (
    NOMINAL_BATCH,
    KnownShapes,
    Shape,
    Shapes,
    element_count,
    shape_of,
    times_of,
)
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import RESHAPING


def at_open_batch(
    view: GraphView, shapes: Shapes, products: frozenset[str], given: Sequence[Shape | None]
) -> Mapping[int, Shapes]:
    """Returns the shapes of a graph for the batch size at which it is to be weighed.

    Args:
        products: the ops whose shapes count.
        given: the shapes of the arguments of the call for which the graph is made, as far as they
            are known.

    Returns:
        The shapes by the batch size; none where the shapes of all products are known, or more than
        the first dimension of one is not.
    """
    found = [shape_of(shapes, view.names[node]) for node in view.nodes_with(products)]
    if not any(map(_is_open, found)) or any(element_count(shape) is None for shape in found):
        return {}
    batch = NOMINAL_BATCH
    elements: dict[Node, float] = {}
    for node in view.given_arguments:
        position = value_of(view.protos[node], "index").i
        shape = given[position] if position < len(given) else None
        known = shape_of(shapes, view.names[node])
        if shape and _is_open(known) and len(shape) == len(known):
            batch = shape[0]
            elements[node] = math.prod(shape)
    times, _ = times_of(view)
    for node in np.argsort(times, kind="stable").tolist():
        if node not in elements:
            count = _elements_of(view, shapes, elements, node, batch)
            if count is not None:
                elements[node] = count
    filled = {}
    for node, count in elements.items():
        name = view.names[node]
        filled[name] = _filled(shapes.output_shapes(name), count)
    return {batch: KnownShapes(filled, shapes)}


def _filled(found: Sequence[Shape | None], elements: float) -> Sequence[Shape | None]:
    """Returns the shapes of a node's results with their rows, by the elements of the first."""
    first = found[0]
    if not _is_countable(first):
        return found
    rows = max(1, round(elements / _row(first)))
    return [(rows, *shape[1:]) if _is_open(shape) else shape for shape in found]


def _is_open(shape: Shape | None) -> TypeGuard[Shape]:
    """Tells whether a shape has a first dimension without a size."""
    return shape is not None and min(shape[:1], default=0) < 0


def _is_countable(shape: Shape | None) -> TypeGuard[Shape]:
    """Tells whether all dimensions of a shape but the first have a size."""
    return shape is not None and min(shape[1:], default=0) >= 0


def _row(shape: Shape) -> int:
    """Returns the number of elements in a row of a tensor, at least one."""
    return max(1, math.prod(shape[1:]))


def _elements_of(
    view: GraphView, shapes: Shapes, elements: Mapping[Node, float], node: Node, batch: int
) -> float | None:
    """Returns the number of elements in a node's result, ``None`` where its first dimension is not
    open or nothing tells.
    """
    shape = shape_of(shapes, view.names[node])
    if not shape or min(shape) >= 0:
        return None
    rows = float(batch)
    for source, port in view.inputs(node):
        if source not in elements:
            continue
        if view.ops[node] in RESHAPING or not _is_countable(shape):
            return elements[source]
        before = shape_of(shapes, view.names[source], port)
        if _is_countable(before):
            rows = elements[source] / _row(before)
        break
    if _is_countable(shape):
        return rows * _row(shape)
    return None
