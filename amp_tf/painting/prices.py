"""What nodes take: how often each runs, and what a product costs in either type, from the shapes of its tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from amp_tf.graph.frames import data_links, readers_of
from amp_tf.graph.sizes import Shape, Shapes, element_count
from amp_tf.graph.view import GraphView
from amp_tf.oplists import costs
from amp_tf.oplists.table import DEEPER
from amp_tf.painting.work import count_operations

_TURNS = 10.0  # of a loop; nobody can tell, but most turn several times
_MOST_LOOPS = 8  # in each other; in a broken graph there is no end to them


@dataclasses.dataclass(frozen=True)
class Runs:
    """How many times each node is taken to run while the graph runs once, and those that read it."""

    of_nodes: Sequence[float]
    of_readers: Sequence[float]


def count_runs(view: GraphView) -> Runs:
    """How often each node is taken to run: more in a loop of graph nodes, the same for all elsewhere."""
    ready = [node for node, op in enumerate(view.ops) if op == "Enter"]
    if not ready:
        once = [1.0] * view.node_count
        return Runs(once, once)
    depth = [0] * view.node_count
    readers = readers_of(view.node_count, data_links(view))
    while ready:
        node = ready.pop()
        after = depth[node] + DEEPER.get(view.ops[node], 0)
        for reader in readers[node]:
            if depth[reader] < after <= _MOST_LOOPS:
                depth[reader] = after
                ready.append(reader)
    behind = (count + DEEPER.get(op, 0) for count, op in zip(depth, view.ops, strict=True))
    return Runs([_TURNS**count for count in depth], [_TURNS**count for count in behind])


def product_costs(view: GraphView, node: int, shapes: Shapes) -> tuple[float, float] | None:
    """What one run of a product takes in float32 and in 16 bit, in ns, ``None`` where nobody can tell."""
    op, inputs, outputs = view.ops[node], input_shapes(view, node, shapes), shapes.output_shapes(view.names[node])
    operations = count_operations(op, inputs, outputs, equation_of(view, node))
    if operations is None:
        return None
    return costs.product_costs(op, operations, sum(element_count(shape) or 0 for shape in (*inputs, *outputs)))


def operations_of(view: GraphView, node: int, shapes: Shapes) -> float | None:
    """The floating-point operations of one run of a product, ``None`` where the shapes that tell are not known."""
    outputs = shapes.output_shapes(view.names[node])
    return count_operations(view.ops[node], input_shapes(view, node, shapes), outputs, equation_of(view, node))


def equation_of(view: GraphView, node: int) -> str:
    """The equation of an Einsum, empty for other ops."""
    equation = view.protos[node].attr.get("equation") if view.ops[node] == "Einsum" else None
    return equation.s.decode(errors="replace") if equation else ""


def input_shapes(view: GraphView, node: int, shapes: Shapes) -> list[Shape | None]:
    """The shapes of a node's data inputs, in order."""
    ends = np.array((node, node + 1), view.edges.dst_node.dtype)  # of another type numpy would convert all edges
    edges = view.edges.at(slice(*np.searchsorted(view.edges.dst_node, ends)))
    inputs: list[Shape | None] = []
    for source, port in edges.rows("src_node", "src_port"):
        told = shapes.output_shapes(view.names[source])
        inputs.append(told[port] if port < len(told) else None)
    return inputs
