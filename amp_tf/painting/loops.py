"""Recurrent edges: the NextIteration, the Merge and the Enter of a loop's value must have one precision."""

from __future__ import annotations

from collections.abc import Iterator

from amp_tf.errors import GraphError
from amp_tf.oplists.table import LOOP_MERGES
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.reasons import Rule


def recurrent_units(canvas: Canvas) -> Iterator[list[int]]:
    """For each NextIteration, the units that must have one type: its own, and those of the Merges that read it."""
    view = canvas.view
    for node in view.nodes_with(("NextIteration",)):
        slot = view.signatures[node].slot_of("T")
        assert slot is not None
        unit = view.base[node] + slot
        yield [unit, *canvas.edges.fanouts(unit)]


def match_recurrent_edges(canvas: Canvas) -> None:
    """For each NextIteration: if a Merge that reads it is not allow, neither it nor its Merges are; else it is allow.

    Difference "preserved-loop": TensorFlow paints a preserved NextIteration too.

    Raises:
        GraphError: something other than a Merge reads a NextIteration.

    Example (bfloat16, keep_float32=^next$)::

        start = Enter(x) frame_name='f'                           f16 → float32
        state = Merge(start, next)                                f16 → float32
        go = Placeholder() dtype=bool
        turns = Enter(go) T=bool frame_name='f' is_constant=true
        again = LoopCond(turns)
        switch = Switch(state, again)                             f16
        allow1 = MatMul(switch:1, switch:1)                       f16
        next = NextIteration(allow1)
        done = Exit(switch)                                       f16
        allow2 = MatMul(done, x)                                  f16
    """
    view = canvas.view
    for unit, *merges in recurrent_units(canvas):
        for merge in merges:
            reader = canvas.node_of[merge]
            if view.ops[reader] != "Merge":
                raise GraphError(
                    f"reads a NextIteration, which only a Merge may do, and is a {view.ops[reader]}",
                    where=view.where(reader),
                    fix="The loop is broken; export the graph again",
                )
        if not canvas.locked[unit] and all(canvas.allow[merge] for merge in merges):
            canvas.paint_allow([unit], Rule.LOOP_FOLLOWS)
        else:
            canvas.unpaint_allow([*merges, unit], Rule.LOOP_DENIED)


def match_entries(canvas: Canvas) -> None:
    """Gives an Enter the type of the Merge that reads it, so that the cast stands before the loop.

    TensorFlow knows that a loop in a branch that is not taken does not run by the Enter that a Merge reads. With a cast
    in between, what waits for the loop's end waits for ever, or is lost.

    Difference "loop-entry": TensorFlow lets a cast stand there.

    Example (bfloat16)::

        allow1 = MatMul(x, x)                                     f16
        start = Enter(allow1) frame_name='f'                      f16 → float32
        state = Merge(start, next)
        go = Placeholder() dtype=bool
        turns = Enter(go) T=bool frame_name='f' is_constant=true
        again = LoopCond(turns)
        switch = Switch(state, again)
        deny1 = Exp(switch:1)
        next = NextIteration(deny1)
        done = Exit(switch)                                       f16
        allow2 = MatMul(done, x)                                  f16
    """
    view = canvas.view
    is_merge = view.mask_with(LOOP_MERGES)
    edges = view.edges.at(is_merge[view.edges.dst_node])
    columns = (column.tolist() for column in (edges.src_node, edges.src_unit, edges.dst_unit))
    for source, enter, merge in zip(*columns, strict=True):
        if view.ops[source] != "Enter" or canvas.allow[enter] == canvas.allow[merge]:
            continue
        if canvas.allow[enter]:
            canvas.unpaint_allow([enter], Rule.LOOP_DENIED)
        elif canvas.convertible[enter] and not canvas.locked[enter]:
            canvas.paint_allow([enter], Rule.LOOP_FOLLOWS)
