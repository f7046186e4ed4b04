"""The passes of TensorFlow that paint by the lists. Pass 7 is in :mod:`amp_tf.painting.ties`, and
those of TensorLists are in :mod:`amp_tf.painting.tensor_lists`.

Order and meaning are those of ``AutoMixedPrecisionImpl::Optimize``
(core/grappler/optimizers/auto_mixed_precision.cc, 2.21); where a pass differs on purpose, its
docstring gives the name of the difference (tests/parity lists them).
"""

from __future__ import annotations

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import reach
from amp_tf.graph.datatypes import UnitMask, indices, mask_of
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.decisions import Decision, Verdict, spread
from amp_tf.painting.reasons import Code


def spread_deny(canvas: Canvas) -> Canvas:
    """Paints deny forward from deny-list nodes, through infer and clear nodes, up to the last infer
    or deny node.

    deny → infer → clear → infer → clear → allow → infer becomes deny, deny, deny, deny, clear,
    allow, infer.

    Example (float16)::

        allow1 = MatMul(x, x)           f16
        deny1 = Exp(bias)
        clear1 = Relu(deny1)            f16 → float32
        infer1 = AddV2(allow1, clear1)  f16 → float32
        clear2 = Relu(infer1)           f16
        allow2 = MatMul(clear2, x)      f16
    """
    if canvas.target.lists.force_all:
        return canvas
    sinks = canvas.on_deny | canvas.on_infer
    before_sinks = reach(indices(sinks), canvas.on_clear, canvas.links.inward)
    roots = indices(canvas.on_deny & ~canvas.deny)
    canvas = canvas.after(Decision(Verdict.DENY, roots, Code.DENY_LIST))
    passable = (sinks | mask_of(before_sinks, len(sinks))) & ~canvas.deny
    reached = reach(roots, passable, canvas.links.outward)
    return canvas.after(spread(Verdict.DENY, reached, Code.AFTER_DENY))


def paint_between_allow(canvas: Canvas) -> Canvas:
    """Paints infer and clear nodes allow if they lie on a path from an allow-list node to another.

    Example (float16)::

        allow1 = MatMul(x, x)       f16
        clear1 = Relu(allow1)       f16
        infer1 = Tanh(clear1)       float32 → f16
        allow2 = MatMul(infer1, x)  f16
    """
    roots = indices(canvas.on_allow & canvas.processable)
    passable = canvas.spreading & canvas.convertible & ~canvas.deny
    behind = mask_of(reach(roots, passable, canvas.links.outward), len(passable))
    between = reach(roots, behind, canvas.links.inward)
    # As in TensorFlow, allow-list nodes count here even if a TensorList took their paint.
    return canvas.after(
        spread(Verdict.ALLOW, between, Code.BETWEEN_ALLOW),
        Decision(Verdict.ALLOW, roots, Code.ALLOW_LIST),
    )


def paint_after_allow(canvas: Canvas) -> Canvas:
    """Paints infer nodes allow if they read an allow node and no deny node.

    Difference "infer-follow-order": TensorFlow sweeps once in the order of the nodes, so that a
    chain converts only as far as its nodes happen to be sorted; here the rule runs until nothing
    changes. Difference "kernel-missing": TensorFlow does not ask for a kernel here.

    Example (float16)::

        allow1 = MatMul(x, x)         f16
        infer1 = Tanh(allow1)         float32 → f16
        infer2 = Tanh(infer1)         float32 → f16
        digamma1 = Digamma(infer2)
        allow2 = MatMul(digamma1, x)  f16
    """
    reads_deny = mask_of(canvas.dst[canvas.deny[canvas.src]], len(canvas.deny))
    free = canvas.on_infer & canvas.convertible & ~(canvas.deny | canvas.allow | reads_deny)
    reached = reach(indices(canvas.allow), free, canvas.links.outward)
    return canvas.after(spread(Verdict.ALLOW, reached, Code.AFTER_ALLOW))


def spread_allow_through_clear(canvas: Canvas) -> Canvas:
    """Spreads allow through clear nodes, forward and backward, but not through readers of reference
    variables.

    Example (float16)::

        clear1 = Neg(x)             float32 → f16
        clear2 = Neg(clear1)        float32 → f16
        allow1 = MatMul(clear2, x)  f16
    """
    clear = canvas.on_clear & canvas.convertible & ~(canvas.deny | canvas.allow)
    blocked = clear & _of_reference_variables(canvas)
    roots = indices(canvas.allow & canvas.processable)
    reached = reach(roots, clear & ~blocked, canvas.links.outward, canvas.links.inward)
    return canvas.after(
        Decision(Verdict.NOTE, indices(blocked), Code.REFERENCE_VARIABLE),
        spread(Verdict.ALLOW, reached, Code.BESIDE_ALLOW),
    )


def _of_reference_variables(canvas: Canvas) -> UnitMask:
    """Returns the Identity nodes that read a reference variable, and the Enters behind.

    An Enter that reads the variable itself is not among them, as in TensorFlow.
    """
    view = canvas.view
    edges = view.edges
    variables = view.mask_with(table.REFERENCE_VARIABLES)
    identities = view.mask_with(("Identity",))
    reads = variables[edges.src_node] & identities[edges.dst_node]
    reading = edges.dst_unit[reads].tolist()
    entries = view.units_with(table.LOOP_ENTRIES)
    behind = reach(reading, entries, canvas.links.outward)
    return mask_of([*reading, *behind], view.unit_count)


def drop_unsupported(canvas: Canvas) -> Canvas:
    """Takes allow paint off types that cannot be 16 bit: fixed types, attributes such as
    FusedBatchNorm's U, and those of quantized nodes.

    Difference "force-all-fixed": TensorFlow does so for allow-list nodes alone, and fails under
    UNSAFE_FORCE_ALL.

    Example (bfloat16, allow_add=SparseMatMul)::

        allow1 = SparseMatMul(x, x) Ta=float32 Tb=float32  f16 (Ta, Tb, float32) → f16 (Ta, Tb)
    """
    unsupported = canvas.allow & ~canvas.type_allowed
    canvas = canvas.leaving(indices(unsupported), Code.TYPE_NOT_ALLOWED)
    view = canvas.view
    if datatypes.QUANTIZED.isdisjoint(view.dtypes):
        return canvas
    is_quantized = np.isin(view.dtypes, sorted(datatypes.QUANTIZED))
    quantized = view.units_of(view.nodes_of(is_quantized)) & canvas.allow
    return canvas.leaving(indices(quantized), Code.QUANTIZED)
