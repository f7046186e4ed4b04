"""The blank canvas: what each unit's list says, and what can be 16 bit at all."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Flags, Mask
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import ALLOW, CASTS, CLEAR, DENY, INFER, JUDGED_AS, SUCCESSOR_OPS
from amp_tf.oplists.targets import Resolution
from amp_tf.painting import eligibility
from amp_tf.painting.canvas import NO_CAUSE, Canvas, units_of
from amp_tf.painting.eligibility import Obstacles
from amp_tf.painting.reasons import Rule

_CODES = {ALLOW: 1, INFER: 2, DENY: 3, CLEAR: 4}


def prepare(
    view: GraphView, resolution: Resolution, obstacles: Obstacles, assumed: frozenset[str] = frozenset()
) -> Canvas:
    """A canvas without paint.

    Args:
        view: the graph.
        resolution: what is converted here; not nothing.
        obstacles: what forbids to touch nodes.
        assumed: ops that are taken to have 16-bit kernels, whatever TensorFlow has.
    """
    target = resolution.target
    assert target is not None
    list_of = target.lists.list_of
    node_codes = view.of_kinds((_CODES.get(list_of.get(signature.op, ""), 0) for signature in view.of_kind), np.uint8)
    _judge_outer_products(view, list_of, node_codes)
    for node in obstacles.rule_of:
        if view.ops[node] in SUCCESSOR_OPS:  # the node may be another op, and may not become this one
            node_codes[node] = _CODES.get(list_of.get(view.protos[node].op, ""), 0)
    codes = view.spread(node_codes)
    touchable = np.ones(view.node_count, np.uint8)
    touchable[list(obstacles.rule_of)] = 0
    movable = np.ones(view.node_count, np.uint8)
    movable[[node for node, rule in obstacles.rule_of.items() if rule is not Rule.OTHER_DEVICE]] = 0
    forced = np.zeros(view.node_count, np.bool_)
    forced[list(obstacles.forced)] = True
    force_all = target.lists.force_all
    candidates = (node_codes != 0) & (node_codes != _CODES[DENY]) | forced | force_all
    whole = (node_codes == _CODES[ALLOW]) | forced | force_all
    allowed, runnable = eligibility.find_convertible(view, target, candidates, whole, obstacles.refused)
    if assumed:
        units = _units_that_may_change(view, assumed)
        allowed[units] = runnable[units] = 1
    processable = view.spread(touchable)
    canvas = Canvas(
        view=view,
        resolution=resolution,
        obstacles=obstacles,
        edges=view.adjacency(),
        node_of=view.unit_nodes(),
        src=view.edges.src_unit,
        dst=view.edges.dst_unit,
        on_allow=_flags(codes == _CODES[ALLOW]),
        on_infer=_flags(codes == _CODES[INFER]),
        on_deny=_flags(codes == _CODES[DENY]),
        on_clear=_flags(codes == _CODES[CLEAR]),
        processable=processable,
        locked=view.spread(movable) ^ 1,
        is_float32=_flags(np.asarray(view.dtypes) == datatypes.FLOAT),
        type_allowed=allowed & processable,
        convertible=runnable & processable,
        allow=np.zeros(view.unit_count, np.uint8),
        deny=np.zeros(view.unit_count, np.uint8),
        rule=np.zeros(view.unit_count, np.uint8),
        cause=array("i", [NO_CAUSE]) * view.unit_count,
    )
    _drop_allow_without_kernel(canvas)
    return canvas


def _units_that_may_change(view: GraphView, ops: frozenset[str]) -> npt.NDArray[np.intp]:
    """The float32 units of some ops whose type the op's definition does not fix."""
    is_free = view.of_slots(np.array([not slot.is_fixed for kind in view.of_kind for slot in kind.slots], np.bool_))
    of_ops = view.spread(view.mask_with(ops))
    return np.flatnonzero(of_ops & is_free & (np.asarray(view.dtypes) == datatypes.FLOAT))


def _judge_outer_products(view: GraphView, list_of: Mapping[str, str], node_codes: Flags) -> None:
    """Takes what is on the allow list as a product, but sums nothing, for what it is: a multiplication.

    Rotary and sinusoidal embeddings write position times frequency as an Einsum, "bi,j->bij". The hardware is no faster
    in 16 bit at what sums nothing, and the sine of such an angle means nothing once the position is rounded: of
    integers, bfloat16 holds all up to 256, float16 up to 2,048. A MatMul with an inner dimension of 1 would be the
    same, but XLA's functions carry no shapes.

    Difference "outer-product": TensorFlow looks at no equations.
    """
    for node in view.nodes_with(JUDGED_AS):
        equation = view.protos[node].attr.get("equation")  # a look-up by index would add what a broken graph lacks
        inputs, arrow, result = (equation.s if equation else b"").replace(b" ", b"").partition(b"->")
        sums_nothing = arrow and set(inputs.replace(b",", b"")) <= set(result)  # an ellipsis counts as one label
        if node_codes[node] == _CODES[ALLOW] and sums_nothing:
            node_codes[node] = _CODES.get(list_of.get(JUDGED_AS[view.ops[node]], ""), 0)


def _flags(mask: Mask) -> Flags:
    return mask.astype(np.uint8)


def _drop_allow_without_kernel(canvas: Canvas) -> None:
    """Takes what has no kernel off the allow list: a type, or the node if its result cannot be 16 bit because of it.

    A result whose type is always float32 (ResizeBilinear's) is no obstacle: the other types are converted.

    Difference "kernel-missing": TensorFlow converts allow-list nodes without asking for a kernel.
    """
    view, convertible = canvas.view, canvas.convertible
    for unit in units_of(canvas.on_allow & canvas.processable & canvas.is_float32 & (convertible ^ 1)):
        node = canvas.node_of[unit]
        first, end = view.base[node], view.base[node + 1]
        rule = Rule.NO_KERNEL if canvas.type_allowed[unit] else Rule.TYPE_NOT_ALLOWED
        if view.ops[node] in canvas.target.without_kernel:
            rule = Rule.NO_FUSED_KERNEL
        is_result = unit - first in view.signatures[node].outputs[:1]
        if is_result and not (view.slot(node, unit).is_fixed and convertible[first:end].any()):
            canvas.on_allow[first:end] = 0
            canvas.rule[first:end] = rule
        elif rule is Rule.NO_KERNEL:
            canvas.on_allow[unit] = 0
            canvas.rule[unit] = rule


def place_forced(canvas: Canvas) -> None:
    """Puts forced nodes on the allow list, as far as they can be 16 bit.

    Example (float16, force_f16=^sin1$)::

        allow1 = MatMul(x, x)     f16
        sin1 = Sin(allow1)        float32 → f16
        allow2 = MatMul(sin1, x)  f16
    """
    view = canvas.view
    forced = dict(canvas.obstacles.forced)
    if canvas.target.lists.force_all:
        for node, signature in enumerate(view.signatures):
            if eligibility.can_be_forced(signature):
                forced.setdefault(node, Rule.FORCED_BY_LEVEL)
    wanted = canvas.target.precision.data_type
    for node, rule in forced.items():
        # Difference "force-all-casts": a cast to or from 16 bit is a border between precisions, ours among them.
        # TensorFlow converts its float32 side under UNSAFE_FORCE_ALL, and would change the graph at each rewrite.
        if view.ops[node] in CASTS and wanted in view.dtypes[view.base[node] : view.base[node + 1]]:
            continue
        units = [unit for unit in view.units(node) if canvas.convertible[unit]]
        for flags in (canvas.on_infer, canvas.on_deny, canvas.on_clear):
            if rule is not Rule.FORCED_BY_LEVEL:
                flags[view.base[node] : view.base[node + 1]] = 0
        if rule is not Rule.FORCED_BY_LEVEL:
            canvas.on_allow[units] = 1
        canvas.paint_allow(units, rule)
