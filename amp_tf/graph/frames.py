"""Frames: in which loop each node of a graph runs.

A loop of graph nodes is entered by its Enter nodes and left by its Exit nodes, and by nothing else, control inputs
included; what runs in between is its frame, and frames lie in each other as loops do.

Source of the method: ``BuildControlFlowInfo`` of core/graph/control_flow.cc (TensorFlow 2.21).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from amp_tf.graph.serialized import Nodes
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import LOOP_ENTRIES, LOOP_EXITS

OUTSIDE = 0  #: the number of what is in no loop
_UNKNOWN = -1

Links = Sequence[tuple[int, int]]  #: (source, reader) of each edge


@dataclasses.dataclass(frozen=True)
class Frames:
    """The loops of a graph, numbered from 1 on; 0 is outside of all loops.

    Attributes:
        of: for each node the frame in which it runs; an Enter runs in the frame around the one that it leads into.
        entered: for each Enter the frame that it leads into.
        around: for each frame the one around it; 0 for 0.
    """

    of: Sequence[int]
    entered: Mapping[int, int]
    around: Sequence[int]

    def with_those_around(self, frame: int) -> Iterable[int]:
        """A frame and all that it lies in, but not :data:`OUTSIDE`."""
        while frame != OUTSIDE:
            yield frame
            frame = self.around[frame]


def control_links(view: GraphView) -> list[tuple[int, int]]:
    """The control edges of a graph: (the node that is waited for, the node that waits)."""
    protos = view.protos
    numbers = protos.mentioning("^") if isinstance(protos, Nodes) else range(len(protos))
    number_of = {name: number for number, name in enumerate(view.names)}
    return [
        (number_of[source[1:]], number)
        for number in numbers
        for source in protos[number].input
        if source.startswith("^")
    ]


def data_links(view: GraphView) -> list[tuple[int, int]]:
    """The data edges of a graph, without their ports."""
    return list(view.edges.rows("src_node", "dst_node"))


def readers_of(node_count: int, links: Iterable[tuple[int, int]]) -> list[list[int]]:
    """For each node the nodes at the other end of its links."""
    readers: list[list[int]] = [[] for _ in range(node_count)]
    for source, reader in links:
        readers[source].append(reader)
    return readers


def find_frames(view: GraphView, links: Links) -> Frames | None:
    """The frames of a graph's nodes; ``None`` if the loops are broken, or two of them have one name.

    Args:
        view: the graph.
        links: all its edges, control edges included.
    """
    readers = readers_of(view.node_count, links)
    of = [OUTSIDE] * view.node_count
    for _, reader in links:
        of[reader] = _UNKNOWN
    entered: dict[int, int] = {}
    number_of: dict[bytes, int] = {}
    around = [OUTSIDE]
    ready = [node for node, frame in enumerate(of) if frame == OUTSIDE]
    reached = len(ready)
    while ready:
        node = ready.pop()
        frame = of[node]
        if view.ops[node] in LOOP_ENTRIES:
            name = view.protos[node].attr["frame_name"].s
            after = entered[node] = number_of.setdefault(name, len(around))
            if after == len(around):
                around.append(frame)
            if around[after] != frame:
                return None
        elif view.ops[node] in LOOP_EXITS:
            if frame == OUTSIDE:
                return None
            after = around[frame]
        else:
            after = frame
        for reader in readers[node]:
            if of[reader] == _UNKNOWN:
                of[reader] = after
                ready.append(reader)
                reached += 1
            elif of[reader] != after:
                return None
    return Frames(of, entered, around) if reached == view.node_count else None
