"""Which reads of variables in loops may be done before the loop; :mod:`amp_tf.rewriting.hoisting` says why.

A loop that multiplies its state by a weight in each iteration; ``w`` is the weight's handle::

    w_in = Enter(w) T=resource frame_name='loop' is_constant=true
    read = ReadVariableOp(w_in) ^pivot
    product = MatMul(y_switch:1, read)

The read may move, because its handle comes through an Enter whose loop writes no variable. Its reader, the product, may
have the early value, because it reads what the loop's own Switch lets through as well, so that it runs no more often
than before. Found is a :class:`LoopRead` of ``read``, with the entries ``(w_in,)`` and the readers ``((product, 1),)``,
and :mod:`amp_tf.rewriting.hoisting` makes of it::

    w_in-Read-0-AmpTfHoist = ReadVariableOp(w)
    w_in-0-AmpTfHoist = Enter(w_in-Read-0-AmpTfHoist) frame_name='loop' is_constant=true
    read = ReadVariableOp(w_in) ^pivot ^w_in-0-AmpTfHoist
    product = MatMul(y_switch:1, w_in-0-AmpTfHoist)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import OUTSIDE, Frames, Links, readers_of
from amp_tf.graph.datatypes import Node
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import CONTROL_FLOW, HARMLESS, LOOP_CONDITIONS, PYTHON, READ_OPS, WITHOUT_WAITING

Reader = tuple[int, int]  #: a node and the number of its data input


@dataclasses.dataclass(frozen=True)
class LoopRead:
    """A read in a loop that may be done before it.

    Attributes:
        node: the ReadVariableOp.
        entries: the Enters through which the handle comes, from the read outwards, as far as the read may move.
        readers: who may get the early read's value.
    """

    node: Node
    entries: tuple[int, ...]
    readers: tuple[Reader, ...]


@dataclasses.dataclass(frozen=True)
class LoopReads:
    """The reads of a graph that may be done before their loops.

    Attributes:
        reads: one entry for each.
        handles: for the last of each read's entries, before which the early read will stand, the handle that it hands
            on: (node, port).
        after: for each entry, which nodes its new counterpart waits for. For the last entry of a read these are all
            that any Enter of its loop reads or waits for: the late read came after one of them. For the others they
            are those that the Enter waits for.
    """

    reads: tuple[LoopRead, ...] = ()
    handles: Mapping[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    after: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def readers(self) -> frozenset[Reader]:
        """Who may get an early read's value."""
        return frozenset(reader for read in self.reads for reader in read.readers)


NO_READS = LoopReads()


def reads_behind_enters(view: GraphView) -> set[int]:
    """The reads of float32 variables in loops whose handle comes through an Enter."""
    if "Enter" not in view.ops:
        return set()
    reads = [node for node, op in enumerate(view.ops) if op in READ_OPS and _output_type(view, node) == datatypes.FLOAT]
    return {read for read in reads if view.ops[_handle_path(view, read)[-1]] == "Enter"}


def find_movable(
    view: GraphView,
    candidates: Collection[int],
    controls: Links,
    frames: Frames,
    kept: Collection[int],
    is_function: Callable[[str], bool],
) -> LoopReads:
    """Which reads may be done before their loops.

    Args:
        view: the graph.
        candidates: the reads, of :func:`reads_behind_enters`.
        controls: the control edges of the graph.
        frames: its loops.
        kept: the nodes that must stay in float32.
        is_function: whether an op is a function of the graph's library.
    """
    search = _Search(view, candidates, controls, frames, _written_frames(view, frames, is_function))
    gated, in_branches = search.gated(), search.in_branches()
    found = []
    for read in sorted({*candidates}.difference(kept, in_branches)):
        entries = search.entries(read, kept)
        readers = tuple(reader for reader in search.readers(read) if reader[0] in gated and reader[0] not in kept)
        if entries and readers:
            found.append(LoopRead(read, entries, readers))
    handles = {read.entries[-1]: search.handle(read.entries[-1]) for read in found}
    return LoopReads(tuple(found), handles, search.order(found))


class _Search:
    """What the nodes of a graph with loops read, wait for, and run after.

    Args:
        view: the graph.
        reads: the reads in its loops.
        controls: its control edges.
        frames: its frames.
        written: the frames in which a variable may be written.
    """

    def __init__(
        self,
        view: GraphView,
        reads: Collection[int],
        controls: Links,
        frames: Frames,
        written: Collection[int],
    ) -> None:
        self._view = view
        self._reads = reads
        self._frames = frames
        self._written = written
        self._controls = controls
        self._waiting = readers_of(view.node_count, controls)
        self._loop_switches = {
            node
            for condition in view.nodes_with(LOOP_CONDITIONS)
            for node, position in view.readers(condition)
            if position == 1 and view.ops[node] == "Switch"
        }

    def readers(self, node: Node) -> Iterator[Reader]:
        """The data inputs that read a node, those of control flow left out."""
        for reader, position in self._view.readers(node):
            if self._view.ops[reader] not in CONTROL_FLOW:
                yield reader, position

    def handle(self, enter: Node) -> tuple[int, int]:
        """What an Enter reads: (node, port)."""
        return self._view.inputs(enter)[0]

    def entries(self, read: int, kept: Collection[int]) -> tuple[int, ...]:
        """The Enters through which a read's handle comes, as far out as the read may move."""
        view, found = self._view, []
        enter = _handle_path(self._view, read)[-1]
        while view.ops[enter] == "Enter" and enter not in kept and self._lets_pass(enter, read):
            found.append(enter)
            enter = _handle_path(self._view, enter)[-1]
        return tuple(found)

    def order(self, reads: Iterable[LoopRead]) -> dict[int, tuple[int, ...]]:
        """The nodes that the counterparts of some reads' entries wait for, as :attr:`LoopReads.after`."""
        awaited: dict[int, list[int]] = {}
        for source, node in self._controls:
            awaited.setdefault(node, []).append(source)
        idle = {node for node, op in enumerate(self._view.ops) if op in WITHOUT_WAITING and node not in awaited}
        members: dict[int, list[int]] = {}
        for enter, frame in self._frames.entered.items():
            members.setdefault(frame, []).append(enter)
        after: dict[int, tuple[int, ...]] = {}
        for read in reads:
            *inner, outermost = read.entries
            for enter in inner:
                path = [enter, *_handle_path(self._view, enter)[:-1]]
                after[enter] = self._sorted({source for node in path for source in awaited.get(node, ())})
            loop = members[self._frames.entered[outermost]]
            sources = {self.handle(enter)[0] for enter in loop}
            sources.update(source for enter in loop for source in awaited.get(enter, ()))
            after[outermost] = self._sorted(sources - idle - {self.handle(outermost)[0]})
        return after

    def gated(self) -> set[int]:
        """The nodes that run in proper iterations of their loop alone, even if all reads had their values always.

        The loop's own Switch lets values through in proper iterations alone; so whatever reads or waits for one of
        these, or for what reads it, runs in proper iterations alone::

            y_switch = Switch(y, cond)            cond is the loop's LoopCond
            product = MatMul(y_switch:1, read)    gated
            scaled = Mul(read, two)               not gated: an early value would be there after the last iteration
        """
        view, found = self._view, set[int]()
        missing = {node: len(view.inputs(node)) for node, op in enumerate(view.ops) if op == "Merge"}
        ready = [
            node
            for switch in self._loop_switches
            for node, _ in self._view.readers(switch, port=1)
            if self._lets_through(node, missing)
        ]
        while ready:
            node = ready.pop()
            if node in found:
                continue
            found.add(node)
            if node in self._reads:
                continue
            data = [reader for reader, _ in self._view.readers(node)]
            ready += [reader for reader in data if self._lets_through(reader, missing)]
            ready += [reader for reader in self._waiting[node] if view.ops[reader] not in CONTROL_FLOW]
        return found

    def in_branches(self) -> set[int]:
        """The nodes of loops that may not run in an iteration that takes place."""
        found = set[int]()
        ready = []
        for switch, op in enumerate(self._view.ops):
            if op == "Switch":
                port = 0 if switch in self._loop_switches else None
                ready += [node for node, _ in self._view.readers(switch, port)]
        while ready:
            node = ready.pop()
            if node in found or self._view.ops[node] in CONTROL_FLOW - {"Switch"}:
                continue
            found.add(node)
            ready += [reader for reader, _ in self._view.readers(node)]
            ready += self._waiting[node]
        return found

    def _sorted(self, nodes: Iterable[Node]) -> tuple[int, ...]:
        """By name, so that the order of the nodes does not matter."""
        return tuple(sorted(nodes, key=self._view.names.__getitem__))

    def _lets_pass(self, enter: Node, read: int) -> bool:
        """Whether a read may move out of the loop that an Enter leads into."""
        view = self._view
        is_written = self._frames.entered[enter] in self._written
        return not is_written and view.devices[enter] == view.devices[read] and _is_constant(view.protos[enter])

    def _lets_through(self, node: Node, missing: dict[int, int]) -> bool:
        """Whether a node runs in proper iterations alone if one more of its inputs does; a Merge needs that of all."""
        op = self._view.ops[node]
        if op == "Merge":
            missing[node] -= 1
            return not missing[node]
        return op == "Switch" or op not in CONTROL_FLOW


def _handle_path(view: GraphView, reader: Node) -> list[Node]:
    """The nodes that give a node its first input, back to the first that is no Identity."""
    path = [view.inputs(reader)[0][0]]
    while view.ops[path[-1]] == "Identity" and path[-1] not in path[:-1]:
        path.append(view.inputs(path[-1])[0][0])
    return path


def _output_type(view: GraphView, node: Node) -> int:
    return view.dtypes[view.base[node] + view.signatures[node].outputs[0]]


def _written_frames(view: GraphView, frames: Frames, is_function: Callable[[str], bool]) -> set[int]:
    """The frames in which something runs, or in a loop inside, that may write a variable."""
    found = set[int]()
    for node, frame in enumerate(frames.of):
        if frame != OUTSIDE and frame not in found and _may_write(view, node, is_function):
            found.update(frames.with_those_around(frame))
    return found


def _may_write(view: GraphView, node: Node, is_function: Callable[[str], bool]) -> bool:
    signature = view.signatures[node]
    if signature.op in HARMLESS:
        return False
    if signature.holds_functions or signature.op in PYTHON or is_function(signature.op):
        return True
    types = {view.dtypes[view.base[node] + slot] for slot in signature.inputs}
    # A dataset is a variant, and runs functions.
    return datatypes.RESOURCE in types or (datatypes.VARIANT in types and signature.is_stateful)


def _is_constant(enter: Any) -> bool:
    attribute = enter.attr.get("is_constant")  # indexing would add it
    return attribute is not None and bool(attribute.b)
