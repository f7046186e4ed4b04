"""Algorithms on graphs: reach, order, cycles, connected sets and minimum cuts."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, MutableMapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from amp_tf.graph.datatypes import Indices, Mask, Node, indices, mask_of
from amp_tf.graph.edges import Adjacency, Rows, compress

SOURCE = 0
SINK = 1
UNBOUNDED = 1 << 60
_Unit = TypeVar("_Unit", bound=Hashable)


def flood(
    seeds: Iterable[int],
    is_open: bytearray,
    ways: Sequence[Rows],
    cause: MutableMapping[int, int] | array[int] | None = None,
) -> list[int]:
    """Returns the places that a breadth-first search enters from the seeds, the nearest first.

    Args:
        seeds: where the search begins; they are not among the results.
        is_open: for each place, whether it may be entered. The search closes the places that it
            enters.
        ways: the neighbours of each place, such as :attr:`Adjacency.outward`.
        cause: receives for each entered place the one from which it was entered.
    """
    places = list(seeds)
    seed_count = len(places)
    for place in places:  # the list grows while it is read
        for starts, neighbours in ways:
            for neighbour in neighbours[starts[place] : starts[place + 1]]:
                if is_open[neighbour]:
                    is_open[neighbour] = 0
                    places.append(neighbour)
                    if cause is not None:
                        cause[neighbour] = place
    return places[seed_count:]


def reach(seeds: Iterable[int], through: Mask, *ways: Rows) -> dict[int, int]:
    """Searches a graph breadth-first.

    Args:
        seeds: where the search begins, in this order; they need not be in ``through``.
        through: what may be reached and passed.
        ways: the neighbours that a node or unit leads to.

    Returns:
        Each number that is reached, nearest first, with the neighbour from which it was reached.
        A seed is among them only if another one leads to it.
    """
    causes: dict[int, int] = {}
    flood(seeds, bytearray(through.tobytes()), ways, causes)
    return causes


def in_order(
    nodes: Mask, sources: Indices, readers: Indices
) -> tuple[list[Node], array[int], array[int]]:
    """Sorts nodes topologically; nodes on cycles and behind them are left out.

    Args:
        nodes: the nodes to sort.
        sources, readers: the edges between them, as parallel arrays.

    Returns:
        The nodes, each after its sources; the start of each node's readers, and all readers.

    Source of the method: Kahn, Topological sorting of large networks (1962).
    """
    starts, behind = compress(sources, readers, len(nodes))
    missing = np.bincount(readers, minlength=len(nodes)).tolist()
    found = [node for node in indices(nodes) if not missing[node]]
    for node in found:  # the list grows while it is read
        for reader in behind[starts[node] : starts[node + 1]]:
            missing[reader] -= 1
            if not missing[reader]:
                found.append(reader)
    return found, starts, behind


def is_sorted(nodes: Mask, sources: Indices, readers: Indices) -> Mask:
    """Returns the nodes that are neither on a cycle nor behind one. Arguments: :func:`in_order`."""
    return mask_of(in_order(nodes, sources, readers)[0], len(nodes))


def heaviest_ends(
    nodes: Mask, sources: Indices, readers: Indices, weights: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns for each node the weight of the heaviest path that ends there.

    The weight of a path is the sum of its nodes' weights. Other arguments: :func:`in_order`.
    """
    own = weights.tolist()
    total = list(own)
    found, starts, behind = in_order(nodes, sources, readers)
    for node in found:
        for reader in behind[starts[node] : starts[node + 1]]:
            if own[reader] + total[node] > total[reader]:
                total[reader] = own[reader] + total[node]
    return np.asarray(total, np.int64)


def strongly_connected(nodes: Mask, links: Adjacency) -> Iterator[list[Node]]:
    """Finds the strongly connected components of more than one node.

    Source of the method: Kosaraju's two searches, forwards and then backwards in the order in which
    the first one finishes nodes.
    """
    is_open = bytearray(nodes)
    ended = []
    for root in indices(nodes):
        if not is_open[root]:
            continue
        is_open[root] = 0
        path = [(root, iter(links.fanouts(root)))]
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
        if not is_open[node]:
            continue
        is_open[node] = 0
        others = flood([node], is_open, [links.inward])
        if others:
            yield [node, *others]


def gather(marks: Sequence[int], sources: Indices, readers: Indices) -> list[int]:
    """Returns for each node its own marks and those of all nodes that lead to it.

    Marks are the bits of an integer. Nodes of one cycle have the same; the others are taken in
    their order, so that each edge is followed once.

    Args:
        marks: the marks of each node.
        sources, readers: the edges between nodes, as parallel arrays.
    """
    count = len(marks)
    place = np.arange(count, dtype=np.int32)
    is_linked = mask_of(sources, count) & mask_of(readers, count)
    for cycle in strongly_connected(is_linked, Adjacency(sources, readers, count)):
        place[cycle] = cycle[0]
    found = [0] * count
    for node, own in zip(place.tolist(), marks, strict=True):
        found[node] |= own
    sources = place[sources]
    readers = place[readers]
    others = sources != readers
    every = np.ones(count, np.bool_)
    order, starts, behind = in_order(every, sources[others], readers[others])
    for node in order:
        for reader in behind[starts[node] : starts[node + 1]]:
            found[reader] |= found[node]
    return [found[node] for node in place.tolist()]


def connected(units: Iterable[_Unit], links: Iterable[Iterable[_Unit]]) -> list[list[_Unit]]:
    """Returns the connected sets of units (union–find).

    All units of a link are in one set. A link may name others, which do not count.
    """
    root_of = {unit: unit for unit in units}

    def root(unit: _Unit) -> _Unit:
        while root_of[unit] != unit:
            root_of[unit] = root_of[root_of[unit]]
            unit = root_of[unit]
        return unit

    for link in links:
        linked = [unit for unit in link if unit in root_of]
        for unit in linked[1:]:
            root_of[root(unit)] = root(linked[0])
    groups: dict[_Unit, list[_Unit]] = {}
    for unit in root_of:
        groups.setdefault(root(unit), []).append(unit)
    return list(groups.values())


def numbers_of(groups: Iterable[Iterable[int]]) -> dict[int, int]:
    """Returns the number of the group of each member."""
    found: dict[int, int] = {}
    for number, group in enumerate(groups):
        found.update(dict.fromkeys(group, number))
    return found


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
        """Adds a vertex and returns its number."""
        self._edges_of.append([])
        return len(self._edges_of) - 1

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        """Adds an edge.

        A cut pays its capacity if the tail is on the source's side and the head on the sink's.
        """
        if capacity <= 0 or tail == head:
            return
        self._edges_of[tail].append(len(self._head))
        self._edges_of[head].append(len(self._head) + 1)
        self._head += [head, tail]
        self._capacity += [capacity, 0]

    def source_side(self) -> list[bool]:
        """Tells for each vertex whether it is on the source's side of the minimum cut.

        It is the smallest such side if there are several.
        """
        while True:
            level = self._levels()
            if level[SINK] < 0:
                return [depth >= 0 for depth in level]
            self._saturate(level)

    def _levels(self) -> list[int]:
        """Returns the distance of each vertex from the source.

        It is -1 for a vertex that the search does not reach before the sink.
        """
        level = [-1] * len(self._edges_of)
        level[SOURCE] = 0
        reached = [SOURCE]
        for vertex in reached:  # the list grows while it is read
            if level[SINK] >= 0:
                break
            for edge in self._edges_of[vertex]:
                head = self._head[edge]
                if level[head] < 0 and self._capacity[edge]:
                    level[head] = level[vertex] + 1
                    reached.append(head)
        return level

    def _saturate(self, level: list[int]) -> None:
        """Sends flow along shortest paths until every one of them has a full edge."""
        heads = self._head
        capacity = self._capacity
        ways = []  # the edges of each vertex that may still lead to the sink
        for edges, depth in zip(self._edges_of, level, strict=True):
            ways.append(
                [edge for edge in edges if capacity[edge] and level[heads[edge]] == depth + 1]
            )
        path: list[int] = []
        while path or ways[SOURCE]:
            vertex = heads[path[-1]] if path else SOURCE
            if vertex == SINK:
                flow = min(capacity[edge] for edge in path)
                for edge in path:
                    capacity[edge] -= flow
                    capacity[edge ^ 1] += flow
                first_full = next(place for place, edge in enumerate(path) if not capacity[edge])
                del path[first_full:]
            elif not ways[vertex]:  # a dead end: the edge to it leaves the ways of its tail
                ways[heads[path.pop() ^ 1]].pop()
            elif capacity[ways[vertex][-1]]:
                path.append(ways[vertex][-1])
            else:
                ways[vertex].pop()
