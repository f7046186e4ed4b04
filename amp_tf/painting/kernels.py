"""Where 16-bit kernels are slow, or fast only together: what the kernels of a CPU ask of the paint."""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np

from amp_tf.graph.sizes import Shape, Shapes
from amp_tf.graph.view import Edges, GraphView
from amp_tf.oplists import costs
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.prices import input_shapes
from amp_tf.painting.reasons import FORCED, Rule
from amp_tf.painting.work import filter_shape

_LONE_HALF = "a pooling or normalization and its gradient are slow in two types, and one of them stays in float32"


def drop_slow_kernels(canvas: Canvas, shapes: Shapes) -> None:
    """Leaves in float32 what has a 16-bit kernel that never pays."""
    view = canvas.view

    def kernel(node: int) -> Shape | None:
        return filter_shape(view.ops[node], input_shapes(view, node, shapes), shapes.output_shapes(view.names[node]))

    for row in costs.SLOW_KERNELS:
        of_op = [node for node, op in enumerate(view.ops) if op == row.op]
        nodes = [node for node in of_op if row.applies(view.protos[node], kernel(node))]
        units = [unit for node in nodes for unit in view.units(node) if canvas.allow[unit]]
        units = [unit for unit in units if canvas.rule[unit] not in FORCED]
        canvas.unpaint_allow(units, Rule.DOES_NOT_PAY)
        canvas.weighed.update(dict.fromkeys(units, row.why))


def kernel_pairs(canvas: Canvas) -> Iterator[list[int]]:
    """The units of gradient ops and of their forward ops that are fast only if they have one type."""
    view = canvas.view
    edges = _edges_into(view, costs.KERNEL_PAIRS)
    for source, node, position in edges.rows("src_node", "dst_node", "dst_position"):
        pair = costs.KERNEL_PAIRS.get(view.ops[node])
        if pair == (view.ops[source], position):
            first, second = view.signatures[source].outputs[0], view.signatures[node].outputs[0]
            yield [view.base[source] + first, view.base[node] + second]


def drop_lone_halves(canvas: Canvas) -> None:
    """A forward op or gradient op of a pair that is fast in one type alone stays in float32 where the other does."""
    for pair in kernel_pairs(canvas):
        painted = [unit for unit in pair if canvas.allow[unit] and canvas.rule[unit] not in FORCED]
        if len(painted) == 1 and not all(canvas.allow[unit] for unit in pair):
            canvas.unpaint_allow(painted, Rule.DOES_NOT_PAY)
            canvas.weighed.update(dict.fromkeys(painted, _LONE_HALF))


def fused_with_products(canvas: Canvas) -> dict[int, int]:
    """The painted units of ops that oneDNN computes together with a painted product, each with a unit of the product.

    They cost nothing of their own, if both have one type.
    """
    view = canvas.view
    edges = _edges_into(view, {*costs.FUSED_WITH, *(product for product, _ in costs.FUSED_WITH.values())})
    fused: list[tuple[int, int, int]] = []
    read_by: dict[tuple[str, int, int, int], int] = {}
    products = set(costs.FUSED_WITH.values())
    columns = "src_node", "src_port", "dst_node", "dst_position", "dst_unit"
    for source, port, node, position, unit in edges.rows(*columns):
        if not canvas.allow[unit]:
            continue
        op = view.ops[node]
        if (op, position) in products:
            read_by[op, position, source, port] = unit
        elif op in costs.FUSED_WITH:
            fused.append((unit, source, port))
    node_of = canvas.node_of
    keys = ((unit, (*costs.FUSED_WITH[view.ops[node_of[unit]]], source, port)) for unit, source, port in fused)
    return {unit: read_by[key] for unit, key in keys if key in read_by}


def _edges_into(view: GraphView, ops: Container[str]) -> Edges:
    """The edges that go to nodes of some ops."""
    is_wanted = np.fromiter((op in ops for op in view.ops), np.bool_, view.node_count)
    return view.edges.at(is_wanted[view.edges.dst_node])
