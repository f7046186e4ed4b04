"""Recurrent edges: the NextIteration and the Merge of a loop must have one precision, or the loop cannot run."""

from __future__ import annotations

from collections.abc import Iterator

from amp_tf.errors import GraphError
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.reasons import Rule


def recurrent_units(canvas: Canvas) -> Iterator[list[int]]:
    """For each NextIteration, the units that must have one type: its own, and those of the Merges that read it."""
    view = canvas.view
    for node, op in enumerate(view.ops):
        if op == "NextIteration":
            slot = view.signatures[node].slot_of("T")
            assert slot is not None
            unit = view.base[node] + slot
            yield [unit, *canvas.edges.fanouts(unit)]


def match_recurrent_edges(canvas: Canvas) -> None:
    """For each NextIteration: if a Merge that reads it is not allow, neither it nor its Merges are; else it is allow.

    Difference "preserved-loop": TensorFlow paints a preserved NextIteration too.

    Raises:
        GraphError: something other than a Merge reads a NextIteration.
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
