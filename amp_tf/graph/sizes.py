"""The sizes of tensors, as far as they are known before the graph runs, and their live ranges.

Live ranges are an estimate. TensorFlow starts a node as soon as its inputs are there. So the *time*
of a node is the number of nodes on the longest path to it, and a tensor is live from the time of
its node to the time of its last reader. An op that moves no data shares the memory of its input.
Variables, constants and arguments take no memory of their own. Tensors without a known shape, the
memory that kernels take for themselves, and the elements of TensorLists are not counted. A loop
counts as a single turn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from amp_tf.graph.algorithms import flood, heaviest_ends
from amp_tf.graph.datatypes import SIZES, Indices, Mask, Node, Unit, indices
from amp_tf.graph.edges import Adjacency
from amp_tf.graph.edits import Tensor
from amp_tf.graph.view import GraphView
from amp_tf.oplists.cost_tables import FREE
from amp_tf.oplists.table import (
    CONTROL_FLOW,
    LOOP_CLOSERS,
    READ_OPS,
    REFERENCE_VARIABLES,
    WITHOUT_WAITING,
)

#: The size that stands for an unknown first dimension, which is mostly the batch.
NOMINAL_BATCH = 64
SHAPES_ATTR = "_output_shapes"
#: A live range of at least so many times is worth shortening.
LONG = 8

Shape = tuple[int, ...]


class Shapes(Protocol):
    """Gives the static shapes of tensors."""

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """Returns the shape of each output port of a node; empty if the node is not known.

        An unknown dimension is -1, an unknown shape ``None``.
        """


def shape_of(shapes: Shapes, node: str, port: int = 0) -> Shape | None:
    """Returns the shape of one output port of a node, ``None`` where not even its rank is known."""
    found = shapes.output_shapes(node)
    if port >= len(found):
        return None
    return found[port]


class KnownShapes:
    """Keeps the shapes of some nodes.

    Args:
        shapes: the shapes by the node's name.
        others: gives the shapes of all other nodes.
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[Shape | None]], others: Shapes | None = None
    ) -> None:
        self._shapes = shapes
        self._others = others

    @classmethod
    def of(cls, shapes: Shapes, names: Iterable[str]) -> KnownShapes:
        """Asks for the shapes of some nodes and keeps those that are known."""
        known = {}
        for name in names:
            found = shapes.output_shapes(name)
            if found:
                known[name] = found
        return cls(known)

    @classmethod
    def of_nodes(cls, view: GraphView) -> KnownShapes:
        """Reads the shapes that the nodes of a graph carry; TensorFlow's exporters write them."""
        shapes = {}
        for node in view.marked(SHAPES_ATTR):
            carried = view.protos[node].attr[SHAPES_ATTR].list.shape
            shapes[view.names[node]] = list(map(read_shape, carried))
        return cls(shapes)

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """Returns the shapes of a node's results, as :class:`Shapes` says."""
        if node in self._shapes or self._others is None:
            return self._shapes.get(node, ())
        return self._others.output_shapes(node)

    def and_also(self, shapes: Mapping[str, Sequence[Shape | None]]) -> KnownShapes:
        """Returns these shapes together with those of other nodes."""
        return KnownShapes({**shapes, **self._shapes})

    def filled(self) -> KnownShapes:
        """Returns the shapes with :data:`NOMINAL_BATCH` for each unknown dimension."""
        return KnownShapes({name: [*map(_filled, shapes)] for name, shapes in self._shapes.items()})


NO_SHAPES = KnownShapes({})


def read_shape(shape: Any) -> Shape | None:
    """Reads a TensorShapeProto; the numbers that Grappler gives unknown dimensions become -1."""
    if shape.unknown_rank:
        return None
    return tuple(max(dim.size, -1) for dim in shape.dim)


def _filled(shape: Shape | None) -> Shape | None:
    """Returns a shape with :data:`NOMINAL_BATCH` for each unknown dimension."""
    return shape and tuple(NOMINAL_BATCH if size < 0 else size for size in shape)


def element_count(shape: Shape | None) -> int | None:
    """Returns the number of elements, ``None`` where it is unknown.

    An unknown first dimension counts as :data:`NOMINAL_BATCH`.
    """
    if shape is None or any(size < 0 for size in shape[1:]):
        return None
    return math.prod(_filled(shape) or ())


def times_of(view: GraphView) -> tuple[npt.NDArray[np.int64], Adjacency]:
    """Returns the time of each node, which is later than those of its inputs, and the edges by
    which it is counted: all but those that close a loop, control edges included.
    """
    sources, readers = view.links
    is_forward = ~view.mask_with(LOOP_CLOSERS)[sources]
    sources = sources[is_forward]
    readers = readers[is_forward]
    every = np.ones(view.node_count, np.bool_)
    times = heaviest_ends(every, sources, readers, np.ones(view.node_count, np.int64))
    return times, Adjacency(sources, readers, view.node_count)


@dataclasses.dataclass(frozen=True)
class Lifetimes:
    """The live ranges of tensors that have memory of their own and a known size.

    Attributes:
        times: the time of each node.
        order: the edges between nodes, control edges included, without those that close a loop.
        is_bound: the nodes that may not move, and that no other node may wait for. Nodes of loops
            and branches may never run, nor may what is behind them. Reference variables change in
            place, so nodes behind them are bound, too.
        owners: for each tensor that is passed on without a copy, the tensor that owns its memory.
        elements: the number of elements of each tensor that has memory.
        units: the unit of each tensor.
        reads: for each owner, its reads, directly or through ops that pass it on: the unit of the
            tensor read, the reader, and the reader's unit.
    """

    times: npt.NDArray[np.int64]
    order: Adjacency
    is_bound: Mask
    owners: Mapping[Tensor, Tensor]
    elements: Mapping[Tensor, int]
    units: Mapping[Tensor, Unit]
    reads: Mapping[Tensor, Sequence[tuple[Unit, Node, Unit]]]

    @classmethod
    def of(cls, view: GraphView, shapes: Shapes) -> Lifetimes:
        """Estimates the live ranges of a graph's tensors."""
        times, order = times_of(view)
        # Ops that move no data pass their first input on.
        passed = {}
        for node in view.nodes_with(FREE):
            if view.inputs(node):
                passed[node] = view.inputs(node)[0]
        owners: dict[Tensor, Tensor] = {}
        for node in sorted(passed, key=times.__getitem__):
            owners[node, 0] = owners.get(passed[node], passed[node])

        units = {}
        reads: dict[Tensor, list[tuple[Unit, Node, Unit]]] = {}
        columns = ("src_node", "src_port", "dst_node", "dst_position", "src_unit", "dst_unit")
        for node, port, reader, position, src_unit, dst_unit in view.edges.rows(*columns):
            tensor = (node, port)
            units[tensor] = src_unit
            if position or reader not in passed:
                owner = owners.get(tensor, tensor)
                reads.setdefault(owner, []).append((src_unit, reader, dst_unit))

        elements = {}
        has_memory = ~view.mask_with(READ_OPS | WITHOUT_WAITING)
        for node, port in reads:
            if not has_memory[node]:
                continue
            count = element_count(shape_of(shapes, view.names[node], port))
            if count:
                elements[node, port] = count

        is_bound = view.mask_with(CONTROL_FLOW | REFERENCE_VARIABLES)
        seeds = indices(is_bound)
        is_bound[flood(seeds, bytearray(~is_bound), [order.outward])] = True
        return cls(times, order, is_bound, owners, elements, units, reads)

    def bytes_over_time(self, dtypes: Sequence[int] | Indices) -> npt.NDArray[np.float64]:
        """Returns how many bytes are live at each time.

        Args:
            dtypes: the type of each unit, before or after the rewrite.
        """
        change = np.zeros(int(self.times.max(initial=0)) + 2)
        for tensor, count in self.elements.items():
            size = count * SIZES.get(int(dtypes[self.units[tensor]]), 0)
            first, last = self.span(tensor)
            change[first] += size
            change[last + 1] -= size
        return np.cumsum(change)

    def last_input(self, reader: Node, without: Container[Node] = ()) -> Node | None:
        """Returns the node that a reader waits for longest; ``None`` if there is none.

        Nodes that are bound, because they may not run, do not count.

        Args:
            reader: the node that waits.
            without: further nodes that do not count.
        """
        counted = []
        for node in self.order.fanins(reader):
            if node not in without and not self.is_bound[node]:
                counted.append(node)
        return max(counted, key=self.times.__getitem__, default=None)

    def span(self, tensor: Tensor) -> tuple[int, int]:
        """Returns the first and the last time at which a tensor is live."""
        first = int(self.times[tensor[0]])
        ends = [int(self.times[reader]) for _, reader, _ in self.reads[tensor]]
        return first, max(first, *ends)
