"""The painting: which units become 16 bit, and why.

The goal, in the words of the method: convert what the hardware runs faster, keep what is numerically dangerous and what
depends on it, and insert as few casts as possible between the two.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.graph import datatypes
from amp_tf.graph.sizes import AttributeShapes, Shapes
from amp_tf.graph.view import GraphView
from amp_tf.oplists.outer_products import JUDGED_AS, sums_nothing
from amp_tf.oplists.table import ALLOW, CLEAR, DENY, INFER, NEVER_FORCED, SUCCESSOR_OPS
from amp_tf.oplists.targets import Resolution, Target
from amp_tf.painting import economy, eligibility, exact, extremes, loops, rules, tensor_lists
from amp_tf.painting.canvas import NO_CAUSE, Canvas, units_of
from amp_tf.painting.eligibility import Obstacles
from amp_tf.painting.folded import NOTHING_FOLDED, Folded
from amp_tf.painting.painting import Painting
from amp_tf.painting.reasons import Rule

_CODES = {ALLOW: 1, INFER: 2, DENY: 3, CLEAR: 4}


def paint(
    view: GraphView,
    resolution: Resolution,
    config: AmpConfig,
    *,
    preserve: Iterable[str] = (),
    is_function: Callable[[str], bool] = lambda op: False,
    shapes: Shapes | None = None,
    folded: Folded = NOTHING_FOLDED,
) -> Painting:
    """Decides the precision of every unit of a graph.

    Args:
        view: the graph.
        resolution: what is converted here, from :func:`amp_tf.oplists.targets.resolve_target`.
        config: name rules are read from it.
        preserve: names of nodes that stay as they are.
        is_function: whether an op is a function of the graph's library.
        shapes: the static shapes of the graph's tensors; by default those that its nodes carry.
        folded: the nodes that have another meaning since normalization was folded.

    Raises:
        GraphError: a loop is broken.
    """
    if resolution.target is None:
        return Painting.blank(view, Rule.NO_TARGET, resolution.why_none)
    obstacles = eligibility.find_obstacles(view, resolution, config, preserve)
    if folded.scales:
        moved = dict.fromkeys(folded.scales, Rule.SCALES_FILTER)
        obstacles = dataclasses.replace(obstacles, rule_of={**obstacles.rule_of, **moved})
    canvas = _prepare(view, resolution.target, obstacles)
    exact.take_sums_off_lists(canvas)
    _place_forced(canvas, obstacles)

    clusters = []
    if any(map(tensor_lists.handles_lists, view.of_kind)):
        clusters = tensor_lists.find_clusters(canvas, is_function)
        canvas.add_edges(tensor_lists.implicit_edges(canvas, clusters))

    rules.paint_allow_list(canvas)
    if not canvas.allow.any():
        return Painting.of(canvas, obstacles, nothing_to_convert=True)
    if not resolution.target.lists.force_all:
        extremes.keep_extremes(canvas)
        exact.keep_stored(canvas)
        exact.keep_whole_numbers(canvas)
    rules.spread_deny(canvas)
    tensor_lists.match_clusters(canvas, clusters)
    rules.paint_between_allow(canvas)
    rules.paint_after_allow(canvas)
    rules.spread_allow_through_clear(canvas)
    rules.drop_unsupported(canvas)
    tensor_lists.match_clusters(canvas, clusters)
    loops.match_recurrent_edges(canvas)
    if resolution.is_thrifty:
        ties = [*(list(cluster.values()) for cluster in clusters), *loops.recurrent_units(canvas)]
        economy.drop_unprofitable(canvas, AttributeShapes(view.protos) if shapes is None else shapes, ties, folded)
    exact.drop_narrow_sums(canvas)
    exact.match_maxima(canvas)
    loops.match_entries(canvas)
    rules.match_fused_types(canvas)
    rules.retarget_casts(canvas)
    if resolution.is_thrifty:
        rules.absorb_casts(canvas)
    return Painting.of(canvas, obstacles)


def _prepare(view: GraphView, target: Target, obstacles: Obstacles) -> Canvas:
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
    allowed, runnable = eligibility.find_convertible(view, target, candidates, whole)
    processable = view.spread(touchable)
    canvas = Canvas(
        view=view,
        target=target,
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


def _judge_outer_products(view: GraphView, list_of: Mapping[str, str], node_codes: Any) -> None:
    """Takes what is on the allow list as a product, but sums nothing, for what it is: a multiplication.

    Difference "outer-product": TensorFlow looks at no equations.
    """
    for node in view.nodes_where(lambda signature: signature.op in JUDGED_AS):
        if node_codes[node] == _CODES[ALLOW] and sums_nothing(view.protos[node]):
            node_codes[node] = _CODES.get(list_of.get(JUDGED_AS[view.ops[node]], ""), 0)


def _flags(mask: Any) -> Any:
    return mask.astype(np.uint8)


def _drop_allow_without_kernel(canvas: Canvas) -> None:
    """Takes what has no kernel off the allow list: a type, or the node if its result cannot be 16 bit because of it.

    A result of fixed type float32 (ResizeBilinear's) is none of a node's doing: it is converted as far as it can be.

    Difference "kernel-missing": TensorFlow converts allow-list nodes without asking for a kernel.
    """
    view, convertible = canvas.view, canvas.convertible
    for unit in units_of(canvas.on_allow & canvas.processable & canvas.is_float32 & (convertible ^ 1)):
        node = canvas.node_of[unit]
        first, end = view.base[node], view.base[node + 1]
        rule = Rule.NO_KERNEL if canvas.type_allowed[unit] else Rule.TYPE_NOT_ALLOWED
        is_result = unit - first in view.signatures[node].outputs[:1]
        if is_result and not (view.slot(node, unit).is_fixed and convertible[first:end].any()):
            canvas.on_allow[first:end] = 0
            canvas.rule[first:end] = rule
        elif rule is Rule.NO_KERNEL:
            canvas.on_allow[unit] = 0
            canvas.rule[unit] = rule


def _place_forced(canvas: Canvas, obstacles: Obstacles) -> None:
    """Puts forced nodes on the allow list, as far as they can be 16 bit."""
    view = canvas.view
    forced = dict(obstacles.forced)
    if canvas.target.lists.force_all:
        for node, signature in enumerate(view.signatures):
            if signature.op not in NEVER_FORCED and not signature.is_stateful and not signature.has_refs:
                forced.setdefault(node, Rule.FORCED_BY_LEVEL)
    wanted = canvas.target.precision.data_type
    for node, rule in forced.items():
        # Difference "force-all-casts": a cast to or from 16 bit is a border between precisions, ours among them.
        # TensorFlow converts its float32 side under UNSAFE_FORCE_ALL, and would change the graph at each rewrite.
        if view.ops[node] == "Cast" and wanted in view.dtypes[view.base[node] : view.base[node + 1]]:
            continue
        units = [unit for unit in view.units(node) if canvas.convertible[unit]]
        for flags in (canvas.on_infer, canvas.on_deny, canvas.on_clear):
            if rule is not Rule.FORCED_BY_LEVEL:
                flags[view.base[node] : view.base[node + 1]] = 0
        if rule is not Rule.FORCED_BY_LEVEL:
            canvas.on_allow[units] = 1
        canvas.paint_allow(units, rule)
