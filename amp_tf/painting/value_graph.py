"""The value graph: an edge from node to node for each value, for rules that follow values further
than paint spreads.

Edges of integers, booleans and resources are left out, because they carry no rounding on. So are
inputs of gradients that only show where an activation was zero, or which value a pooling chose.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import flood, heaviest_ends, strongly_connected
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import EdgeMask, Indices, Node, NodeMask, Unit, indices, mask_of
from amp_tf.graph.edges import Adjacency, Rows, compress
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import (
    ALLOW,
    CARRIERS,
    CASTS,
    LOOP_CLOSERS,
    MASKED,
    READ_OPS,
    REFERENCE_VARIABLES,
    SCALING,
    SQUARES,
    SUBTRACTING,
    TOTALS,
)
from amp_tf.painting.canvas import Canvas
from amp_tf.precision import Precision

_DOUBLINGS = 6  #: a value is followed through 64 nodes that move it
_CARRYING = [of + reference for of in datatypes.CARRYING for reference in (0, datatypes.LAST_BASE)]


class Centring(NamedTuple):
    """A difference between a value and its own mean, which shares the value's rounding.

    Attributes:
        difference: the node that subtracts.
        total: the sum or mean.
        weighted: the products of the value and its weights, each with the value; empty for a plain
            mean.
    """

    difference: Node
    total: Node
    weighted: Sequence[tuple[Node, Node]]


@dataclasses.dataclass(frozen=True, eq=False)
class ValueGraph:
    """The value edges of a graph, and the kinds of its nodes.

    Attributes:
        sources, readers, positions: for each edge, the node that gives the value, the node that
            reads it, and the input.
        products: the nodes that are painted allow.
        users: products, and calls of functions that compute some.
        is_open: the other nodes that the lists may convert: infer and clear nodes of float32.
        computes: the open nodes of the infer list, each of which may round.
        precision: the 16-bit type.
        closing: the nodes that may close a loop.
    """

    view: GraphView
    sources: Indices
    readers: Indices
    positions: Indices
    products: NodeMask
    users: NodeMask
    is_open: NodeMask
    computes: NodeMask
    closing: NodeMask
    precision: Precision = Precision.BFLOAT16
    _masks: dict[frozenset[str], NodeMask] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, canvas: Canvas) -> ValueGraph:
        """Returns the value graph of a canvas on which only the products are painted."""
        view = canvas.view
        subject = canvas.subject
        calls = subject.calls.copy()
        products = frozenset(canvas.target.lists.members(ALLOW))
        for node in indices(calls):
            calls[node] = subject.templates.reaches(view.protos[node], products)
        closing = view.mask_with(LOOP_CLOSERS)
        closing[[*subject.closing]] = True
        links: list[tuple[Node, Node]] = []
        if subject.is_loop_body:
            results = view.nodes_with((RETVAL_OP,))
            closing[results] = True
            links = list(zip(results, view.nodes_with((ARG_OP,)), strict=False))
        painted = view.nodes_of(canvas.allow)
        return cls(
            view,
            *find_edges(view, (canvas.src, canvas.dst, canvas.positions), links),
            products=painted,
            users=painted | calls,
            is_open=view.nodes_of(canvas.spreading & canvas.is_float32) & ~painted,
            computes=view.nodes_of(canvas.on_infer & canvas.is_float32) & ~painted,
            closing=closing,
            precision=canvas.target.precision,
        )

    @functools.cached_property
    def moving(self) -> NodeMask:
        """The nodes that only move values or choose among them, whether the lists know them."""
        return (self.is_open & ~self.computes) | (self.of_ops(CARRIERS) & ~self.users)

    @functools.cached_property
    def used(self) -> NodeMask:
        """The users, and the nodes whose values reach one."""
        return self.upstream(self.users, through=np.ones_like(self.users))

    @functools.cached_property
    def parameters(self) -> NodeMask:
        """The variables' values and arguments, their constants in a frozen graph, and the nodes
        that move them.

        Callers' arguments are exact, too, and a sum of one and a product is joined.
        """
        counts, _, _ = self.view.constants
        found = self.of_ops({*READ_OPS, *REFERENCE_VARIABLES, ARG_OP}) | (counts > 1)
        return self.downstream(found, through=self.moving)

    @functools.cached_property
    def squares(self) -> NodeMask:
        """The nodes that square a value, or multiply it by itself."""
        view = self.view
        products = view.nodes_with(("Mul",))
        of_itself = [node for node in products if len({*view.inputs(node)}) == 1]
        return self.of_ops(SQUARES) | mask_of(of_itself, view.node_count)

    @functools.cached_property
    def centrings(self) -> Sequence[Centring]:
        """The differences between a value and its own mean, plain or weighted."""
        totals = self.of_ops(TOTALS)
        means = self.downstream(totals, through=self.moving)
        scaling = self.of_ops(SCALING)
        makers = self._makers()

        def read_by(node: Node) -> set[Node]:
            """Returns the nodes that computed what a node reads."""
            return set(makers[self.links.fanins(node)].tolist())

        found = []
        for node in indices(self.of_ops(SUBTRACTING) & self.readers_of(means)):
            ends = read_by(node)
            for total in ends:
                if not totals[total]:
                    continue
                terms = read_by(total)
                weighted: list[tuple[Node, Node]] = []
                for product in (term for term in terms if scaling[term]):
                    weighted += itertools.product([product], ends & read_by(product))
                if weighted or not ends.isdisjoint(terms):
                    found.append(Centring(node, total, weighted))
        return found

    def _makers(self) -> Indices:
        """Returns for each node the one that computed its value: itself, unless it moves the value
        of another.
        """
        makers = np.arange(self.view.node_count, dtype=np.int32)
        moved = (self.moving & (self.count_inputs() == 1))[self.readers]
        makers[self.readers[moved]] = self.sources[moved]
        for _ in range(_DOUBLINGS):
            makers = makers[makers]
        return makers

    @functools.cached_property
    def links(self) -> Adjacency:
        """The adjacency of nodes."""
        return Adjacency(self.sources, self.readers, self.view.node_count)

    def of_ops(self, ops: Iterable[str]) -> NodeMask:
        """Returns the nodes of some ops. The mask is shared and read-only."""
        if not isinstance(ops, frozenset):
            ops = frozenset(ops)
        if ops not in self._masks:
            self._masks[ops] = self.view.mask_with(ops)
            self._masks[ops].flags.writeable = False
        return self._masks[ops]

    def count_inputs(self, of: NodeMask | None = None) -> npt.NDArray[np.int64]:
        """Returns for each node how many values it reads, of all nodes or of some."""
        readers = self.readers
        if of is not None:
            readers = readers[of[self.sources]]
        return np.bincount(readers, minlength=self.view.node_count)

    def upstream(self, seeds: NodeMask, through: NodeMask) -> NodeMask:
        """Returns the seeds, and the nodes of ``through`` whose values reach them through such
        nodes.
        """
        return _reach(seeds, through, self.links.inward)

    def downstream(self, seeds: NodeMask, through: NodeMask) -> NodeMask:
        """Returns the seeds, and the nodes of ``through`` that their values reach through such
        nodes.
        """
        return _reach(seeds, through, self.links.outward)

    def downstream_along(self, seeds: NodeMask, edges: EdgeMask) -> NodeMask:
        """Returns the seeds, and the nodes that their values reach along some edges."""
        way = compress(self.sources[edges], self.readers[edges], self.view.node_count)
        return _reach(seeds, np.ones_like(seeds), way)

    def sources_of(self, nodes: NodeMask) -> NodeMask:
        """Returns the nodes that some nodes read."""
        return mask_of(self.sources[nodes[self.readers]], self.view.node_count)

    def readers_of(self, nodes: NodeMask, position: int | None = None) -> NodeMask:
        """Returns the nodes that read one of some nodes, at any input or at one."""
        edges = nodes[self.sources]
        if position is not None:
            edges &= self.positions == position
        return mask_of(self.readers[edges], self.view.node_count)

    def heaviest_paths(
        self, through: NodeMask, weights: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], NodeMask]:
        """Returns the weight of the heaviest path through each node, and the nodes that have a
        weight or lie between two such.

        Nodes on cycles, and behind them, have no path.
        """
        inner = through[self.sources] & through[self.readers]
        sources = self.sources[inner]
        readers = self.readers[inner]
        before = heaviest_ends(through, sources, readers, weights)
        after = heaviest_ends(through, readers, sources, weights)
        is_between = (weights > 0) | ((before > 0) & (after > 0))
        return before + after - weights, through & is_between

    def on_cycles(
        self, through: NodeMask, closing: NodeMask, links: npt.NDArray[np.integer[Any]]
    ) -> NodeMask:
        """Returns the nodes on cycles on which a node computes.

        Args:
            through: the nodes of which cycles consist.
            closing: nodes that may close a cycle.
            links: further edges that may close a cycle, as a row of sources and a row of readers.
        """
        begins = closing & through
        ends = begins.copy()
        begins[links[1]] = True
        ends[links[0]] = True
        # Most nodes lie on no path from a begin to an end, and are left out first.
        near: NodeMask = self.upstream(ends, through) & through
        near &= self.downstream(begins, near)
        if not near.any():
            return near
        sources, readers = np.concatenate([[self.sources, self.readers], links], axis=1)
        inner = near[sources] & near[readers]
        around = Adjacency(sources[inner], readers[inner], len(near))
        computing = near & self.computes
        near = _reach(computing, near, around.inward)
        near = _reach(computing, near, around.outward)
        found_on: NodeMask = np.zeros_like(near)
        for cycle in strongly_connected(near, around):
            found_on[cycle] = self.computes[cycle].any()
        return found_on


def _reach(seeds: NodeMask, through: NodeMask, way: Rows) -> NodeMask:
    """Returns the seeds, and the nodes of ``through`` that are reached from them through such
    nodes.
    """
    is_open = bytearray(through.tobytes())
    flood(indices(seeds), is_open, [way])
    return seeds | (through & ~np.frombuffer(is_open, np.bool_))


def find_edges(
    view: GraphView, edges: Sequence[Indices], links: Sequence[tuple[Node, Node]] = ()
) -> tuple[Indices, Indices, Indices]:
    """Returns the sources, readers and positions of the edges that carry a rounding on.

    Args:
        edges: the units that each edge connects, and its position, as a canvas has them.
        links: further pairs of a node and one that gets its value without an edge.
    """
    src, dst, positions = edges
    nodes = np.asarray(view.unit_nodes, np.int32)
    readers = nodes[dst]
    carries = np.isin(np.asarray(view.dtypes)[src], _CARRYING)
    for ops, numbers in MASKED.items():
        carries &= ~(view.mask_with(ops)[readers] & np.isin(positions, numbers))
    rows = np.stack([nodes[src], readers, positions])[:, carries]
    linked = np.array([(*link, 0) for link in links], np.int32).reshape(-1, 3)
    sources, readers, positions = np.concatenate([rows, linked.T], axis=1)
    return sources, readers, positions


def casts_of(view: GraphView) -> Iterator[tuple[Node, Unit, Unit]]:
    """Yields each Cast with its input's and its output's unit."""
    for node in view.nodes_with(CASTS):
        yield node, view.input_unit(node, 0), view.output_unit(node, 0)
