"""Nodes that hand a float32 value on as it is, to products and to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from amp_tf.graph.indices import Unit
from amp_tf.oplists.table import HANDING_ON
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.reasons import FORCED, Rule


def leave_carried_values(canvas: Canvas) -> None:
    """What hands a float32 value on unchanged, and not to converted nodes alone, stays in float32.

    The cast then stands behind it, for those that want 16 bit: the others get the value as it was, and no cast back. So
    the gradient of a bias is the sum of gradients that nobody rounded, though its product's gradients read them, too.

    Difference "carried-value": TensorFlow converts a Reshape before a product, and what else reads it gets rounded
    values.

    Example (bfloat16)::

        rows = Const() dtype=int32 value=int32[2]*4
        flat = Reshape(x, rows)                      f16 → float32
        allow1 = MatMul(flat, x)                     f16
        exact = Digamma(flat)
    """
    view, edges = canvas.view, canvas.edges
    carriers = {
        unit
        for node in view.nodes_with(HANDING_ON)
        for unit in view.units(node)
        if canvas.allow[unit] and canvas.is_float32[unit] and canvas.rule[unit] not in FORCED
    }
    after_16_bit = [
        unit for unit in carriers if any(canvas.allow[fanin] and fanin not in carriers for fanin in edges.fanins(unit))
    ]
    free = carriers - _reached(after_16_bit, carriers, edges.fanouts)
    shared = [unit for unit in free if any(not canvas.allow[reader] for reader in edges.fanouts(unit))]
    canvas.unpaint_allow(sorted(_reached(shared, free, edges.fanins)), Rule.CARRIED)


def _reached(seeds: Iterable[Unit], within: set[Unit], neighbours: Callable[[Unit], Iterable[Unit]]) -> set[Unit]:
    """The seeds, and what can be reached from them within a set."""
    found = set(seeds)
    waiting = list(found)
    while waiting:
        fresh = {unit for unit in neighbours(waiting.pop()) if unit in within} - found
        found |= fresh
        waiting += fresh
    return found
