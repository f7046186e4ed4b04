"""Corrects the lists where they are wrong about a node.

The rules here also paint the products and what the user forces. They run before any paint spreads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from amp_tf.graph.attributes import value_of
from amp_tf.graph.datatypes import Unit, indices, mask_of
from amp_tf.oplists import table
from amp_tf.painting import eligibility
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.decisions import Decision, Verdict
from amp_tf.painting.reasons import FORCED, Code


def judge_outer_products(canvas: Canvas) -> Canvas:
    """Lists an Einsum that sums nothing as the multiplication that it is, not as a product.

    Rotary and sinusoidal embeddings write position times frequency as an Einsum, "bi,j->bij". The
    hardware gains nothing from 16 bit where nothing is summed, and the sine of such an angle is
    wrong once the position is rounded: bfloat16 holds integers up to 256, float16 up to 2,048. A
    MatMul with an inner dimension of 1 is the same, but is not found, because XLA's functions carry
    no shapes.

    Difference "outer-product": TensorFlow looks at no equations.

    Example (bfloat16)::

        angles = Einsum(position, frequency) equation='i,j->ij' N=2  f16 → float32
        phases = Sin(angles)
        allow1 = MatMul(phases, x)                                   f16
    """
    view = canvas.view
    list_of = canvas.target.lists.list_of
    for op, judged_as in table.JUDGED_AS.items():
        outer = [node for node in view.nodes_with((op,)) if _sums_nothing(view.protos[node])]
        if outer:
            units = view.units_of(mask_of(outer, view.node_count)) & canvas.on_allow
            canvas = canvas.relisted(units, list_of.get(judged_as, ""))
    return canvas


def _sums_nothing(einsum: Any) -> bool:
    """Returns whether each label of an equation is in its result. An ellipsis is one label."""
    equation = value_of(einsum, "equation").s
    inputs, arrow, result = equation.replace(b" ", b"").partition(b"->")
    return bool(arrow) and set(inputs.replace(b",", b"")) <= set(result)


def drop_allow_without_kernel(canvas: Canvas) -> Canvas:
    """Takes types without a 16-bit kernel off the allow list, and the whole node if its result is
    one of them.

    A result whose type is always float32 (ResizeBilinear's) is no obstacle: the other types are
    converted.

    Difference "kernel-missing": TensorFlow converts allow-list nodes without asking for a kernel.

    Example (float16, infer_remove=AvgPool3D, allow_add=AvgPool3D)::

        allow1 = MatMul(x, x)                                            f16
        allow2 = AvgPool3D(allow1) ksize=[1] strides=[1] padding='SAME'  f16 → float32
    """
    view = canvas.view
    decisions: list[Decision] = []
    lacking = canvas.on_allow & canvas.processable & canvas.is_float32 & ~canvas.convertible
    for unit in indices(lacking):
        node = view.unit_nodes[unit]
        reason = Code.NO_KERNEL if canvas.type_allowed[unit] else Code.TYPE_NOT_ALLOWED
        if view.ops[node] in canvas.target.without_kernel:
            reason = Code.NO_FUSED_KERNEL
        units = view.units(node)
        is_result = unit - view.base[node] in view.signatures[node].outputs[:1]
        has_other_types = view.slot(node, unit).is_fixed and canvas.convertible[units].any()
        if is_result and not has_other_types:
            decisions.append(Decision(Verdict.NOTE, units, reason))
        elif reason is Code.NO_KERNEL:
            decisions.append(Decision(Verdict.NOTE, [unit], reason))
    if not decisions:
        return canvas
    lost: list[Unit] = []
    for decision in decisions:
        lost += decision.units
    canvas = canvas.relisted(canvas.on_allow & mask_of(lost, view.unit_count))
    return canvas.after(*decisions)


def place_forced(canvas: Canvas) -> Canvas:
    """Puts forced nodes on the allow list, as far as they can be 16 bit.

    Example (float16, force_f16=^sin1$)::

        allow1 = MatMul(x, x)     f16
        sin1 = Sin(allow1)        float32 → f16
        allow2 = MatMul(sin1, x)  f16
    """
    view = canvas.view
    codes = np.zeros(view.node_count, np.uint8)
    if canvas.target.lists.force_all:
        can_be_forced = view.of_kinds(map(eligibility.can_be_forced, view.of_kind), np.bool_)
        codes[can_be_forced] = Code.FORCED_BY_LEVEL
    for node, code in canvas.subject.obstacles.forced.items():
        codes[node] = code
    if not codes.any():
        return canvas
    # Difference "force-all-casts": a cast to or from 16 bit is a border between precisions, ours
    # among them. TensorFlow converts its float32 side under UNSAFE_FORCE_ALL, and would change the
    # graph at each rewrite.
    is_f16 = np.asarray(view.dtypes) == canvas.target.precision.data_type
    codes[view.mask_with(table.CASTS) & view.nodes_of(is_f16)] = 0
    of_units = view.units_of(codes)
    by_name = (of_units != 0) & (of_units != Code.FORCED_BY_LEVEL)
    canvas = canvas.relisted(by_name).relisted(by_name & canvas.convertible, table.ALLOW)
    for code in FORCED:
        units = indices((of_units == code) & canvas.convertible)
        canvas = canvas.after(Decision(Verdict.ALLOW, units, code))
    return canvas


def paint_allow_list(canvas: Canvas) -> Canvas:
    """Paints allow-list nodes allow where they may be converted. It comes first, because later
    rules need the products.

    Example (float16)::

        allow1 = MatMul(x, x)       f16
        infer1 = Tanh(allow1)       float32 → f16
        allow2 = MatMul(infer1, x)  f16
    """
    products = indices(canvas.on_allow & canvas.processable)
    return canvas.after(Decision(Verdict.ALLOW, products, Code.ALLOW_LIST))
