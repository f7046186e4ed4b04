"""Trip counts: how often loops of graph nodes iterate, where the graph tells.

A loop iterates while its LoopCond holds, which mostly asks whether a counter, changed by one in each iteration, is on
one side of a fixed bound. One of the counter's start and the bound is the number of iterations: a constant, such as the
time steps of a recurrent layer, or what another loop has counted to. So the gradient of a loop iterates as often as the
loop itself. A loop that something else may end earlier is expected to iterate no more often than is typical.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amp_tf.graph.attributes import whole_number
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import (
    BOUNDED,
    CONJUNCTIONS,
    CONSTANTS,
    HANDING_ON,
    LOOP_CONDITIONS,
    LOOP_ENTRIES,
    LOOP_MERGES,
)

TYPICAL = 10.0  #: iterations of a loop that does not tell; most have several

Path = tuple[bytes, ...]  #: the loops that a node runs in, from the outermost on, by their frames' names


def find_trip_counts(view: GraphView, paths: Sequence[Path]) -> Mapping[bytes, float]:
    """How often each loop iterates each time that it is entered, by its frame's name; unknown ones are left out.

    Args:
        view: the graph.
        paths: of each node.
    """
    return _Search(view, paths).all()


class _Search:
    def __init__(self, view: GraphView, paths: Sequence[Path]) -> None:
        self._view = view
        self._paths = paths
        self._condition_of = {paths[node][-1]: node for node in view.nodes_with(LOOP_CONDITIONS) if paths[node]}
        # What is being looked for counts as unknown: in a broken graph it may lead back to itself.
        self._counts_of: dict[bytes, float | None] = {}
        self._holds: dict[int, float | None] = {}
        self._values: dict[int, float | None] = {}

    def all(self) -> dict[bytes, float]:
        """The loops whose trip counts are known."""
        counts = {name: self._count_of(name) for name in self._condition_of}
        return {name: count for name, count in counts.items() if count is not None}

    def _count_of(self, name: bytes) -> float | None:
        if name not in self._counts_of:
            self._counts_of[name] = None
            if name in self._condition_of:
                self._counts_of[name] = self._while_true(self._condition_of[name])
        return self._counts_of[name]

    def _while_true(self, node: int) -> float | None:
        """How often a loop iterates that goes on while this holds; ``None`` if unknown."""
        node = self._origin(node)
        if node not in self._holds:
            self._holds[node] = None
            self._holds[node] = self._find_count(node)
        return self._holds[node]

    def _find_count(self, node: int) -> float | None:
        op, sources = self._view.ops[node], self._sources(node)
        if op in CONJUNCTIONS or op in LOOP_CONDITIONS:
            counts = [self._while_true(source) for source in sources]
            known = [count for count in counts if count is not None]
            return min(known if len(known) == len(counts) else [*known, TYPICAL]) if known else None
        if op not in BOUNDED or len(sources) < 2:
            return None
        ends = [self._origin(source) for source in sources]
        if not self._counts(ends[0]):
            ends.reverse()
        counter, bound = ends
        if not self._counts(counter) or (limit := self._value(bound)) is None:
            return None
        start = self._entry_value(counter)
        return None if start is None else float(max(1, abs(limit - start) + BOUNDED[op]))

    def _value(self, node: int) -> float | None:
        """The number that a node gives, ``None`` if unknown; of another loop's counter, that loop's trip count."""
        if node not in self._values:
            self._values[node] = None
            self._values[node] = self._find_value(node)
        return self._values[node]

    def _find_value(self, node: int) -> float | None:
        op, path = self._view.ops[node], self._paths[node]
        if op in CONSTANTS:
            return whole_number(self._view.protos[node])
        if op not in LOOP_MERGES:
            return None
        if self._counts(node):
            return self._count_of(path[-1]) if path else None
        return self._entry_value(node)

    def _counts(self, node: int) -> bool:
        """Whether this merges the values of a loop's iterations, and they are not all the one that it was given."""
        if self._view.ops[node] not in LOOP_MERGES:
            return False
        back = [source for source in self._sources(node) if self._view.ops[source] not in LOOP_ENTRIES]
        return any(self._origin(end) != node for source in back for end in self._sources(source))

    def _entry_value(self, merge: int) -> float | None:
        """The number that a loop began with."""
        entries = [source for source in self._sources(merge) if self._view.ops[source] in LOOP_ENTRIES]
        return self._value(self._origin(entries[0])) if entries else None

    def _origin(self, node: int) -> int:
        """The node whose value this one passes through unchanged, or itself."""
        seen = {node}
        while self._view.ops[node] in HANDING_ON and (sources := self._sources(node)) and sources[0] not in seen:
            node = sources[0]
            seen.add(node)
        return node

    def _sources(self, node: int) -> list[int]:
        """Where the data inputs of a node come from."""
        return [source for source, _ in self._view.inputs(node)]
