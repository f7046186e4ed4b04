"""What nodes take: how often each runs, and what a product costs in either type, from the shapes of its tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from amp_tf.graph.frames import data_links, readers_of
from amp_tf.graph.sizes import Shape, Shapes, element_count
from amp_tf.graph.view import GraphView
from amp_tf.oplists.cost_tables import CostTable, Pair
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


class Prices:
    """What the nodes of a graph take on a CPU, as (in float32, in 16 bit), in ns.

    Args:
        view: the graph.
        shapes: the static shapes of its tensors.
        table: what ops take.

    Attributes:
        runs: how many times each node is taken to run.
    """

    def __init__(self, view: GraphView, shapes: Shapes, table: CostTable) -> None:
        self.table = table
        self.runs = count_runs(view)
        self._view = view
        self._shapes = shapes
        self._found: dict[int, Pair | None] = {}

    def product(self, node: int) -> Pair | None:
        """What one run of a product takes; ``None`` where nobody can tell."""
        if node not in self._found:
            self._found[node] = self._find(node)
        return self._found[node]

    def op(self, node: int, elements: float) -> Pair:
        """What one run of another node takes, by the elements of the largest tensor that it reads or writes."""
        return self.table.of_op(self._view.ops[node], elements)

    def casts(self, elements: float) -> Pair:
        """What casts of so many elements take, to float32 and to 16 bit, in ns."""
        return self.table.of_cast_to_float32(elements), self.table.of_cast_to_f16(elements)

    def _find(self, node: int) -> Pair | None:
        view, shapes = self._view, self._shapes
        operations = operations_of(view, node, shapes)
        if operations is None:
            return None
        tensors = (*input_shapes(view, node, shapes), *shapes.output_shapes(view.names[node]))
        return self.table.of_product(view.ops[node], operations, sum(element_count(shape) or 0 for shape in tensors))


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
