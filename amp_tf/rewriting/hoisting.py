"""Reads variables once, before a loop that only reads them.

In a loop of graph nodes a weight is read in each iteration: the variable's handle enters the loop,
and a ReadVariableOp stands inside, with the cast to 16 bit behind it. Here the variable is read
before the loop, and its value enters the loop as a constant of it. Enter is painted like the
products that read it, so the cast moves before the loop by itself. (TensorFlow's pass leaves it in
the loop, which then moves more bytes than it does in float32.) ::

    w_in = Enter(w) T=resource frame_name='loop' is_constant=true
    read = ReadVariableOp(w_in) ^pivot
    product = MatMul(y_switch:1, read)

becomes, before the casts::

    w_in-Read-0-AmpTfHoist = ReadVariableOp(w)
    w_in-0-AmpTfHoist = Enter(w_in-Read-0-AmpTfHoist) frame_name='loop' is_constant=true
    read = ReadVariableOp(w_in) ^pivot ^w_in-0-AmpTfHoist
    product = MatMul(y_switch:1, w_in-0-AmpTfHoist)

A read leaves only the innermost of nested loops. The early read gives the same value as the late
ones:

- *Nobody writes meanwhile.* Two handles may stand for one variable, so no node of the loop, or of
  one inside it, may be able to write any float32 variable.
- *Earlier writes are seen.* A loop is reached through its Enters alone, so every node before a late
  read is before an Enter that leads to the read. The early read waits for all that these Enters
  read or wait for. Whoever runs the late read runs that, too, so no run needs more inputs than
  before.
- *Later writes are not seen.* The late reads stay and wait for the early one's value, so nodes that
  wait for them, or through them for the loop, wait for it too. In a loop without iterations no late
  read runs; then the early one may race with a later write, but nobody looks at its value. If the
  variable was never initialized, it is an error all the same.
- *The loop still ends.* A late read runs only in proper iterations. A value that enters a loop is
  there in all iterations, even in the one after the last. So only readers get it that run in proper
  iterations because of another input, or because they wait for something. A late read in a branch
  keeps its readers, because nothing else may keep them in the branch.

Only readers that become 16 bit get the value; others would read rounded weights. Painting shows
which these are, so at first all readers get it, and if the painting leaves some in float32, only
the others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import gather, reach
from amp_tf.graph.attributes import value_of
from amp_tf.graph.datatypes import Node
from amp_tf.graph.edges import Adjacency
from amp_tf.graph.edits import Reader, Rewire, Wait, attribute
from amp_tf.graph.names import HOIST_SUFFIX
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.painting.work import Path, find_loops
from amp_tf.rewriting.form import Form, NewNodes

_OF_A_LOOP = ("frame_name", "is_constant", "parallel_iterations")  # attributes of its Enters


def hoist(form: Form) -> Form:
    """Moves the reads for those of their readers that become 16 bit."""
    view = form.view
    reads = find_loop_reads(form)
    all_readers: set[Reader] = set()
    wanted: set[Reader] = set()
    for read in reads:
        all_readers.update(read.readers)
        if any(view.ops[node] in form.job.products for node, _ in read.readers):
            wanted.update(read.readers)

    def without_casts(after: Form, _: frozenset[Reader]) -> frozenset[Reader]:
        """Returns the readers that become 16 bit together with the value that they read.

        The value may be float32 if another reader, or the loop, reads it in float32.
        """
        edges = after.view.edges
        is_f16 = after.painting.is_f16()
        read_in_float32 = edges.src_unit[~is_f16[edges.dst_unit]]
        may_become = np.isin(edges.src_unit, read_in_float32)  # without the other reader
        is_right = is_f16[edges.src_unit] | may_become | (edges.src_node < view.node_count)
        found = edges.at(is_f16[edges.dst_unit] & is_right)
        return frozenset(found.rows("dst_node", "dst_position")).intersection(all_readers)

    make = functools.partial(_hoisted, form, reads)
    return form.settled(frozenset(wanted), make, without_casts)


def find_loop_reads(form: Form) -> Sequence[LoopRead]:
    """Finds the reads that may move before their loops; none unless a product reads one."""
    view = form.view
    if "Enter" not in view.ops:
        return ()
    candidates = set()  # reads of float32 variables whose handle comes through an Enter
    read_by: set[str] = set()
    for node in view.nodes_with(table.READ_OPS):
        is_float32 = view.dtypes[view.output_unit(node, 0)] == datatypes.FLOAT
        if is_float32 and view.ops[source_of(view, node)] == "Enter":
            candidates.add(node)
            read_by.update(view.ops[reader] for reader, _ in view.readers(node))
    if read_by.isdisjoint(form.job.products):
        return ()
    search = _LoopSearch(form, candidates)
    if search.is_broken:
        return ()
    return search.movable()


def _hoisted(form: Form, reads: Sequence[LoopRead], wanted: Collection[Reader]) -> Form:
    """Returns the form in which some readers read the early value."""
    view = form.view
    new = NewNodes(view, HOIST_SUFFIX)
    rewires: list[Rewire] = []
    waits = []
    carried: dict[Node, Node] = {}  # for the Enter of each handle, the Enter of its value
    for read in reads:
        moved = [reader for reader in read.readers if reader in wanted]
        if not moved:
            continue
        enter = read.entry
        if enter not in carried:
            carried[enter] = _carry(view, read, new)
        rewires += [Rewire(*reader, carried[enter], 0) for reader in moved]
        waits.append(Wait(read.node, carried[enter]))
    return form.adding(new, rewires=tuple(rewires), waits=tuple(waits))


def _carry(view: GraphView, read: LoopRead, new: NewNodes) -> Node:
    """Adds a read before a loop and the Enter of its value; returns this Enter."""
    enter = read.entry
    name = view.names[enter]
    early = new.copy(read.node, view.inputs(enter), read.after, f"{name}-Read")
    attributes = {"T": attribute(type=datatypes.FLOAT)}
    for key in _OF_A_LOOP:
        if key in view.protos[enter].attr:
            attributes[key] = view.protos[enter].attr[key]
    return new.add(name, view.ops[enter], [(early, 0)], attributes, beside=enter, model=read.node)


class LoopRead(NamedTuple):
    """A read in a loop that may move before it.

    Attributes:
        entry: the Enter through which the handle comes.
        after: the nodes that the early read waits for: all that the Enters of its loop that lead to
            the late read read or wait for.
        readers: the inputs that may get the early value.
    """

    node: Node
    entry: Node
    after: tuple[Node, ...]
    readers: tuple[Reader, ...]


class _LoopSearch:
    """Knows the loops of a graph, and finds the reads that may move before them.

    Attributes:
        is_broken: whether an edge leaves a loop without an Exit.
    """

    def __init__(self, form: Form, reads: Collection[Node]) -> None:
        view = form.view
        self._view = view
        self._reads = reads
        self._kept = form.obstacles.code_of
        sources, readers = view.links
        self._controls = Adjacency(view.controls[:, 0], view.controls[:, 1], view.node_count)
        self._neighbours = Adjacency(sources, readers, view.node_count)
        loops, self._behind = find_loops(view, self._neighbours)
        ends = zip(sources.tolist(), readers.tolist(), strict=True)
        self.is_broken = any(self._behind[source] != loops[reader] for source, reader in ends)
        self._loop_switches: set[Node] = set()
        for condition in view.nodes_with(table.LOOP_CONDITIONS):
            for node, position in view.readers(condition):
                if position == 1 and view.ops[node] == "Switch":
                    self._loop_switches.add(node)
        # The loops in which, or in a loop inside, a node may write a variable.
        self._written: set[Path] = {()}
        for node, loop in enumerate(loops):
            if loop not in self._written and may_write(view, node, form.job.templates.is_function):
                self._written.update(loop[:depth] for depth in range(1, len(loop) + 1))
        # The Enters that lead to each node, as the bits of a number.
        self._entries = view.nodes_with(table.LOOP_ENTRIES)
        marks = [0] * view.node_count
        for number, enter in enumerate(self._entries):
            marks[enter] = 1 << number
        self._led_by = gather(marks, sources, readers)

    def movable(self) -> list[LoopRead]:
        """Returns the reads that may move before their loops."""
        view = self._view
        gated = self._gated()
        found = []
        reads = set(self._reads).difference(self._kept, self._in_branches())
        for read in sorted(reads):
            entry = source_of(view, read)
            loop = self._behind[entry]
            if entry in self._kept or loop in self._written:
                continue
            if not value_of(view.protos[entry], "is_constant").b:
                continue
            if view.devices[entry] != view.devices[read]:
                continue
            readers = []
            for reader, position in view.readers(read):
                may_move = reader in gated and reader not in self._kept
                if may_move and view.ops[reader] not in table.CONTROL_FLOW:
                    readers.append((reader, position))
            if not readers:
                continue
            handle, _ = view.inputs(entry)[0]
            # By name, so that the order of nodes does not matter.
            waits = sorted(self._awaited(read, loop) - {handle}, key=view.names.__getitem__)
            found.append(LoopRead(read, entry, tuple(waits), tuple(readers)))
        return found

    def _awaited(self, read: Node, loop: Path) -> set[Node]:
        """Returns the nodes that those Enters of a loop read or wait for that lead to a read.

        Nodes that start at once are left out.
        """
        view = self._view
        found = set()
        for number, enter in enumerate(self._entries):
            if self._led_by[read] >> number & 1 and self._behind[enter] == loop:
                found.update(self._neighbours.fanins(enter))
        for node in tuple(found):
            if view.ops[node] in table.WITHOUT_WAITING and not self._controls.fanins(node):
                found.remove(node)
        return found

    def _gated(self) -> set[Node]:
        """Returns the nodes that run only in proper iterations of their loop.

        The loop's own Switch passes values on in proper iterations alone. So a node that reads such
        a value or waits for it runs in these alone, and so do its readers. The variable's reads do
        not count, because an early value is there in all iterations::

            y_switch = Switch(y, cond)            cond is the loop's LoopCond
            product = MatMul(y_switch:1, read)    gated
            scaled = Mul(read, two)               not gated: it could run after the last iteration
        """
        view = self._view
        missing = {node: len(view.inputs(node)) for node in view.nodes_with(("Merge",))}
        ready: list[Node] = []
        for switch in self._loop_switches:
            ready += self._let_through(view.readers(switch, port=1), missing)
        found: set[Node] = set()
        while ready:
            node = ready.pop()
            if node in found:
                continue
            found.add(node)
            if node in self._reads:
                continue
            ready += self._let_through(view.readers(node), missing)
            for reader in self._controls.fanouts(node):
                if view.ops[reader] not in table.CONTROL_FLOW:
                    ready.append(reader)
        return found

    def _in_branches(self) -> set[Node]:
        """Returns the nodes of loops that a proper iteration may leave out."""
        view = self._view
        is_open = ~view.mask_with(table.CONTROL_FLOW - {"Switch"})
        first: list[Node] = []
        for switch in view.nodes_with(("Switch",)):
            port = 0 if switch in self._loop_switches else None
            for node, _ in view.readers(switch, port):
                if is_open[node]:
                    first.append(node)
        return {*first, *reach(first, is_open, self._neighbours.outward)}

    def _let_through(self, readers: Iterable[Reader], missing: dict[Node, int]) -> list[Node]:
        """Returns the readers that run only in proper iterations once their input does.

        A Merge does so once all its inputs do; ``missing`` counts the inputs that do not yet.
        """
        found = []
        for node, _ in readers:
            op = self._view.ops[node]
            if op == "Merge":
                missing[node] -= 1
                if not missing[node]:
                    found.append(node)
            elif op == "Switch" or op not in table.CONTROL_FLOW:
                found.append(node)
        return found


def source_of(view: GraphView, reader: Node) -> Node:
    """Returns the node that a node's first input comes from, Identities skipped."""
    source, _ = view.inputs(reader)[0]
    seen = set()
    while view.ops[source] == "Identity" and source not in seen:
        seen.add(source)
        source, _ = view.inputs(source)[0]
    return source


def may_write(view: GraphView, node: Node, is_function: Callable[[str], bool]) -> bool:
    """Tells whether a node may write a float32 variable."""
    signature = view.signatures[node]
    if signature.op in table.HARMLESS:
        return False
    if signature.op in table.TYPED_WRITES:
        return bool(view.protos[node].attr["dtype"].type == datatypes.FLOAT)
    if signature.holds_functions or signature.op in table.PYTHON or is_function(signature.op):
        return True
    types = {view.dtypes[unit] for unit in view.input_units(node)}
    # A dataset is a variant, and runs functions.
    return datatypes.RESOURCE in types or (datatypes.VARIANT in types and signature.is_stateful)
