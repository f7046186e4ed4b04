"""Where values go: the graph at the level of nodes, for rules that follow a value further than paint spreads.

Edges of whole numbers, truth values and resources are left out: what is compared or counted carries no rounding on.
So may those be by which a gradient sees where its activation was zero, or which value its pooling chose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import heaviest_ends, is_sorted, strongly_connected
from amp_tf.graph.datatypes import Mask
from amp_tf.graph.view import Adjacency, GraphView
from amp_tf.oplists.table import MASKED


@dataclasses.dataclass(frozen=True)
class Paths:
    """The heaviest path through each node.

    Attributes:
        weight: of the path.
        between: the nodes that have a weight, or lie between two that have.
    """

    weight: npt.NDArray[np.int64]
    between: Mask


class Values:
    """The values of a graph and who uses them.

    Args:
        view: the graph.
        src, dst: the units that each edge connects, edges through TensorLists included.
        node_of: the node of each unit.
        masks: whether edges that only mask other values count.
        links: further pairs of a node and one that gets its value, by other ways than an edge.

    Attributes:
        sources, readers: the nodes that each value connects.
        positions: at which input the reader gets it.
    """

    def __init__(
        self,
        view: GraphView,
        src: npt.NDArray[np.int32],
        dst: npt.NDArray[np.int32],
        node_of: Sequence[int],
        masks: bool = True,
        links: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.view = view
        nodes = np.asarray(node_of, np.int32)
        dtypes = np.asarray(view.dtypes, np.int32)[src]
        base_types = np.where(dtypes > datatypes.LAST_BASE, dtypes - datatypes.LAST_BASE, dtypes)
        carries = np.isin(base_types, sorted(datatypes.CARRYING))
        if not masks:
            edges = view.edges
            for position in sorted({position for positions in MASKED.values() for position in positions}):
                masked = view.of_kinds(
                    (position in MASKED.get(signature.op, ()) for signature in view.of_kind), np.bool_
                )
                carries[: len(edges)] &= ~(masked[edges.dst_node] & (edges.dst_position == position))
        positions = np.zeros(len(src), np.int32)
        positions[: len(view.edges)] = view.edges.dst_position
        sources, readers = np.array(links, np.int32).reshape(-1, 2).T
        self.sources = np.concatenate([nodes[src[carries]], sources])
        self.readers = np.concatenate([nodes[dst[carries]], readers])
        self.positions = np.concatenate([positions[carries], np.zeros(len(links), np.int32)])
        self._links = Adjacency(self.sources, self.readers, view.node_count)

    def nodes_of(self, ops: Iterable[str]) -> Mask:
        """The nodes of some ops."""
        return self.view.mask_with(frozenset(ops))

    def count_inputs(self) -> npt.NDArray[np.int64]:
        """How many values each node reads."""
        return np.bincount(self.readers, minlength=self.view.node_count)

    def by_constants(self) -> Mask:
        """The nodes whose second input is a constant, such as quotients by one."""
        found = np.zeros(self.view.node_count, np.bool_)
        found[self.readers[self.nodes_of(("Const",))[self.sources] & (self.positions == 1)]] = True
        return found

    def squares(self) -> Mask:
        """The nodes that multiply a value by itself."""
        edges = self.view.edges
        read = edges.at(np.flatnonzero(self.nodes_of(("Mul",))[edges.dst_node]))
        first, second = read.at(read.dst_position == 0), read.at(read.dst_position == 1)
        found = self.nodes_of(("Square",))
        if len(first) == len(second):  # a broken graph may lack inputs
            found[first.dst_node[(first.src_node == second.src_node) & (first.src_port == second.src_port)]] = True
        return found

    def upstream(self, seeds: Mask, through: Mask, causes: dict[int, int] | None = None) -> Mask:
        """What the seeds read, and what that reads, through some nodes; only nodes of ``through`` are reached.

        Args:
            causes: gets each node that is reached with the one from which it was.
        """
        return self._flood(seeds, through, self._links.fanin_start, self._links.fanin, causes)

    def downstream(self, seeds: Mask, through: Mask) -> Mask:
        """What reads the seeds, and what reads that, through some nodes; only nodes of ``through`` are reached."""
        return self._flood(seeds, through, self._links.fanout_start, self._links.fanout)

    def along(self, seeds: Mask, edges: Mask) -> Mask:
        """What is reached from the seeds, reader by reader, by some of the edges alone.

        Args:
            seeds: where it begins; they are reached only by an edge.
            edges: for each of :attr:`sources` and :attr:`readers`, whether it may be gone.
        """
        links = Adjacency(self.sources[edges], self.readers[edges], self.view.node_count)
        return self._flood(seeds, np.ones(self.view.node_count, np.bool_), links.fanout_start, links.fanout)

    def _flood(
        self,
        seeds: Mask,
        through: Mask,
        starts: Sequence[int],
        neighbours: Sequence[int],
        causes: dict[int, int] | None = None,
    ) -> Mask:
        is_open = bytearray(through.tobytes())
        reached = bytearray(len(is_open))
        stack: list[int] = np.flatnonzero(seeds).tolist()
        while stack:
            node = stack.pop()
            for neighbour in neighbours[starts[node] : starts[node + 1]]:
                if is_open[neighbour]:
                    is_open[neighbour] = 0
                    reached[neighbour] = 1
                    stack.append(neighbour)
                    if causes is not None:
                        causes[neighbour] = node
        found: Mask = np.frombuffer(reached, np.bool_).copy()
        return found

    def sources_at(self, node: int) -> Sequence[int]:
        """The nodes that a node reads, one for each value."""
        return self._links.fanin[self._links.fanin_start[node] : self._links.fanin_start[node + 1]]

    def readers_of(self, nodes: Mask) -> Mask:
        """The nodes that read one of some nodes."""
        found = np.zeros(self.view.node_count, np.bool_)
        found[self.readers[nodes[self.sources]]] = True
        return found

    def sources_of(self, nodes: Mask) -> Mask:
        """The nodes that some nodes read."""
        found = np.zeros(self.view.node_count, np.bool_)
        found[self.sources[nodes[self.readers]]] = True
        return found

    def count_readings(self, nodes: Mask) -> npt.NDArray[np.int64]:
        """How many values each node reads from some nodes."""
        return np.bincount(self.readers[nodes[self.sources]], minlength=self.view.node_count)

    def heaviest_paths(self, through: Mask, weights: npt.NDArray[np.int64]) -> Paths:
        """For each node the heaviest path through it, by the weights of its nodes.

        Args:
            through: the nodes that paths go through; those on cycles, and behind them, have none.
            weights: of each node, zero or more.
        """
        inner = through[self.sources] & through[self.readers]
        sources, readers = self.sources[inner], self.readers[inner]
        before = heaviest_ends(through, sources, readers, weights)
        after = heaviest_ends(through, readers, sources, weights)
        between = through & ((weights > 0) | ((before > 0) & (after > 0)))
        return Paths(before + after - weights, between)

    def cycles(self, through: Mask, more: Sequence[tuple[int, int]] = ()) -> list[list[int]]:
        """The sets of nodes that lie on cycles together: strongly connected, with more than one node.

        Args:
            through: the nodes that may lie on one.
            more: further links (source, reader) to close cycles with.

        Most nodes of a graph are on no cycle, and are left out before.
        """
        added = np.array(more, np.int32).reshape(-1, 2).T
        sources, readers = (np.concatenate(pair) for pair in zip((self.sources, self.readers), added, strict=True))
        left = through
        for ends in ((sources, readers), (readers, sources)):
            inner = left[sources] & left[readers]
            left = left & ~is_sorted(left, *(end[inner] for end in ends))
        inner = left[sources] & left[readers]
        links = Adjacency(sources[inner], readers[inner], self.view.node_count)
        return strongly_connected(np.flatnonzero(left).tolist(), links.fanouts)
