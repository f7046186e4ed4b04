"""Nodes that pass a float32 value through unchanged, to products and to others."""

from __future__ import annotations

import numpy as np

from amp_tf.oplists.table import HANDING_ON
from amp_tf.painting.canvas import Canvas, units_of
from amp_tf.painting.reasons import FORCED, Rule


def leave_carried_values(canvas: Canvas) -> None:
    """What passes a float32 value through unchanged, also to nodes that are not converted, stays in float32.

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
    values = canvas.flow.values
    painted = canvas.allow.astype(np.bool_)
    forced = np.isin(canvas.rule, sorted(FORCED))
    converted = canvas.nodes_of(painted)
    carriers = values.nodes_of(HANDING_ON) & canvas.nodes_of(painted & ~forced)
    behind = values.readers_of(converted & ~carriers) & carriers
    free = carriers & ~behind & ~values.downstream(behind, through=carriers)
    shared = free & values.sources_of(~converted)
    found = shared | values.upstream(shared, through=free)
    canvas.unpaint_allow(units_of(canvas.view.spread(found)), Rule.CARRIED)
