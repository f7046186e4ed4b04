"""How large tensors are, as far as it is known before the graph runs, and when they are live.

*Lifetimes* are an estimate. TensorFlow starts a node as soon as what it reads, or waits for, is
there. So the *time* of a node is the number of nodes on the longest path to it, and a tensor is
live from the time of its node to that of its last reader. Ops that move no data give what they
read; variables, constants and arguments take nothing of their own. What has no known shape, what
kernels take for themselves and what TensorLists hold is not counted, and each turn of a loop counts
as one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from amp_tf.graph.algorithms import control_links, flood, heaviest_ends
from amp_tf.graph.attributes import nodes_with
from amp_tf.graph.datatypes import SIZES, Indices, Mask, Node, Unit
from amp_tf.graph.edits import Tensor
from amp_tf.graph.view import Adjacency, GraphView
from amp_tf.oplists.cost_tables import FREE
from amp_tf.oplists.table import (
    CONTROL_FLOW,
    LOOP_CLOSERS,
    READ_OPS,
    REFERENCE_VARIABLES,
    WITHOUT_WAITING,
)

NOMINAL_BATCH = 64  #: stands for a first dimension that is not known, which most often is the batch
SHAPES_ATTR = "_output_shapes"
LONG = 8  #: times: what is held for so long may count

Shape = tuple[int, ...]


class Shapes(Protocol):
    """Gives the static shapes of tensors."""

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shape of each output port of a node; empty if nothing is known of the node.

        An unknown dimension is negative, an unknown rank ``None``.
        """


def shape_of(shapes: Shapes, node: str, port: int = 0) -> Shape | None:
    """The shape of one output port of a node; ``None`` where not even its rank is known."""
    found = shapes.output_shapes(node)
    return found[port] if port < len(found) else None


class KnownShapes:
    """Shapes that were asked for once, or are carried by nodes, and are kept; those of other nodes
    come from others.
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[Shape | None]], others: Shapes | None = None
    ) -> None:
        self._shapes, self._others = shapes, others

    @classmethod
    def of(cls, shapes: Shapes, names: Iterable[str]) -> KnownShapes:
        """What is known of some nodes."""
        return cls({name: found for name in names if (found := shapes.output_shapes(name))})

    @classmethod
    def of_nodes(cls, protos: Sequence[Any]) -> KnownShapes:
        """Those that nodes carry in the attribute ``_output_shapes``, which TensorFlow's exporters
        write.
        """
        carried = (
            (node.name, node.attr[SHAPES_ATTR].list.shape)
            for _, node in nodes_with(protos, SHAPES_ATTR)
        )
        return cls({name: list(map(read_shape, shapes)) for name, shapes in carried})

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shapes that were given."""
        if node in self._shapes or self._others is None:
            return self._shapes.get(node, ())
        return self._others.output_shapes(node)

    def and_also(self, shapes: Mapping[str, Sequence[Shape | None]]) -> KnownShapes:
        """These, and the shapes of other nodes."""
        return KnownShapes({**shapes, **self._shapes})

    def filled(self) -> KnownShapes:
        """The same, with :data:`NOMINAL_BATCH` for each dimension that is not known."""

        def fill(shape: Shape | None) -> Shape | None:
            return shape and tuple(NOMINAL_BATCH if size < 0 else size for size in shape)

        return KnownShapes(
            {name: [fill(shape) for shape in shapes] for name, shapes in self._shapes.items()}
        )


NO_SHAPES = KnownShapes({})


def read_shape(shape: Any) -> Shape | None:
    """The dimensions of a TensorShapeProto.

    Unknown ones are negative: -1, or the number from -2 down that Grappler gives to equal ones.
    """
    return None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)


def element_count(shape: Shape | None) -> int | None:
    """The number of elements, an unknown first dimension counted as :data:`NOMINAL_BATCH`.

    ``None`` where the rank or another dimension is unknown.
    """
    if shape is None or any(size < 0 for size in shape[1:]):
        return None
    return math.prod(NOMINAL_BATCH if size < 0 else size for size in shape)


@dataclasses.dataclass(frozen=True)
class Lifetimes:
    """The tensors of a graph that have memory of their own and a known size.

    Attributes:
        times: of each node.
        order: the edges between nodes, control edges included, but for those that close a loop.
        is_bound: the nodes that stay where they are, and that none may wait for: those of loops and
            branches, and all behind them, which may never run; all behind reference variables,
            which change in place.
        owners: of tensors that are other ones, passed on without a copy, those.
        elements: of each tensor that has memory.
        units: the unit of each.
        reads: who reads each, directly or through ops that pass it on: the unit of the tensor read,
            the reader and the reader's unit.
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
        """Those of a graph."""
        waits = control_links(view)
        sources = np.concatenate([view.edges.src_node, waits[:, 0]])
        readers = np.concatenate([view.edges.dst_node, waits[:, 1]])
        forward = ~view.mask_with(LOOP_CLOSERS)[sources]
        links = sources[forward], readers[forward]
        every = np.ones(view.node_count, np.bool_)
        times = heaviest_ends(every, *links, np.ones(view.node_count, np.int64))
        first = view.edges.at(
            view.mask_with(FREE)[view.edges.dst_node] & (view.edges.dst_position == 0)
        )
        handed = {
            node: (source, port)
            for node, source, port in first.rows("dst_node", "src_node", "src_port")
        }
        owners: dict[Tensor, Tensor] = {}
        for node in sorted(handed, key=times.__getitem__):
            owners[node, 0] = owners.get(handed[node], handed[node])
        units: dict[Tensor, Unit] = {}
        reads: dict[Tensor, list[tuple[Unit, Node, Unit]]] = {}
        columns = ("src_node", "src_port", "dst_node", "dst_position", "src_unit", "dst_unit")
        for node, port, reader, position, unit, ending in view.edges.rows(*columns):
            units[node, port] = unit
            if position or reader not in handed:
                reads.setdefault(owners.get((node, port), (node, port)), []).append(
                    (unit, reader, ending)
                )
        owning = ~view.mask_with(READ_OPS | WITHOUT_WAITING)
        elements: dict[Tensor, int] = {}
        for node, port in reads:
            known = shapes.output_shapes(view.names[node]) if owning[node] else ()
            if port < len(known) and (count := element_count(known[port])):
                elements[node, port] = count
        order = Adjacency(*links, view.node_count)
        is_bound = view.mask_with(CONTROL_FLOW | REFERENCE_VARIABLES)
        first = np.flatnonzero(is_bound).tolist()
        is_bound[flood(first, bytearray(~is_bound), [(order.fanout_start, order.fanout)])] = True
        return cls(times, order, is_bound, owners, elements, units, reads)

    def bytes_over_time(self, dtypes: Sequence[int] | Indices) -> npt.NDArray[np.float64]:
        """How many bytes are live at each time, with these types of the units, its own or those
        that it will have.
        """
        change = np.zeros(int(self.times.max(initial=0)) + 2)
        for tensor, count in self.elements.items():
            size = count * SIZES.get(int(dtypes[self.units[tensor]]), 0)
            first, last = self.span(tensor)
            change[first] += size
            change[last + 1] -= size
        return np.cumsum(change)

    def last_input(self, reader: Node, without: Container[Node] = ()) -> Node | None:
        """What a node waits for by itself: of the nodes before it that run in any case, the one
        that runs last.
        """
        before = (
            node
            for node in self.order.fanins(reader)
            if node not in without and not self.is_bound[node]
        )
        return max(before, key=self.times.__getitem__, default=None)

    def span(self, tensor: Tensor) -> tuple[int, int]:
        """The first and last time at which a tensor is live."""
        first = int(self.times[tensor[0]])
        return first, max(first, *(int(self.times[reader]) for _, reader, _ in self.reads[tensor]))
