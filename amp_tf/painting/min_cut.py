"""Minimum cut of a directed network with capacities: the exact optimum of a choice between two labels.

Method: Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation" (1970). Networks
here are long chains with short detours between source and sink, for which few phases suffice.
"""

from __future__ import annotations

SOURCE = 0
SINK = 1
UNBOUNDED = 1 << 60


class Network:
    """A flow network. Vertices are small integers; 0 is the source and 1 the sink."""

    def __init__(self) -> None:
        self._edges_of: list[list[int]] = [[], []]
        self._head: list[int] = []  # edge 2k and its reverse 2k + 1 are neighbours
        self._capacity: list[int] = []

    def add_vertex(self) -> int:
        """A new vertex."""
        self._edges_of.append([])
        return len(self._edges_of) - 1

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        """An edge; the cut pays its capacity if the tail is on the source's side and the head on the sink's."""
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
        """For each vertex its distance from the source, -1 if it is farther than the sink or cannot be reached."""
        edges_of, heads, capacity = self._edges_of, self._head, self._capacity
        level = [-1] * len(edges_of)
        level[SOURCE] = 0
        layer = [SOURCE]
        depth = 0
        while layer and level[SINK] < 0:
            depth += 1
            reached = []
            for vertex in layer:
                for edge in edges_of[vertex]:
                    head = heads[edge]
                    if level[head] < 0 and capacity[edge]:
                        level[head] = depth
                        reached.append(head)
            layer = reached
        return level

    def _saturate(self, level: list[int]) -> None:
        """Sends flow along shortest paths until every one of them has a full edge."""
        edges_of, heads, capacity = self._edges_of, self._head, self._capacity
        next_edge = [0] * len(edges_of)
        path: list[int] = []
        vertex = SOURCE
        while True:
            if vertex == SINK:
                flow = min(capacity[edge] for edge in path)
                for edge in path:
                    capacity[edge] -= flow
                    capacity[edge ^ 1] += flow
                full = next(position for position, edge in enumerate(path) if not capacity[edge])
                vertex = heads[path[full] ^ 1]
                del path[full:]
                continue
            edges = edges_of[vertex]
            while next_edge[vertex] < len(edges):
                edge = edges[next_edge[vertex]]
                if capacity[edge] and level[heads[edge]] == level[vertex] + 1:
                    break
                next_edge[vertex] += 1
            else:
                if not path:
                    return
                vertex = heads[path.pop() ^ 1]
                next_edge[vertex] += 1
                continue
            path.append(edge)
            vertex = heads[edge]
