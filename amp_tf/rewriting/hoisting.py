"""Reads variables once, before a loop that only reads them.

In a loop of graph nodes a weight is read in each iteration: the variable's handle enters the loop, and a ReadVariableOp
stands inside. The cast to 16 bit behind it then runs in each iteration too. Here the variable is read before the loop,
and its value enters the loop as one that never changes; Enter is painted like the products that read it, so that the
cast comes to stand before the loop by itself.

    before:  handle → Enter → ReadVariableOp → Cast → MatMul
    after:   handle → ReadVariableOp → Cast → Enter → MatMul

The early read gives what the late ones gave:

- *Nobody writes meanwhile.* One variable may come in by two handles, so nothing that runs in the loop, or in one inside
  it, may be able to write any variable (:mod:`amp_tf.rewriting.loop_reads` has the list).
- *What was written before is read.* A loop is reached through its Enters alone, so what a late read came after, some
  Enter of the loop came after. The early read waits for all that any of them reads or waits for.
- *What is written afterwards is not read.* The late reads stay and wait for the early one's value, so what waits for
  them, or for the loop by way of them, waits for it too. In a loop without iterations no late read runs. Then the early
  one may race with a later write, but nobody looks at its value. It is the one thing that differs: of a variable that
  was never initialized it is an error, although no late read would have run.
- *The loop still ends.* A late read runs in iterations that take place; a value that enters a loop is there in all,
  even in the one after the last. So only such readers get it as run in proper iterations because of something else that
  they read or wait for. A late read in a branch keeps its readers, because there it may be what decides.

Which readers get the value: those that become 16 bit, no others, or they would read rounded weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from amp_tf.graph.algorithms import control_links, data_links, find_frames
from amp_tf.graph.edits import Edits, NewNode, Rewire, Wait
from amp_tf.graph.names import FreshNames
from amp_tf.graph.verify import find_ring
from amp_tf.graph.view import GraphView
from amp_tf.painting.outcome import Painting
from amp_tf.rewriting.form import Form, Job
from amp_tf.rewriting.loop_reads import NO_READS, LoopReads, Reader, find_movable, reads_behind_enters

SUFFIX = "AmpTfHoist"  #: ends the names of new nodes
_ATTEMPTS = 3  # paintings, until what is moved is what becomes 16 bit


def with_early_reads(form: Form, job: Job) -> tuple[Form, Painting]:
    """Moves the reads for those of their readers that become 16 bit; the form and its painting.

    Which ones do shows when the graph is painted, and where the casts stand has a part in it. So it is painted with all
    readers of what products read moved, and once more if not just these become 16 bit. Only where amp_tf chooses the
    precision: naming one means TensorFlow's own conversion.
    """
    loop_reads = find_loop_reads(form, job)
    products, readers = job.products(), loop_reads.readers()
    wanted = frozenset(
        reader
        for read in loop_reads.reads
        if any(form.view.ops[node] in products for node, _ in read.readers)
        for reader in read.readers
    )
    for _ in range(_ATTEMPTS):
        if not wanted:
            break
        hoisted = _hoist(form, _plan_moves(form.view, loop_reads, wanted), job)
        painting = job.paint(hoisted)
        found = _without_casts(painting, readers, form.view.node_count)
        if found == wanted:
            return hoisted, painting
        wanted = found
    return form, job.paint(form)


def find_loop_reads(form: Form, job: Job) -> LoopReads:
    """The reads that may be done before their loops; none where no product reads what is read in a loop."""
    view = form.view
    if not job.products():
        return NO_READS
    candidates = reads_behind_enters(view)
    if not _are_read_by(view, candidates, job.products()):
        return NO_READS
    controls = control_links(view)
    links = [*data_links(view), *controls]
    frames = find_frames(view, links)
    if frames is None:
        return NO_READS
    reads = find_movable(view, candidates, controls, frames, job.obstacles(form).rule_of, job.templates.is_function)
    # The new edges must not close a ring, whatever else is wrong with a graph.
    edits = _plan_moves(view, reads, reads.readers()).edits
    ring = find_ring(view.ops, [*links, *edits.links(view.node_count)], view.node_count + len(edits.new))
    return reads if ring is None else NO_READS


class _Moves(NamedTuple):
    """How some readers get the values of early reads.

    Attributes:
        edits: what changes.
        models: for each new node, by name, the node whose results its results are.
    """

    edits: Edits
    models: Mapping[str, int]


def _plan_moves(view: GraphView, loop_reads: LoopReads, wanted: Collection[Reader]) -> _Moves:
    reads = [read for read in loop_reads.reads if any(reader in wanted for reader in read.readers)]
    first_read = {read.entries[-1]: read.node for read in reversed(reads)}  # behind each Enter that is an outermost one
    outer = {inner: enter for read in reads for inner, enter in itertools.pairwise(read.entries)}
    entries = list(dict.fromkeys(enter for read in reads for enter in reversed(read.entries)))
    name = FreshNames(view.names, SUFFIX)
    new: list[NewNode] = []
    models: list[int] = []
    early, carried = dict[int, int](), dict[int, int]()  # Enter to the new read before it, and to its new counterpart
    for enter, read in first_read.items():
        early[enter] = view.node_count + len(new)
        handle, after = loop_reads.handles[enter], loop_reads.after[enter]
        new.append(NewNode.like(name.make(f"{view.names[enter]}-Read"), view, read, (handle,), after))
        models.append(read)
    for enter in entries:
        source = early[enter] if enter in early else carried[outer[enter]]
        carried[enter] = view.node_count + len(new)
        after = () if enter in early else loop_reads.after[enter]
        new.append(NewNode.enter(name.make(view.names[enter]), view, enter, (source, 0), after))
        models.append(models[source - view.node_count])
    edits = Edits(
        rewires=tuple(
            Rewire(*reader, carried[read.entries[0]], 0)
            for read in reads
            for reader in read.readers
            if reader in wanted
        ),
        waits=tuple(Wait(read.node, carried[read.entries[0]]) for read in reads),
        new=tuple(new),
    )
    return _Moves(edits, {node.name: model for node, model in zip(new, models, strict=True)})


def _hoist(form: Form, moves: _Moves, job: Job) -> Form:
    view, shapes = form.view, form.shapes
    shape_of = {name: shapes.output_shapes(view.names[model]) for name, model in moves.models.items()}
    return form.then(moves.edits, job.templates, shape_of)


def _without_casts(painting: Painting, readers: Collection[Reader], node_count: int) -> frozenset[Reader]:
    """Which readers become 16 bit, and what they read too, unless it is a read that was there before."""
    view, edges = painting.view, painting.view.edges
    is_converted = np.zeros(view.unit_count, np.bool_)
    is_converted[painting.converted] = True
    is_right = is_converted[edges.dst_unit] & (is_converted[edges.src_unit] | (edges.src_node < node_count))
    right = edges.at(is_right)
    return frozenset(right.rows("dst_node", "dst_position")).intersection(readers)


def _are_read_by(view: GraphView, nodes: Collection[int], ops: Collection[str]) -> bool:
    """Whether a node of these ops reads one of these nodes."""
    readers = view.edges.dst_node[np.isin(view.edges.src_node, list(nodes))]
    return any(view.ops[reader] in ops for reader in readers.tolist())
