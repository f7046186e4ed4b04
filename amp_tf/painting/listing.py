"""Corrects the lists where they are wrong about a node.

The rules here also paint the products and what the user forces. They run before any paint spreads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from amp_tf.graph.attributes import value_of
from amp_tf.graph.datatypes import Unit
from amp_tf.oplists import table
from amp_tf.painting import eligibility
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.decisions import Decision, Verdict
from amp_tf.painting.masks import indices, mask_of, units_of
from amp_tf.painting.reasons import Code


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
            units = units_of(view, mask_of(outer, view.node_count)) & canvas.on_allow
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
    reasons: dict[Unit, Code] = {}
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
            reasons.update(dict.fromkeys(units, reason))
        elif reason is Code.NO_KERNEL:
            reasons[unit] = reason
    if not reasons:
        return canvas
    canvas = canvas.relisted(canvas.on_allow & mask_of(reasons, view.unit_count))
    for code in {*reasons.values()}:
        lost = [unit for unit in reasons if reasons[unit] is code]
        canvas = canvas.after(Decision(Verdict.NOTE, lost, code))
    return canvas


def place_forced(canvas: Canvas) -> Canvas:
    """Puts forced nodes on the allow list, as far as they can be 16 bit.

    Example (float16, force_f16=^sin1$)::

        allow1 = MatMul(x, x)     f16
        sin1 = Sin(allow1)        float32 → f16
        allow2 = MatMul(sin1, x)  f16
    """
    view = canvas.view
    forced = dict(canvas.subject.obstacles.forced)
    if canvas.target.lists.force_all:
        for node, signature in enumerate(view.signatures):
            if eligibility.can_be_forced(signature):
                forced.setdefault(node, Code.FORCED_BY_LEVEL)
    if not forced:
        return canvas
    units_by: dict[Code, list[Unit]] = {}
    named: list[Unit] = []
    f16 = canvas.target.precision.data_type
    for node, code in forced.items():
        # Difference "force-all-casts": a cast to or from 16 bit is a border between precisions,
        # ours among them. TensorFlow converts its float32 side under UNSAFE_FORCE_ALL, and would
        # change the graph at each rewrite.
        units = view.units(node)
        if view.ops[node] in table.CASTS and any(view.dtypes[unit] == f16 for unit in units):
            continue
        units_by.setdefault(code, []).extend(units)
        if code is not Code.FORCED_BY_LEVEL:
            named += units
    by_name = mask_of(named, view.unit_count)
    canvas = canvas.relisted(by_name).relisted(by_name & canvas.convertible, table.ALLOW)
    for code, asked in units_by.items():
        convertible = np.compress(canvas.convertible[asked], asked)
        canvas = canvas.after(Decision(Verdict.ALLOW, convertible.tolist(), code))
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
