"""Reads variables once, before a loop that only reads them.

In a loop of graph nodes a weight is read in each iteration: the variable's handle enters the loop,
and a ReadVariableOp stands inside, with the cast to 16 bit behind it. Here the variable is read
before the loop, and its value enters the loop as a constant of it. Enter is painted like the
products that read it, so the cast moves before the loop by itself::

    w_in = Enter(w) T=resource frame_name='loop' is_constant=true
    read = ReadVariableOp(w_in) ^pivot
    product = MatMul(y_switch:1, read)

becomes, before the casts::

    w_in-Read-0-AmpTfHoist = ReadVariableOp(w)
    w_in-0-AmpTfHoist = Enter(w_in-Read-0-AmpTfHoist) frame_name='loop' is_constant=true
    read = ReadVariableOp(w_in) ^pivot ^w_in-0-AmpTfHoist
    product = MatMul(y_switch:1, w_in-0-AmpTfHoist)

Of nested loops, a read leaves only the innermost. The early read gives the same value as the late
ones:

- *Nobody writes meanwhile.* One variable may come in by two handles, so nothing that runs in the
  loop, or in one inside it, may be able to write any variable.
- *Earlier writes are seen.* A loop is reached through its Enters alone, so whatever a late read
  came after, some Enter of the loop came after. The early read waits for all that any of them reads
  or waits for.
- *Later writes are not seen.* The late reads stay and wait for the early one's value, so what waits
  for them, or through them for the loop, waits for it too. In a loop without iterations no late
  read runs; then the early one may race with a later write, but nobody looks at its value. If the
  variable was never initialized, it is an error all the same.
- *The loop still ends.* A late read runs only in iterations that take place; a value that enters a
  loop is there in all, even in the one after the last. So only those readers get it that run in
  proper iterations because of something else that they read or wait for. A late read in a branch
  keeps its readers, because there it may be what decides.

Only readers that become 16 bit get the value; others would read rounded weights. Which these are
shows when the graph is painted. So it is painted with all readers of what products read moved, and
again if not just these become 16 bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import control_links, flood
from amp_tf.graph.attributes import value_of
from amp_tf.graph.datatypes import Node
from amp_tf.graph.edits import Edits, NewNode, Reader, Rewire, Wait, attribute, having
from amp_tf.graph.names import HOIST_SUFFIX, FreshNames
from amp_tf.graph.view import Adjacency, GraphView
from amp_tf.oplists import table
from amp_tf.painting.work import Path, find_loops
from amp_tf.rewriting.form import Form

_OF_A_LOOP = (
    "frame_name",
    "is_constant",
    "parallel_iterations",
)  # what the Enters of a loop say of it


def hoist(form: Form) -> Form:
    """Moves the reads for those of their readers that become 16 bit."""
    view, reads, products = form.view, find_loop_reads(form), form.job.products
    readers = frozenset(reader for read in reads for reader in read.readers)
    wanted = frozenset(
        reader
        for read in reads
        if any(view.ops[node] in products for node, _ in read.readers)
        for reader in read.readers
    )

    def without_casts(after: Form, _: frozenset[Reader]) -> frozenset[Reader]:
        """Which readers become 16 bit, and what they read too, unless that is also read in float32,
        or in the loop.
        """
        edges, is_f16 = after.view.edges, after.painting.is_f16()
        may_become = np.isin(
            edges.src_unit, edges.src_unit[~is_f16[edges.dst_unit]]
        )  # without the other reader
        is_right = is_f16[edges.src_unit] | may_become | (edges.src_node < view.node_count)
        found = edges.at(is_f16[edges.dst_unit] & is_right)
        return frozenset(found.rows("dst_node", "dst_position")).intersection(readers)

    return form.settled(wanted, functools.partial(_hoisted, form, reads), without_casts)


def find_loop_reads(form: Form) -> Sequence[LoopRead]:
    """The reads that may be done before their loops; none where no product reads what is read in a
    loop.
    """
    view = form.view
    candidates = {  # float32 variables whose handle comes through an Enter
        node
        for node in (view.nodes_with(table.READ_OPS) if "Enter" in view.ops else ())
        if view.dtypes[view.base[node] + view.signatures[node].outputs[0]] == datatypes.FLOAT
        and view.ops[_handle_path(view, node)[-1]] == "Enter"
    }
    readers = view.edges.dst_node[np.isin(view.edges.src_node, list(candidates))]
    if not any(view.ops[reader] in form.job.products for reader in readers.tolist()):
        return ()
    search = _LoopSearch(form, candidates)
    return () if search.is_broken else search.movable()


def _hoisted(form: Form, reads: Sequence[LoopRead], wanted: Collection[Reader]) -> Form:
    """The form in which some readers get the values of early reads."""
    view, reads = (
        form.view,
        [read for read in reads if any(reader in wanted for reader in read.readers)],
    )
    name = FreshNames(view.names, HOIST_SUFFIX)
    new: list[NewNode] = []
    models: dict[str, Node] = {}
    carried: dict[Node, Node] = {}  # Enter of a handle to that of the value
    for read in reads:
        enter = read.entry
        if enter not in carried:
            early = view.copied(
                read.node, name.make(f"{view.names[enter]}-Read"), view.inputs(enter), read.after
            )
            source = view.node_count + len(new), 0
            found = view.protos[enter].attr
            of_loop = {key: found[key] for key in _OF_A_LOOP if key in found}
            types = having(T=attribute(type=datatypes.FLOAT), **of_loop)
            value = NewNode(
                name.make(view.names[enter]),
                view.ops[enter],
                view.devices[enter],
                (source,),
                (),
                types,
            )
            carried[enter] = source[0] + 1
            new += early, value
            models |= dict.fromkeys((early.name, value.name), read.node)
    moved = [(read, reader) for read in reads for reader in read.readers if reader in wanted]
    rewires = tuple(Rewire(*reader, carried[read.entry], 0) for read, reader in moved)
    waits = tuple(Wait(read.node, carried[read.entry]) for read in reads)
    return form.then(Edits(rewires=rewires, waits=waits, new=tuple(new)), models)


class LoopRead(NamedTuple):
    """A read in a loop that may be done before it.

    Attributes:
        entry: the Enter through which the handle comes.
        after: what the early read waits for: all that any Enter of its loop reads or waits for,
            because the late read came after one of them.
    """

    node: Node
    entry: Node
    after: tuple[Node, ...]
    readers: tuple[Reader, ...]


class _LoopSearch:
    """What the nodes of a graph with loops read, wait for, and run after; broken loops are left by
    no Exit.
    """

    def __init__(self, form: Form, reads: Collection[Node]) -> None:
        view = self._view = form.view
        self._reads, self._kept = reads, form.obstacles.rule_of
        controls = control_links(view)
        links = np.concatenate([np.stack([view.edges.src_node, view.edges.dst_node], 1), controls])
        self._controls = Adjacency(controls[:, 0], controls[:, 1], view.node_count)
        self._neighbours = Adjacency(links[:, 0], links[:, 1], view.node_count)
        loops, self._behind = find_loops(view, self._neighbours)
        self.is_broken = any(
            self._behind[source] != loops[reader] for source, reader in links.tolist()
        )
        self._loop_switches = {
            node
            for condition in view.nodes_with(table.LOOP_CONDITIONS)
            for node, position in view.readers(condition)
            if position == 1 and view.ops[node] == "Switch"
        }
        self._written: set[Path] = {
            ()
        }  # the loops in which something runs, or in a loop inside, that may write
        for node, loop in enumerate(loops):
            if loop not in self._written and _may_write(view, node, form.job.templates.is_function):
                self._written.update(loop[:depth] for depth in range(1, len(loop) + 1))

    def movable(self) -> list[LoopRead]:
        """Which reads may be done before their loops."""
        gated, in_branches, after, found = self._gated(), self._in_branches(), self._awaited(), []
        for read in sorted({*self._reads}.difference(self._kept, in_branches)):
            entry = _handle_path(self._view, read)[-1]
            readers = tuple(
                (reader, position)
                for reader, position in self._view.readers(read)
                if self._view.ops[reader] not in table.CONTROL_FLOW
                and reader in gated
                and reader not in self._kept
            )
            is_constant, loop = (
                value_of(self._view.protos[entry], "is_constant").b,
                self._behind[entry],
            )
            may_move = is_constant and loop not in self._written and entry not in self._kept
            if readers and may_move and self._view.devices[entry] == self._view.devices[read]:
                handle, _ = self._view.inputs(entry)[0]
                waits = after[loop] - {handle}
                by_name = sorted(
                    waits, key=self._view.names.__getitem__
                )  # so that the order of nodes does not matter
                found.append(LoopRead(read, entry, tuple(by_name), readers))
        return found

    def _awaited(self) -> Mapping[Path, set[Node]]:
        """For each loop, what its Enters read or wait for, without nodes that start at once."""
        awaited, found = self._controls.fanins, dict[Path, set[Node]]()
        for enter in self._view.nodes_with(table.LOOP_ENTRIES):
            found.setdefault(self._behind[enter], set()).update(
                awaited(enter), [self._view.inputs(enter)[0][0]]
            )
        idle = {node for node in self._view.nodes_with(table.WITHOUT_WAITING) if not awaited(node)}
        return {loop: sources - idle for loop, sources in found.items()}

    def _gated(self) -> set[int]:
        """The nodes that run only in proper iterations of their loop, even if the reads' values
        were always there.

        The loop's own Switch lets values through in proper iterations alone; so whatever reads or
        waits for one of these, or for what reads it, runs in proper iterations alone::

            y_switch = Switch(y, cond)            cond is the loop's LoopCond
            product = MatMul(y_switch:1, read)    gated
            scaled = Mul(read, two)               not gated: an early value would be there after the last iteration
        """
        view, found = self._view, set[int]()
        missing = {
            node: len(view.inputs(node)) for node, op in enumerate(view.ops) if op == "Merge"
        }
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
            ready += [
                reader
                for reader in self._controls.fanouts(node)
                if view.ops[reader] not in table.CONTROL_FLOW
            ]
        return found

    def _in_branches(self) -> set[int]:
        """The nodes of loops that may not run in an iteration that takes place."""
        view, is_open = self._view, ~self._view.mask_with(table.CONTROL_FLOW - {"Switch"})
        first = [
            node
            for switch in view.nodes_with(("Switch",))
            for node, _ in view.readers(switch, port=0 if switch in self._loop_switches else None)
            if is_open[node]
        ]
        ways = [(self._neighbours.fanout_start, self._neighbours.fanout)]
        return {*first, *flood(first, bytearray(is_open), ways)}

    def _lets_through(self, node: Node, missing: dict[int, int]) -> bool:
        """Whether a node runs only in proper iterations once one more input does; a Merge needs
        that of all inputs.
        """
        op = self._view.ops[node]
        if op == "Merge":
            missing[node] -= 1
            return not missing[node]
        return op == "Switch" or op not in table.CONTROL_FLOW


def _handle_path(view: GraphView, reader: Node) -> list[Node]:
    """The nodes that give a node its first input, back to the first that is no Identity."""
    path = [view.inputs(reader)[0][0]]
    while view.ops[path[-1]] == "Identity" and path[-1] not in path[:-1]:
        path.append(view.inputs(path[-1])[0][0])
    return path


def _may_write(view: GraphView, node: Node, is_function: Callable[[str], bool]) -> bool:
    signature = view.signatures[node]
    if signature.op in table.HARMLESS:
        return False
    if signature.holds_functions or signature.op in table.PYTHON or is_function(signature.op):
        return True
    types = {view.dtypes[view.base[node] + slot] for slot in signature.inputs}
    # A dataset is a variant, and runs functions.
    return datatypes.RESOURCE in types or (datatypes.VARIANT in types and signature.is_stateful)
