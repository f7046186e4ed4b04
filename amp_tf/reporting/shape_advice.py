"""Finds products whose sizes are slow on 16-bit hardware.

There are two grades: *works*, which is every size, because no current TensorFlow refuses one; and *efficient*: every
size is a multiple of 8, and at least 64 (NVIDIA's guide to mixed precision). Sizes that are not static are unknown.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from amp_tf.graph.sizes import Shape
from amp_tf.oplists.table import FILTERS, MATRIX_PRODUCTS
from amp_tf.painting.prices import input_shapes
from amp_tf.reporting.graph_figures import GraphFigures
from amp_tf.reporting.layers import layer_of

MULTIPLE = 8
LEAST = 64
EFFICIENT, WORKS, UNKNOWN = "efficient", "works", "unknown"


@dataclasses.dataclass(frozen=True)
class Advice:
    """Products of one layer and op with the same sizes.

    Attributes:
        layer, op: where.
        sizes: by name; -1 for one that is not known.
        grade: ``efficient``, ``works`` or ``unknown``.
        nodes: how many.
        operations: of one run of the graph; 0 if unknown.
        text: what to do, empty where there is nothing.
    """

    layer: str
    op: str
    sizes: Mapping[str, int]
    grade: Annotated[str, (EFFICIENT, WORKS, UNKNOWN)]
    nodes: int
    operations: float
    text: str


def advise(graphs: Sequence[GraphFigures]) -> list[Advice]:
    """Grades all products whose sizes are known by their op; those with most operations first."""
    found: dict[tuple[str, str, tuple[tuple[str, int], ...]], list[float]] = {}
    for graph in graphs:
        for node in np.flatnonzero(graph.figures.is_product).tolist():
            sizes = _sizes(graph, node)
            if sizes is not None:
                key = (layer_of(graph.view.names[node]), graph.view.ops[node], tuple(sizes.items()))
                found.setdefault(key, []).append(float(graph.figures.work[node]))
    advices = [
        Advice(layer, op, dict(sizes), grade(dict(sizes)), len(work), sum(work), _words(dict(sizes)))
        for (layer, op, sizes), work in found.items()
    ]
    return sorted(advices, key=lambda advice: -advice.operations)


def grade(sizes: Mapping[str, int]) -> str:
    """The grade of a product's sizes."""
    known = [size for size in sizes.values() if size >= 0]
    if not all(map(_is_efficient, known)):
        return WORKS
    return EFFICIENT if len(known) == len(sizes) else UNKNOWN


def _is_efficient(size: int) -> bool:
    return size % MULTIPLE == 0 and size >= LEAST


def _words(sizes: Mapping[str, int]) -> str:
    bad = {name: size for name, size in sizes.items() if size >= 0 and not _is_efficient(size)}
    return ", ".join(f"{name} {_better(size)}" for name, size in bad.items())


def _better(size: int) -> str:
    """The size to use, such as ``1000 → 1008``; or what a multiple is below."""
    if size % MULTIPLE:
        return f"{size} → {MULTIPLE * math.ceil(size / MULTIPLE)}"
    return f"{size}, below {LEAST}"


def _sizes(graph: GraphFigures, node: int) -> dict[str, int] | None:
    view, shapes, op = graph.basis.view, graph.basis.shapes, graph.view.ops[node]
    inputs, outputs = input_shapes(view, node, shapes), shapes.output_shapes(view.names[node])
    if op in FILTERS:
        is_input, number = FILTERS[op]
        kernel = _at(inputs if is_input else outputs, number)
        return {"channels in": _size(kernel, -2), "channels out": _size(kernel, -1)}
    if op in MATRIX_PRODUCTS:
        result, first = _at(outputs, 0), _at(inputs, 0)
        proto = view.protos[node]  # parsed at each access
        is_transposed = any(proto.attr[name].b for name in ("transpose_a", "adj_x"))
        return {
            "rows": _size(result, -2),
            "inner": _size(first, -2 if is_transposed else -1),
            "columns": _size(result, -1),
        }
    return None


def _at(shapes: Sequence[Shape | None], number: int) -> Any:
    return shapes[number] if number < len(shapes) else None


def _size(shape: Shape | None, place: int) -> int:
    return -1 if shape is None or len(shape) < -place else shape[place]
