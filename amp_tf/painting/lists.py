"""The passes of TensorFlow, by which the lists paint; :mod:`amp_tf.painting.ties` has pass 7 and
those of TensorLists.

Order and meaning are those of ``AutoMixedPrecisionImpl::Optimize``
(core/grappler/optimizers/auto_mixed_precision.cc, 2.21); where a pass differs on purpose its
docstring says so with the name of the difference, which tests/parity lists. Behind them stand three
rules of amp_tf's own that only place casts: behind what passes a value on or picks a part of it,
and none beside a cast that is there.
"""

from __future__ import annotations

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Node, Unit
from amp_tf.graph.edits import Tensor
from amp_tf.graph.sizes import NO_SHAPES, element_count, shape_of
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas, casts, units_of
from amp_tf.painting.eligibility import can_be_forced
from amp_tf.painting.reasons import FORCED, Rule


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
            if can_be_forced(signature):
                forced.setdefault(node, Rule.FORCED_BY_LEVEL)
    wanted = canvas.target.precision.data_type
    for node, rule in forced.items():
        # Difference "force-all-casts": a cast to or from 16 bit is a border between precisions,
        # ours among them. TensorFlow converts its float32 side under UNSAFE_FORCE_ALL, and would
        # change the graph at each rewrite.
        if (
            view.ops[node] in table.CASTS
            and wanted in view.dtypes[view.base[node] : view.base[node + 1]]
        ):
            continue
        units = [unit for unit in view.units(node) if canvas.convertible[unit]]
        if rule is not Rule.FORCED_BY_LEVEL:
            for flags in (canvas.on_infer, canvas.on_deny, canvas.on_clear):
                flags[view.base[node] : view.base[node + 1]] = 0
            canvas.on_allow[units] = 1
        canvas.paint_allow(units, rule)


def paint_allow_list(canvas: Canvas) -> None:
    """Paints allow-list nodes allow, where they may be converted; first, because later rules ask
    what a product uses.

    Example (float16)::

        allow1 = MatMul(x, x)       f16
        infer1 = Tanh(allow1)       float32 → f16
        allow2 = MatMul(infer1, x)  f16
    """
    canvas.paint_allow(units_of(canvas.on_allow & canvas.processable), Rule.ALLOW_LIST)


def spread_deny(canvas: Canvas) -> None:
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
        return
    sinks = canvas.on_deny | canvas.on_infer
    upstream = sinks.copy()
    upstream[canvas.flood(units_of(sinks), canvas.on_clear, backward=True, is_cause=False)] = 1
    roots = units_of(canvas.on_deny & (canvas.deny ^ 1))
    canvas.paint_deny(roots, Rule.DENY_LIST)
    reached = canvas.flood(roots, upstream & (canvas.deny ^ 1), forward=True)
    canvas.paint_deny(reached, Rule.AFTER_DENY)


def paint_between_allow(canvas: Canvas) -> None:
    """Paints infer and clear nodes allow if they lie on a path from an allow-list node to another.

    Example (float16)::

        allow1 = MatMul(x, x)       f16
        clear1 = Relu(allow1)       f16
        infer1 = Tanh(clear1)       float32 → f16
        allow2 = MatMul(infer1, x)  f16
    """
    roots = units_of(canvas.on_allow & canvas.processable)
    passable = (canvas.on_infer | canvas.on_clear) & canvas.convertible & (canvas.deny ^ 1)
    downstream = np.zeros_like(passable)
    downstream[canvas.flood(roots, passable, forward=True, is_cause=False)] = 1
    canvas.paint_allow(canvas.flood(roots, downstream, backward=True), Rule.BETWEEN_ALLOW)
    # As in TensorFlow, allow-list nodes that lost their paint to a TensorList attract their
    # neighbours all the same.
    canvas.paint_allow(roots, Rule.ALLOW_LIST)


def paint_after_allow(canvas: Canvas) -> None:
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
    reads_deny = np.zeros_like(canvas.deny)
    reads_deny[canvas.dst[canvas.deny[canvas.src] == 1]] = 1
    free = (canvas.deny ^ 1) & (canvas.allow ^ 1) & (reads_deny ^ 1)
    reached = canvas.flood(
        units_of(canvas.allow), canvas.on_infer & canvas.convertible & free, forward=True
    )
    canvas.paint_allow(reached, Rule.AFTER_ALLOW)


def spread_allow_through_clear(canvas: Canvas) -> None:
    """Paints allow through clear nodes, forward and backward, but not through readers of reference
    variables.

    Example (float16)::

        clear1 = Neg(x)             float32 → f16
        clear2 = Neg(clear1)        float32 → f16
        allow1 = MatMul(clear2, x)  f16
    """
    open_units = canvas.on_clear & canvas.convertible & (canvas.deny ^ 1) & (canvas.allow ^ 1)
    # Identity nodes that read a reference variable, and Enters behind these; as in TensorFlow, no
    # Enter that reads the variable itself.
    view, edges = canvas.view, canvas.view.edges
    variables, identities = view.mask_with(table.REFERENCE_VARIABLES), view.mask_with(("Identity",))
    reading = edges.dst_unit[variables[edges.src_node] & identities[edges.dst_node]].tolist()
    reading += canvas.flood(
        reading, view.spread(view.mask_with(table.LOOP_ENTRIES)), forward=True, is_cause=False
    )
    blocked = [unit for unit in reading if open_units[unit]]
    open_units[blocked] = 0
    canvas.rule[blocked] = Rule.REFERENCE_VARIABLE
    roots = units_of(canvas.allow & canvas.processable)
    canvas.paint_allow(
        canvas.flood(roots, open_units, forward=True, backward=True), Rule.BESIDE_ALLOW
    )


def drop_unsupported(canvas: Canvas) -> None:
    """Unpaints types that cannot be 16 bit: fixed ones, attributes such as FusedBatchNorm's U,
    quantized nodes.

    Difference "force-all-fixed": TensorFlow does so for allow-list nodes alone and fails under
    UNSAFE_FORCE_ALL.

    Example (bfloat16, allow_add=SparseMatMul)::

        allow1 = SparseMatMul(x, x) Ta=float32 Tb=float32  f16 (Ta, Tb, float32) → f16 (Ta, Tb)
    """
    unsupported = units_of(canvas.allow & (canvas.type_allowed ^ 1))
    canvas.unpaint_allow(unsupported, Rule.TYPE_NOT_ALLOWED)
    if not datatypes.QUANTIZED.isdisjoint(canvas.view.dtypes):
        is_quantized = np.isin(canvas.view.dtypes, sorted(datatypes.QUANTIZED))
        quantized = canvas.view.spread(canvas.nodes_of(is_quantized)) & canvas.allow
        canvas.unpaint_allow(units_of(quantized), Rule.QUANTIZED)


def retarget_casts(canvas: Canvas) -> None:
    """Lets an existing Cast to float32 cast to 16 bit instead, if all its readers are allow.

    Difference "preserved-cast": TensorFlow does so for a preserved (fetched) Cast too, which
    changes the type that the caller gets.

    Example (float16)::

        cast1 = Cast(n) SrcT=int32 DstT=float32  float32 → f16
        allow1 = MatMul(cast1, x)                f16
    """
    for _, _, result in casts(canvas.view):
        readers = canvas.edges.fanouts(result)
        if canvas.is_free(result) and readers and all(canvas.allow[reader] for reader in readers):
            canvas.paint_allow([result], Rule.CAST_FOLLOWS)


def leave_carried_values(canvas: Canvas) -> None:
    """Keeps in float32 what only passes a float32 value on, if some of its readers are not
    converted.

    The cast then stands behind it, for those that want 16 bit: the others get the value as it was,
    and no cast back. So the gradient of a bias is the sum of gradients that nobody rounded, though
    its product's gradients read them, too.

    Difference "passed-through": TensorFlow converts a Reshape before a product, and what else reads
    it gets rounded values.

    Example (bfloat16)::

        flat = Reshape(x, rows)   f16 → float32
        allow1 = MatMul(flat, x)  f16
        exact = Digamma(flat)
    """
    flow, painted = canvas.flow, canvas.allow.astype(np.bool_)
    forced = np.isin(canvas.rule, sorted(FORCED))
    converted = canvas.nodes_of(painted)
    carriers = flow.nodes_of(table.HANDING_ON) & canvas.nodes_of(painted & ~forced)
    behind = flow.readers_of(converted & ~carriers) & carriers
    free = carriers & ~behind & ~flow.downstream(behind, through=carriers)
    shared = free & flow.sources_of(~converted)
    found = shared | flow.upstream(shared, through=free)
    canvas.unpaint_allow(units_of(canvas.view.spread(found)), Rule.CARRIED)


def leave_picked_values(canvas: Canvas) -> None:
    """Keeps the lookup of rows in a float32 table in float32, if no other converted node reads the
    table.

    The cast then stands behind it: of a table of embeddings the rows that were looked up are cast,
    not the table, which Keras 3 gathers from as a tensor. Values are the same to the last bit. A
    table is a variable, or what is larger than all that is picked of it; a variable that is known
    to be smaller is cast as a whole. In loops nothing is moved, because what picks there picks
    again and again.

    Difference "looked-up-rows": TensorFlow casts the table in each step.

    Example (bfloat16)::

        handle = VarHandleOp() dtype=float32 shape=[5000, 8]
        table = ReadVariableOp(handle) dtype=float32
        found = GatherV2(table, rows, axis) Tindices=int32 Taxis=int32  f16 → float32
        allow1 = MatMul(found, x)                                       f16
    """
    view, edges = canvas.view, canvas.view.edges
    if (
        canvas.is_loop_body
        or view.nodes_with(table.LOOP_ENTRIES)
        or not view.nodes_with(table.PICKING)
    ):
        return
    meet = (
        canvas.is_float32[edges.src_unit]
        & (canvas.allow[edges.src_unit] ^ 1)
        & canvas.allow[edges.dst_unit]
    ) == 1
    as_whole = meet & ~(view.mask_with(table.PICKING)[edges.dst_node] & (edges.dst_position == 0))
    cast = set(edges.at(as_whole).rows("src_node", "src_port"))
    picked: dict[Tensor, dict[Node, Unit]] = {}
    for *tensor, node, unit in edges.at(meet).rows("src_node", "src_port", "dst_node", "dst_unit"):
        if tuple(tensor) not in cast:
            picked.setdefault((tensor[0], tensor[1]), {})[node] = unit
    shapes = canvas.shapes or NO_SHAPES
    for (source, port), units in picked.items():
        whole = element_count(shape_of(shapes, view.names[source], port))
        sizes = [element_count(shape_of(shapes, view.names[node])) for node in units]
        known = [size for size in sizes if size is not None]
        is_known = whole is not None and len(known) == len(sizes)
        is_larger = (
            sum(known) < (whole or 0) if is_known else view.ops[source] in table.VARIABLE_VALUES
        )
        if is_larger and not any(canvas.rule[unit] in FORCED for unit in units.values()):
            canvas.unpaint_allow(units.values(), Rule.PICKED)


def absorb_casts(canvas: Canvas) -> None:
    """Lets an existing Cast to the 16-bit type take a painted value as it is, which makes it a copy
    that costs nothing.

    Otherwise the value would be cast to float32 for it alone, and back; none of TensorFlow's
    optimizers removes such a pair. TensorFlow's own pass makes it, so this rule runs only where
    amp_tf chooses the precision. Casts of constants are folded by TensorFlow's second round
    (``tests/hooks/test_executed.py`` shows both).

    Example (auto)::

        x = Placeholder() shape=[512, 512]
        allow1 = MatMul(x, x)                            f16
        cast1 = Cast(allow1) SrcT=float32 DstT=bfloat16  float32 → f16
        allow2 = MatMul(cast1, cast1) T=bfloat16
    """
    for _, source, result in casts(canvas.view):
        fanins = canvas.edges.fanins(source)
        repeats = canvas.view.dtypes[
            result
        ] == canvas.target.precision.data_type and canvas.is_free(source)
        if (
            repeats
            and fanins
            and all(canvas.allow[fanin] and canvas.is_float32[fanin] for fanin in fanins)
        ):
            canvas.paint_allow([source], Rule.CAST_REPEATS)
