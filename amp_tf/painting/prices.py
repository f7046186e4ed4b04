"""What nodes take: how often each runs, and what a product costs in either type, from the shapes of its tensors."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from amp_tf.graph.algorithms import data_links, readers_of
from amp_tf.graph.sizes import Shape, Shapes, element_count, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.cost_tables import BROADCAST, CHANNELS_FIRST, POINTWISE_FIRST, TRANSPOSED, CostTable, Pair
from amp_tf.oplists.costs import CHANNELS_FIRST_LAYOUTS, CONVOLUTIONS, JOINED_AWAY, TRANSPOSING, padding_factor
from amp_tf.oplists.fusions import SWISH
from amp_tf.oplists.table import BROADCASTING, LOOP_ENTRIES, LOOP_EXITS
from amp_tf.painting.trip_counts import TYPICAL, Path, find_trip_counts
from amp_tf.painting.work import count_operations, filter_shape

_SMALL = 8  # times fewer elements: what reading them takes does not count
_MOST_LOOPS = 8  # in each other; in a broken graph there is no end to them


@dataclasses.dataclass(frozen=True)
class Runs:
    """How many times each node, and each node's readers, are expected to run while the graph runs once."""

    of_nodes: Sequence[float]
    of_readers: Sequence[float]


def count_runs(view: GraphView) -> Runs:
    """How often each node is expected to run: more often in a loop of graph nodes, once elsewhere."""
    if "Enter" not in view.ops:
        once = [1.0] * view.node_count
        return Runs(once, once)
    paths = _find_paths(view)
    trip_counts = find_trip_counts(view, paths)

    @functools.cache
    def runs(path: Path) -> float:
        return math.prod(trip_counts.get(name, TYPICAL) for name in path)

    behind = (_path_behind(view, node, path) for node, path in enumerate(paths))
    return Runs([runs(path) for path in paths], [runs(path) for path in behind])


def _find_paths(view: GraphView) -> list[Path]:
    """The loops that each node runs in."""
    paths: list[Path] = [()] * view.node_count
    readers = readers_of(view.node_count, data_links(view))
    ready = view.nodes_with(LOOP_ENTRIES)
    while ready:
        node = ready.pop()
        after = _path_behind(view, node, paths[node])
        for reader in readers[node]:
            if len(paths[reader]) < len(after) <= _MOST_LOOPS:
                paths[reader] = after
                ready.append(reader)
    return paths


def _path_behind(view: GraphView, node: int, path: Path) -> Path:
    """The loops in which a node's readers run."""
    if view.ops[node] in LOOP_ENTRIES:
        return (*path, view.protos[node].attr["frame_name"].s)
    return path[:-1] if view.ops[node] in LOOP_EXITS else path


def joined(view: GraphView) -> Iterator[tuple[int, int]]:
    """The nodes that TensorFlow's remapper will compute as one, inner and outer (:data:`amp_tf.oplists.fusions.SWISH`).

    Source of the pattern: ``FindSigmoidAndMul`` of core/grappler/optimizers/remapper.cc (TensorFlow 2.21).
    """
    if SWISH.inner not in view.ops:
        return
    ends = np.fromiter((op in (SWISH.inner, SWISH.outer) for op in view.ops), np.bool_, view.node_count)
    reads: dict[int, list[tuple[int, int]]] = {}
    for source, port, node in view.edges.at(ends[view.edges.dst_node]).rows("src_node", "src_port", "dst_node"):
        reads.setdefault(node, []).append((source, port))
    readers = np.bincount(view.edges.src_node, minlength=view.node_count)
    for outer in (node for node in reads if view.ops[node] == SWISH.outer):
        for inner, _ in reads[outer]:
            has_one_reader = view.ops[inner] == SWISH.inner and readers[inner] == 1
            if has_one_reader and sorted(reads[outer]) == sorted([*reads[inner], (inner, 0)]):
                yield inner, outer


def rows_of_joined(pairs: Iterable[tuple[int, int]]) -> Mapping[int, str]:
    """The row of the table that tells what each of these nodes takes: one does the work of both."""
    return {node: row for inner, outer in pairs for node, row in ((inner, JOINED_AWAY), (outer, SWISH.op))}


class Prices:
    """What the nodes of a graph take on a CPU, as (in float32, in 16 bit), in ns.

    Args:
        view: the graph.
        shapes: the static shapes of its tensors.
        table: what ops take.

    Attributes:
        runs: how many times each node is taken to run.
        joined: the nodes that TensorFlow's remapper will compute as one, if both have one type.
    """

    def __init__(self, view: GraphView, shapes: Shapes, table: CostTable) -> None:
        self.table = table
        self.runs = count_runs(view)
        self.joined = [*joined(view)]
        self._joined_rows = rows_of_joined(self.joined)
        self._rows: dict[int, tuple[str, str]] = {}
        self._view = view
        self._shapes = shapes
        self._found: dict[int, Pair | None] = {}

    def product(self, node: int) -> Pair | None:
        """What one run of a product takes; ``None`` if its shapes are unknown."""
        if node not in self._found:
            self._found[node] = self._find(node)
        return self._found[node]

    def op(self, node: int, elements: float) -> Pair:
        """What one run of another node takes, by the elements of the largest tensor that it reads or writes."""
        if node not in self._rows:
            self._rows[node] = row_of(self._view, node, self._shapes, self._joined_rows)
        op, variant = self._rows[node]
        return self.table.of_op(op, elements, variant)

    def casts(self, elements: float) -> Pair:
        """What casts of so many elements take, to float32 and to 16 bit, in ns."""
        return self.table.of_cast_to_float32(elements), self.table.of_cast_to_f16(elements)

    def _find(self, node: int) -> Pair | None:
        view, shapes = self._view, self._shapes
        operations = operations_of(view, node, shapes)
        if operations is None:
            return None
        tensors = (*input_shapes(view, node, shapes), *shapes.output_shapes(view.names[node]))
        elements = sum(element_count(shape) or 0 for shape in tensors)
        return price_of_product(self.table, view, node, shapes, operations, elements)


def price_of_product(
    table: CostTable, view: GraphView, node: int, shapes: Shapes, operations: float, elements: float
) -> Pair:
    """What one run of a product takes in float32 and in 16 bit, in ns.

    Args:
        table: what ops take.
        view: the graph.
        node: the product.
        shapes: the static shapes of its tensors.
        operations: that it is asked for.
        elements: of what it reads and writes.
    """
    op, variant = view.ops[node], variant_of(view, node, shapes)
    computed = operations * padding_factor(op, _kernel(view, node, shapes), variant)
    return table.of_product(op, computed, elements, variant)


def row_of(view: GraphView, node: int, shapes: Shapes, joined_rows: Mapping[int, str]) -> tuple[str, str]:
    """The op and the variant of the row that tells what a node takes that is no product.

    Args:
        view: the graph.
        node: the node.
        shapes: the static shapes of its tensors.
        joined_rows: the rows of nodes that are computed as one (:func:`rows_of_joined`).
    """
    op = joined_rows.get(node, view.ops[node])
    return op, BROADCAST if op in BROADCASTING and _is_broadcast(view, node, shapes) else ""


def _is_broadcast(view: GraphView, node: int, shapes: Shapes) -> bool:
    """Whether a tensor that it reads is known to be much smaller than its result."""
    outputs = shapes.output_shapes(view.names[node])
    result = element_count(outputs[0]) if outputs else None
    counts = (element_count(shape) for shape in input_shapes(view, node, shapes))
    return result is not None and any(count is not None and count * _SMALL <= result for count in counts)


def operations_of(view: GraphView, node: int, shapes: Shapes) -> float | None:
    """The floating-point operations of one run of a product, ``None`` where the shapes that tell are not known."""
    outputs = shapes.output_shapes(view.names[node])
    return count_operations(view.ops[node], input_shapes(view, node, shapes), outputs, equation_of(view, node))


def variant_of(view: GraphView, node: int, shapes: Shapes) -> str:
    """What stands after the op of a product in the row of the table that tells its costs."""
    attributes = view.protos[node].attr
    if any((value := attributes.get(name)) is not None and value.b for name in TRANSPOSING):
        return TRANSPOSED
    layout = attributes.get("data_format")
    if layout is None or layout.s not in CHANNELS_FIRST_LAYOUTS:
        return ""
    kernel = _kernel(view, node, shapes)
    return POINTWISE_FIRST if kernel is not None and math.prod(kernel[:-2]) == 1 else CHANNELS_FIRST


def _kernel(view: GraphView, node: int, shapes: Shapes) -> Shape | None:
    """The shape of a convolution's filter, ``None`` for other ops and where nobody knows it."""
    if view.ops[node] not in CONVOLUTIONS:
        return None
    outputs = shapes.output_shapes(view.names[node])
    return filter_shape(view.ops[node], input_shapes(view, node, shapes), outputs)


def equation_of(view: GraphView, node: int) -> str:
    """The equation of an Einsum, empty for other ops."""
    equation = view.protos[node].attr.get("equation") if view.ops[node] == "Einsum" else None
    return equation.s.decode(errors="replace") if equation else ""


def input_shapes(view: GraphView, node: int, shapes: Shapes) -> list[Shape | None]:
    """The shapes of a node's data inputs, in order."""
    return [shape_of(shapes, view.names[source], port) for source, port in view.inputs(node)]
