"""Where values go: the graph at the level of nodes, for rules that follow a value further than
paint spreads.

Edges of whole numbers, truth values and resources are left out: what is compared or counted carries
no rounding on. So are those by which a gradient sees where its activation was zero, or which value
its pooling chose.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import flood, heaviest_ends, strongly_connected
from amp_tf.graph.datatypes import Indices, Mask, Node
from amp_tf.graph.view import Adjacency, GraphView, compress
from amp_tf.oplists.table import MASKED

_FARTHEST = 6  #: doublings: a value is followed through 64 nodes that move it
_CARRYING = [of + reference for of in datatypes.CARRYING for reference in (0, datatypes.LAST_BASE)]


class Flow:
    """The values of a graph, who uses them, and what its nodes are.

    Args:
        src, dst: the units that each edge connects, edges through TensorLists included.
        links: further pairs of a node and one that gets its value, by other ways than an edge.

    Attributes:
        sources, readers, positions: the nodes that each value connects, and at which input it is
            read.
        products: the nodes that are painted allow.
        users: products, and calls of functions that compute some.
        is_open: the nodes that the lists may convert besides: infer and clear ones of float32.
        computes: those of the infer list: each may round.
    """

    def __init__(
        self,
        view: GraphView,
        src: Indices,
        dst: Indices,
        links: Sequence[tuple[Node, Node]],
        *,
        products: Mask,
        calls: Mask,
        listed: Mask,
        on_infer: Mask,
    ) -> None:
        self.view = view
        self.products, self.users = products, products | calls
        self.is_open, self.computes = listed & ~products, on_infer & ~products
        nodes, edges = np.asarray(view.unit_nodes, np.int32), view.edges
        carries = np.isin(np.asarray(view.dtypes)[src], _CARRYING)
        for ops, numbers in MASKED.items():
            carries[: len(edges)] &= ~(
                view.mask_with(ops)[edges.dst_node] & np.isin(edges.dst_position, numbers)
            )
        positions = np.zeros(len(src), np.int32)
        positions[: len(edges)] = edges.dst_position
        sources, readers = np.array(links, np.int32).reshape(-1, 2).T
        self.sources = np.concatenate([nodes[src[carries]], sources])
        self.readers = np.concatenate([nodes[dst[carries]], readers])
        self.positions = np.concatenate([positions[carries], np.zeros(len(links), np.int32)])
        self._links = Adjacency(self.sources, self.readers, view.node_count)

    def nodes_of(self, ops: Container[str]) -> Mask:
        """The nodes of some ops."""
        return self.view.mask_with(ops)

    def count_inputs(self) -> npt.NDArray[np.int64]:
        """How many values each node reads."""
        return np.bincount(self.readers, minlength=self.view.node_count)

    def upstream(self, seeds: Mask, through: Mask, causes: dict[int, int] | None = None) -> Mask:
        """What the seeds read, and what that reads, through some nodes; only nodes of ``through``
        are reached.

        ``causes`` gets each node that is reached with the one from which it was.
        """
        return _flooded(seeds, through, (self._links.fanin_start, self._links.fanin), causes)

    def downstream(self, seeds: Mask, through: Mask) -> Mask:
        """What reads the seeds, and what reads that, through some nodes; only nodes of ``through``
        are reached.
        """
        return _flooded(seeds, through, (self._links.fanout_start, self._links.fanout))

    def asked(
        self, asking: Mask, position: int | None, through: Mask, causes: dict[int, int]
    ) -> Mask:
        """What some nodes read, at one of their inputs or all, and what that reads, through some
        nodes as upstream.
        """
        edges = asking[self.readers] & through[self.sources]
        if position is not None:
            edges &= self.positions == position
        causes.update(zip(self.sources[edges].tolist(), self.readers[edges].tolist(), strict=True))
        first = np.zeros_like(through)
        first[self.sources[edges]] = True
        return first | self.upstream(first, through & ~first, causes)

    def along(self, seeds: Mask, edges: Mask) -> Mask:
        """What is reached from the seeds, reader by reader, by some of the edges (:attr:`sources`)
        alone.
        """
        way = compress(self.sources[edges], self.readers[edges], self.view.node_count)
        return _flooded(seeds, np.ones(self.view.node_count, np.bool_), way)

    def sources_at(self, node: Node) -> Sequence[Node]:
        """The nodes that a node reads, one for each value."""
        return self._links.fanin[self._links.fanin_start[node] : self._links.fanin_start[node + 1]]

    def behind(self, moving: Mask) -> Indices:
        """For each node the one that made its value: itself, unless it moves one value that another
        made.
        """
        made = np.arange(self.view.node_count, dtype=np.int32)
        moved = (moving & (self.count_inputs() == 1))[self.readers]
        made[self.readers[moved]] = self.sources[moved]
        for _ in range(_FARTHEST):
            made = made[made]
        return made

    def readers_of(self, nodes: Mask, position: int | None = None) -> Mask:
        """The nodes that read one of some nodes, at any input or at one."""
        edges = nodes[self.sources]
        if position is not None:
            edges &= self.positions == position
        found = np.zeros(self.view.node_count, np.bool_)
        found[self.readers[edges]] = True
        return found

    def sources_of(self, nodes: Mask) -> Mask:
        """The nodes that some nodes read."""
        found = np.zeros(self.view.node_count, np.bool_)
        found[self.sources[nodes[self.readers]]] = True
        return found

    def heaviest_paths(
        self, through: Mask, weights: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], Mask]:
        """The weight of the heaviest path through each node; the nodes with a weight, or between
        two that have one.

        Nodes on cycles, and behind them, have no path.
        """
        inner = through[self.sources] & through[self.readers]
        sources, readers = self.sources[inner], self.readers[inner]
        before = heaviest_ends(through, sources, readers, weights)
        after = heaviest_ends(through, readers, sources, weights)
        return before + after - weights, through & ((weights > 0) | ((before > 0) & (after > 0)))

    def on_cycles(self, through: Mask, closing: Mask, links: npt.NDArray[np.integer[Any]]) -> Mask:
        """What lies on cycles together with a node that computes: cycles that some nodes close, or
        further links do.

        Most nodes of a graph lie between no two ends of what closes a cycle, and are left out
        before.
        """
        begins, ends = closing & through, closing & through
        begins[links[1]] = ends[links[0]] = True
        near = (ends | self.upstream(ends, through)) & through
        near &= begins | self.downstream(begins, near)
        if not near.any():
            return near
        sources, readers = np.concatenate([[self.sources, self.readers], links], axis=1)
        inner = near[sources] & near[readers]
        around = Adjacency(sources[inner], readers[inner], len(near))
        holding = near & self.computes
        for way in ((around.fanin_start, around.fanin), (around.fanout_start, around.fanout)):
            near = holding | _flooded(holding, near, way)
        found = np.zeros_like(near)
        for cycle in strongly_connected(near, around):
            found[cycle] = self.computes[cycle].any()
        return found


def _flooded(
    seeds: Mask,
    through: Mask,
    way: tuple[Sequence[int], Sequence[int]],
    causes: dict[int, int] | None = None,
) -> Mask:
    reached: Mask = np.zeros_like(through)
    if seeds.any():
        reached[
            flood(np.flatnonzero(seeds).tolist(), bytearray(through.tobytes()), [way], causes)
        ] = True
    return reached
