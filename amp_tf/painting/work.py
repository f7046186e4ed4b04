"""The work of a graph: floating-point operations of its products, and how often each node runs.

A loop iterates while its LoopCond holds, which mostly compares a counter with a bound. The greatest
constant from which the two are computed is taken as the number of iterations, such as the time
steps of a recurrent layer. The counter of a gradient begins where that of its loop ended, and so
gives the same number. A loop that another condition may end is expected to iterate no more often
than :data:`TYPICAL`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Sequence
from typing import NamedTuple

from amp_tf.graph.algorithms import reach
from amp_tf.graph.attributes import value_of, whole_number
from amp_tf.graph.datatypes import Node
from amp_tf.graph.edges import Adjacency
from amp_tf.graph.sizes import NOMINAL_BATCH, Shape, Shapes, element_count, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.oplists.cost_tables import BATCHED, CONVOLUTIONS, DEPTHWISE

TYPICAL = 10.0  #: iterations of a loop whose number is not known; most have several
_MOST_LOOPS = 8  # nested; in a broken graph they nest without end

#: The frames of the loops that a node runs in, the outermost first.
Path = tuple[bytes, ...]


def input_shapes(view: GraphView, node: Node, shapes: Shapes) -> list[Shape | None]:
    """The shapes of a node's data inputs, in order."""
    return [shape_of(shapes, view.names[source], port) for source, port in view.inputs(node)]


def filter_shape(view: GraphView, node: Node, shapes: Shapes) -> Shape | None:
    """The shape of a convolution's filter: taps, channels in, channels out.

    The last number is the channels out for each channel in if the convolution is depthwise. The
    shape is ``None`` for other ops, and if it is unknown.
    """
    if view.ops[node] not in CONVOLUTIONS:
        return None
    place, _ = CONVOLUTIONS[view.ops[node]]
    return [*input_shapes(view, node, shapes), shape_of(shapes, view.names[node])][place]


def operations_of(view: GraphView, node: Node, shapes: Shapes) -> float | None:
    """The floating-point operations of one run of a product; ``None`` if its shapes are unknown."""
    op = view.ops[node]
    equation = ""
    if op == "Einsum":
        equation = value_of(view.protos[node], "equation").s.decode(errors="replace")
    result = shape_of(shapes, view.names[node])
    return count_operations(op, input_shapes(view, node, shapes), result, equation)


def count_operations(
    op: str, inputs: Sequence[Shape | None], result: Shape | None, equation: str = ""
) -> float | None:
    """Counts a product's floating-point operations.

    A multiplication and its addition are two. The count is ``None`` for unknown shapes.
    """
    if op in CONVOLUTIONS:
        kernel, values = ((*inputs, result)[place] for place in CONVOLUTIONS[op])
        return _count_convolution(kernel, values, reads_one_channel=op in DEPTHWISE)
    if equation and "." not in equation:
        return _count_einsum(equation, inputs)
    if len(inputs) < 2 or result is None:
        return None
    if op in BATCHED:
        return _count_batched(inputs[0], result)
    # m·k, k·n and m·n elements make m·k·n multiplications: the root of the product of the three.
    cubed = 1
    for shape in (inputs[0], inputs[1], result):
        count = element_count(shape)
        if count is None:
            return None
        cubed *= count
    return 2.0 * math.sqrt(cubed)


def _count_convolution(
    kernel: Shape | None, values: Shape | None, reads_one_channel: bool
) -> float | None:
    """Each value that a filter reads or makes sums over the filter's taps."""
    count = element_count(values)
    if count is None or kernel is None or len(kernel) < 3 or min(kernel) < 0:
        return None
    summed = kernel[:-1]
    if reads_one_channel:
        summed = kernel[:-2]
    return 2.0 * count * math.prod(summed)


def _count_einsum(equation: str, inputs: Sequence[Shape | None]) -> float | None:
    """Counts an Einsum: one multiplication for each combination of its labels' indices.

    A first dimension of unknown size is taken to be the batch.
    """
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    size_of: dict[str, int] = {}
    for labels, shape in zip(terms, inputs, strict=False):
        if shape is None or len(shape) != len(labels):
            return None
        for label, size in zip(labels, shape, strict=True):
            if size >= 0:
                size_of[label] = size
    count = 1
    for label in {*"".join(terms)}:
        is_first = all(label not in term[1:] for term in terms)
        if label not in size_of and not is_first:
            return None
        count *= size_of.get(label, NOMINAL_BATCH)
    return 2.0 * count


def _count_batched(first: Shape | None, result: Shape) -> float | None:
    """Counts a batched product of matrices.

    Each element of the result is a sum over the inner dimension of the first matrix, whose other
    one is known from the result.
    """
    count = element_count(result)
    matrix = (*(first or ())[-2:], *result[-2:-1])
    if count is None or len(matrix) < 3 or min(matrix) <= 0:
        return None
    return 2.0 * count * matrix[0] * matrix[1] / matrix[2]


class Runs(NamedTuple):
    """The expected number of runs of each node, and of its readers, in one run of the graph."""

    of_nodes: Sequence[float]
    of_readers: Sequence[float]


def count_runs(view: GraphView) -> Runs:
    """Returns how often each node is expected to run: once, or more often in a loop."""
    once = [1.0] * view.node_count
    if not view.nodes_with(table.LOOP_ENTRIES):
        return Runs(once, once)
    links = Adjacency(view.edges.src_node, view.edges.dst_node, view.node_count)
    paths, behind = find_loops(view, links)
    conditions = (node for node in view.nodes_with(table.LOOP_CONDITIONS) if paths[node])
    trip_counts = {paths[node][-1]: _trip_count(view, links, node) for node in conditions}

    @functools.cache
    def runs(path: Path) -> float:
        return math.prod(trip_counts.get(name, TYPICAL) for name in path)

    return Runs(list(map(runs, paths)), list(map(runs, behind)))


def find_loops(view: GraphView, links: Adjacency) -> tuple[list[Path], list[Path]]:
    """Returns for each node the loops that it runs in, and the loops that its readers run in.

    Enter nodes lead into a loop, Exit nodes out of it, and loops may be nested.
    """
    entries = view.nodes_with(table.LOOP_ENTRIES)
    entered = {node: view.protos[node].attr["frame_name"].s for node in entries}
    paths: list[Path] = [()] * view.node_count
    left = frozenset(view.nodes_with(table.LOOP_EXITS))

    def behind(node: Node) -> Path:
        path = paths[node]
        if node in entered:
            return (*path, entered[node])
        if node in left:
            return path[:-1]
        return path

    ready = entries
    while ready:
        node = ready.pop()
        after = behind(node)
        for reader in links.fanouts(node):
            if len(paths[reader]) < len(after) <= _MOST_LOOPS:
                paths[reader] = after
                ready.append(reader)
    return paths, list(map(behind, range(view.node_count)))


def _trip_count(view: GraphView, links: Adjacency, condition: Node) -> float:
    """Estimates how often a loop iterates.

    The estimate is the least bound of its counters. A bound is the greatest constant that it is
    computed from.
    """

    def upstream(node: Node, through: Container[str]) -> list[Node]:
        is_open = view.mask_with(through)
        is_open[condition] = False
        return [*reach([node], is_open, links.inward)]

    # The terms of the condition: comparisons of a counter with a bound, and others.
    joined = {condition, *upstream(condition, table.CONJUNCTIONS)}
    terms = {source for node in joined for source, _ in view.inputs(node)} - joined
    counts = []
    for term in terms:
        numbers = (whole_number(view.protos[node]) for node in upstream(term, table.COUNTING))
        bound = max((number for number in numbers if number is not None), default=0)
        count = TYPICAL
        if bound > 1:
            count = float(bound)
        counts.append(count)
    return min(counts, default=TYPICAL)
