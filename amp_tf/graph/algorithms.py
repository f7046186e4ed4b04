"""Algorithms on graphs: reach, order, cycles, connected sets and minimum cuts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, MutableMapping, Sequence

import numpy as np
import numpy.typing as npt

from amp_tf.graph.datatypes import Indices, Mask, Node
from amp_tf.graph.view import Adjacency, GraphView, compress

SOURCE = 0
SINK = 1
UNBOUNDED = 1 << 60


def flood(
    seeds: Iterable[int],
    is_open: bytearray,
    ways: Sequence[tuple[Sequence[int], Sequence[int]]],
    cause: MutableMapping[int, int] | array[int] | None = None,
) -> list[int]:
    """What can be reached from the seeds through what is open, seeds not included; what it entered
    is open no more.

    Each way is the starts of each one's neighbours, and the neighbours. A cause is the one from
    which one is reached.
    """
    places = list(seeds)
    seed_count = len(places)
    for place in places:  # grows while it is read: the nearest first
        for starts, neighbours in ways:
            for neighbour in neighbours[starts[place] : starts[place + 1]]:
                if is_open[neighbour]:
                    is_open[neighbour] = 0
                    places.append(neighbour)
                    if cause is not None:
                        cause[neighbour] = place
    return places[seed_count:]


def in_order(
    nodes: Mask, sources: Indices, readers: Indices
) -> tuple[list[Node], array[int], array[int]]:
    """Some nodes, each after all that it reads, but for those on cycles and behind them; and the
    rows of readers.
    """
    starts, behind = compress(sources, readers, len(nodes))
    missing = np.bincount(readers, minlength=len(nodes)).tolist()
    found = [node for node in np.flatnonzero(nodes).tolist() if not missing[node]]
    for node in found:
        for reader in behind[starts[node] : starts[node + 1]]:
            missing[reader] -= 1
            if not missing[reader]:
                found.append(reader)
    return found, starts, behind


def is_sorted(nodes: Mask, sources: Indices, readers: Indices) -> Mask:
    """Of some nodes, those that are on no cycle and behind none."""
    found = np.zeros(len(nodes), np.bool_)
    found[in_order(nodes, sources, readers)[0]] = True
    return found


def heaviest_ends(
    nodes: Mask, sources: Indices, readers: Indices, weights: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """For each node the weight of the heaviest path that ends there."""
    own = weights.tolist()
    total, (found, starts, behind) = list(own), in_order(nodes, sources, readers)
    for node in found:
        for reader in behind[starts[node] : starts[node + 1]]:
            if own[reader] + total[node] > total[reader]:
                total[reader] = own[reader] + total[node]
    return np.asarray(total, np.int64)


def strongly_connected(nodes: Mask, links: Adjacency) -> Iterator[list[Node]]:
    """The sets of nodes from each of which all others of the set are reached; those of one node are
    left out.

    Source of the method: Kosaraju's two searches, forwards and then backwards in the order in which
    the first ends.
    """
    is_open, ended = bytearray(nodes), list[Node]()
    for root in np.flatnonzero(nodes).tolist():
        path = [(root, iter(links.fanouts(root)))] if is_open[root] else []
        is_open[root] = 0
        while path:
            for reader in path[-1][1]:
                if is_open[reader]:
                    is_open[reader] = 0
                    path.append((reader, iter(links.fanouts(reader))))
                    break
            else:
                ended.append(path.pop()[0])
    is_open = bytearray(nodes)
    for node in reversed(ended):
        if is_open[node]:
            is_open[node] = 0
            if others := flood([node], is_open, [(links.fanin_start, links.fanin)]):
                yield [node, *others]


def connected(units: Iterable[int], links: Iterable[Iterable[int]]) -> list[list[int]]:
    """The units in sets: those that a link names are in one; a link may name others, which do not
    count.
    """
    root_of = {unit: unit for unit in units}

    def root(unit: int) -> int:
        while root_of[unit] != unit:
            root_of[unit] = root_of[root_of[unit]]
            unit = root_of[unit]
        return unit

    for link in links:
        linked = [unit for unit in link if unit in root_of]
        for unit in linked[1:]:
            root_of[root(unit)] = root(linked[0])
    groups: dict[int, list[int]] = {}
    for unit in root_of:
        groups.setdefault(root(unit), []).append(unit)
    return list(groups.values())


class Network:
    """A flow network, for the exact optimum of a choice between two labels: a minimum cut.

    Vertices are small integers; 0 is the source and 1 the sink. Networks here are long chains with
    short detours between source and sink, for which few phases suffice.

    Source of the method: Dinic, Algorithm for solution of a problem of maximum flow in networks
    with power estimation (1970).
    """

    def __init__(self) -> None:
        self._edges_of: list[list[int]] = [[], []]
        self._head: list[int] = []  # edge 2k and its reverse 2k + 1 are neighbours
        self._capacity: list[int] = []

    def add_vertex(self) -> int:
        """A new vertex."""
        self._edges_of.append([])
        return len(self._edges_of) - 1

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        """An edge; the cut pays its capacity if the tail is on the source's side and the head on
        the sink's.
        """
        if capacity <= 0 or tail == head:
            return
        self._edges_of[tail].append(len(self._head))
        self._edges_of[head].append(len(self._head) + 1)
        self._head += [head, tail]
        self._capacity += [capacity, 0]

    def source_side(self) -> list[bool]:
        """For each vertex, whether it is on the source's side of the smallest minimum cut."""
        while True:
            level = self._levels()
            if level[SINK] < 0:
                return [depth >= 0 for depth in level]
            self._saturate(level)

    def _levels(self) -> list[int]:
        """For each vertex its distance from the source, -1 where a search that ends at the sink
        does not come.
        """
        level = [-1] * len(self._edges_of)
        level[SOURCE] = 0
        reached = [SOURCE]
        for vertex in reached:
            for edge in self._edges_of[vertex] if level[SINK] < 0 else ():
                head = self._head[edge]
                if level[head] < 0 and self._capacity[edge]:
                    level[head] = level[vertex] + 1
                    reached.append(head)
        return level

    def _saturate(self, level: list[int]) -> None:
        """Sends flow along shortest paths until every one of them has a full edge."""
        heads, capacity, path = self._head, self._capacity, list[int]()
        ways = [  # the edges of each vertex that may still lead to the sink
            [edge for edge in edges if capacity[edge] and level[heads[edge]] == depth + 1]
            for edges, depth in zip(self._edges_of, level, strict=True)
        ]
        while path or ways[SOURCE]:
            vertex = heads[path[-1]] if path else SOURCE
            if vertex == SINK:
                flow = min(capacity[edge] for edge in path)
                for edge in path:
                    capacity[edge] -= flow
                    capacity[edge ^ 1] += flow
                del path[next(place for place, edge in enumerate(path) if not capacity[edge]) :]
            elif not ways[vertex]:
                ways[heads[path.pop() ^ 1]].pop()
            elif capacity[ways[vertex][-1]]:
                path.append(ways[vertex][-1])
            else:
                ways[vertex].pop()


def control_links(view: GraphView) -> Indices:
    """The control edges of a graph, a row each: the node that is waited for, the node that waits."""
    number_of = {name: number for number, name in enumerate(view.names)}
    links = [
        (number_of[source[1:]], number)
        for number, proto in enumerate(view.protos)
        if proto is not None
        for source in proto.input
        if source.startswith("^")
    ]
    return np.array(links, np.int32).reshape(-1, 2)
