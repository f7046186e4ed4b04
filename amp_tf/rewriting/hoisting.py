"""Reads variables once, before a loop that only reads them.

In a loop of graph nodes a weight is read in each turn: the loop hands on the variable's handle, and a ReadVariableOp
stands inside. The cast to 16 bit behind it then runs in each turn too. Here the variable is read before the loop, and
its value enters the loop as one that never changes; Enter is painted like the products that read it, so that the cast
comes to stand before the loop by itself.

    before:  handle → Enter → ReadVariableOp → Cast → MatMul
    after:   handle → ReadVariableOp → Cast → Enter → MatMul

The early read gives what the late ones gave:

- *Nobody writes meanwhile.* One variable may come in by two handles, so nothing that runs in the loop, or in one inside
  it, may be able to write any variable (:mod:`amp_tf.rewriting.loop_reads` has the list).
- *What was written before is read.* A loop is reached through its Enters alone, so what a late read came after, some
  Enter of the loop came after. The early read waits for all that any of them reads or waits for.
- *What is written afterwards is not read.* The late reads stay and wait for the early one's value, so what waits for
  them, or for the loop by way of them, waits for it too. In a loop without turns no late read runs. Then the early one
  may race with a later write, but nobody looks at its value. It is the one thing that differs: of a variable that was
  never initialized it is an error, although no late read would have run.
- *The loop still ends.* A late read runs in turns that take place; a value that enters a loop is there in all turns,
  even in the one after the last. So only such readers get it as run in proper turns because of something else that
  they read or wait for. A late read in a branch keeps its readers, because there it may be what decides.

Which readers get the value: those that become 16 bit, no others, or they would read rounded weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable

import numpy as np

from amp_tf.graph.frames import control_links, data_links, find_frames
from amp_tf.graph.moving import Move, Moves, NewEnter, NewRead, Wait, move_nodes
from amp_tf.graph.templates import Templates
from amp_tf.graph.verify import find_ring
from amp_tf.graph.view import GraphView
from amp_tf.painting.eligibility import Obstacles
from amp_tf.painting.painting import Painting
from amp_tf.rewriting.folding import FoldedGraph, ShapesAfter
from amp_tf.rewriting.loop_reads import NO_READS, LoopReads, Reader, find_movable, reads_behind_enters

SUFFIX = "AmpTfHoist"  #: ends the names of new nodes
_ATTEMPTS = 3  # paintings, until what is moved is what becomes 16 bit


def find_loop_reads(
    view: GraphView,
    products: Collection[str],
    obstacles: Callable[[], Obstacles],
    is_function: Callable[[str], bool] = lambda op: False,
) -> LoopReads:
    """The reads that may be done before their loops; none where no product reads what is read in a loop.

    Args:
        view: the graph.
        products: the ops that become 16 bit by themselves.
        obstacles: finds the nodes that must stay as they are, or that the user has a wish for.
        is_function: whether an op is a function of the graph's library.
    """
    candidates = reads_behind_enters(view)
    if not _are_read_by(view, candidates, products):
        return NO_READS
    controls = control_links(view)
    links = [*data_links(view), *controls]
    frames = find_frames(view, links)
    if frames is None:
        return NO_READS
    reads = find_movable(view, candidates, controls, frames, obstacles().rule_of, is_function)
    # The new edges must not close a ring, whatever else is wrong with a graph.
    all_moved = plan_moves(view, reads, reads.readers())
    ring = find_ring(view.ops, [*links, *all_moved.links(view)], view.node_count + all_moved.added)
    return reads if ring is None else NO_READS


def paint_hoisted(
    graph: FoldedGraph,
    loop_reads: LoopReads,
    products: Collection[str],
    move: Callable[[Moves], FoldedGraph],
    paint: Callable[[FoldedGraph], Painting],
) -> tuple[FoldedGraph, Painting]:
    """Moves the reads for those of their readers that become 16 bit; the graph and its painting.

    Which ones do shows when the graph is painted, and where the casts stand has a part in it. So it is painted with all
    readers of what products read moved, and once more if not just these become 16 bit.

    Args:
        graph: the graph.
        loop_reads: what :func:`find_loop_reads` found in it.
        products: the ops that become 16 bit by themselves.
        move: makes moves in the graph, as :func:`hoist`.
        paint: paints a graph.
    """
    wanted = frozenset(
        reader
        for read in loop_reads.reads
        if any(graph.view.ops[node] in products for node, _ in read.readers)
        for reader in read.readers
    )
    for _ in range(_ATTEMPTS):
        if not wanted:
            break
        hoisted = move(plan_moves(graph.view, loop_reads, wanted))
        painting = paint(hoisted)
        found = _without_casts(painting, loop_reads.readers(), graph.view.node_count)
        if found == wanted:
            return hoisted, painting
        wanted = found
    return graph, paint(graph)


def plan_moves(view: GraphView, loop_reads: LoopReads, wanted: Collection[Reader]) -> Moves:
    """The edits by which some readers get the values of early reads.

    Args:
        view: the graph.
        loop_reads: what :func:`find_loop_reads` found in it.
        wanted: who of :meth:`LoopReads.readers`.
    """
    reads = [read for read in loop_reads.reads if any(reader in wanted for reader in read.readers)]
    outermost = {read.entries[-1]: read.node for read in reversed(reads)}  # Enter to the first read behind it
    outer = {inner: enter for read in reads for inner, enter in itertools.pairwise(read.entries)}
    entries = list(dict.fromkeys(enter for read in reads for enter in reversed(read.entries)))
    early = dict(zip(outermost, range(view.node_count, view.node_count + len(outermost)), strict=True))
    carried = {enter: view.node_count + len(early) + number for number, enter in enumerate(entries)}
    name = _Names(view.names)
    return Moves(
        moves=tuple(
            Move(*reader, carried[read.entries[0]], 0) for read in reads for reader in read.readers if reader in wanted
        ),
        reads=tuple(
            NewRead(name.fresh(f"{view.names[enter]}-Read"), read, *loop_reads.handles[enter], loop_reads.after[enter])
            for enter, read in outermost.items()
        ),
        enters=tuple(
            NewEnter(name.fresh(view.names[enter]), enter, early[enter], ())
            if enter in early
            else NewEnter(name.fresh(view.names[enter]), enter, carried[outer[enter]], loop_reads.after[enter])
            for enter in entries
        ),
        waits=tuple(Wait(read.node, carried[read.entries[0]]) for read in reads),
    )


def hoist(graph: FoldedGraph, moves: Moves, templates: Templates) -> FoldedGraph:
    """The graph with reads moved out of loops.

    Raises:
        GraphError: the result is broken, or another than was planned. This is a bug.
    """
    table, view = move_nodes(graph.nodes, graph.view, moves, templates, where="hoisting")
    shape_of = {read.name: graph.shapes.output_shapes(view.names[read.model]) for read in moves.reads}
    for enter in moves.enters:
        shape_of[enter.name] = shape_of[view.names[enter.src_node]]
    return FoldedGraph(table, view, ShapesAfter(graph.shapes, shape_of), graph.folded)


def _without_casts(painting: Painting, readers: Collection[Reader], node_count: int) -> frozenset[Reader]:
    """Which readers become 16 bit, and what they read too, unless it is a read that was there before."""
    view, edges = painting.view, painting.view.edges
    is_converted = np.zeros(view.unit_count, np.bool_)
    is_converted[painting.converted] = True
    is_right = is_converted[edges.dst_unit] & (is_converted[edges.src_unit] | (edges.src_node < node_count))
    right = edges.at(is_right)
    return frozenset(zip(right.dst_node.tolist(), right.dst_position.tolist(), strict=True)).intersection(readers)


class _Names:
    """Makes names that no node has.

    Args:
        taken: the names that nodes have.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def fresh(self, stem: str) -> str:
        """A name that begins with the stem."""
        name = next(n for i in itertools.count() if (n := f"{stem}-{i}-{SUFFIX}") not in self._taken)
        self._taken.add(name)
        return name


def _are_read_by(view: GraphView, nodes: Collection[int], ops: Collection[str]) -> bool:
    """Whether a node of these ops reads one of these nodes."""
    readers = view.edges.dst_node[np.isin(view.edges.src_node, list(nodes))]
    return any(view.ops[reader] in ops for reader in readers.tolist())
