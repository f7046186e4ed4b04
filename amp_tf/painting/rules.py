"""The painting rules, in the order in which they run.

Each rule is a function of the canvas. The order and the meaning are those of TensorFlow's ``AutoMixedPrecisionImpl::
Optimize`` (core/grappler/optimizers/auto_mixed_precision.cc, 2.21); where a rule differs on purpose its docstring says
so with the name of the difference, which tests/parity lists.
"""

from __future__ import annotations

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Node
from amp_tf.oplists.table import CASTS, FUSED_PRODUCTS, REFERENCE_READERS, REFERENCE_VARIABLES, UNSIGNED
from amp_tf.painting.canvas import Canvas, units_of
from amp_tf.painting.eligibility import is_quantized
from amp_tf.painting.reasons import Rule


def paint_allow_list(canvas: Canvas) -> None:
    """Every type of a processable allow-list node is painted allow, before all rules that ask what a product uses.

    Example (float16)::

        allow1 = MatMul(x, x)       f16
        infer1 = Tanh(allow1)       float32 → f16
        allow2 = MatMul(infer1, x)  f16
    """
    canvas.paint_allow(units_of(canvas.on_allow & canvas.processable), Rule.ALLOW_LIST)


def take_bounded_exponentials_off_lists(canvas: Canvas) -> None:
    """An exponential of what is never positive is on no list: it lies between zero and one, and may be rounded once.

    It is computed in float32, and what uses it is judged without it. So the gradient of an exact Gelu, the sum of one
    by the error function and one by the input, may be 16 bit as its products are.

    Difference "bounded-exponential": TensorFlow has all exponentials on its deny list, for the range.

    Example (bfloat16)::

        allow1 = MatMul(x, x)          f16
        square = Square(x)
        negative = Neg(square)
        bounded = Exp(negative)
        infer1 = Mul(allow1, bounded)  float32 → f16
        infer2 = Mul(infer1, x)        float32 → f16
        allow2 = MatMul(infer2, x)     f16
    """
    view, edges = canvas.view, canvas.view.edges
    unsigned, negative = view.mask_with(UNSIGNED), view.mask_with(("Neg",))
    negative[edges.dst_node[negative[edges.dst_node] & ~unsigned[edges.src_node]]] = False
    reads = view.mask_with(("Exp",))[edges.dst_node] & negative[edges.src_node]
    canvas.on_deny[edges.dst_unit[reads]] = 0


def spread_deny(canvas: Canvas) -> None:
    """Deny runs forward from deny-list nodes through infer and clear nodes, as far as another infer or deny node.

    deny → infer → clear → infer → clear → allow → infer becomes deny, deny, deny, deny, clear, allow, infer.

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
    """Infer and clear nodes that lie on a path from an allow-list node to an allow-list node are painted allow.

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
    # As in TensorFlow, allow-list nodes that lost their paint to a TensorList attract their neighbours all the same.
    canvas.paint_allow(roots, Rule.ALLOW_LIST)


def paint_after_allow(canvas: Canvas) -> None:
    """Infer nodes that read an allow node and no deny node are painted allow.

    Difference "infer-follow-order": TensorFlow sweeps once in the order of the nodes, so that a chain converts only as
    far as its nodes happen to be sorted; here the rule runs until nothing changes. Difference "kernel-missing":
    TensorFlow does not ask for a kernel here.

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
    reached = canvas.flood(units_of(canvas.allow), canvas.on_infer & canvas.convertible & free, forward=True)
    canvas.paint_allow(reached, Rule.AFTER_ALLOW)


def spread_allow_through_clear(canvas: Canvas) -> None:
    """Allow runs both ways through clear nodes, but not through readers of reference variables.

    Example (float16)::

        clear1 = Neg(x)             float32 → f16
        clear2 = Neg(clear1)        float32 → f16
        allow1 = MatMul(clear2, x)  f16
    """
    open_units = canvas.on_clear & canvas.convertible & (canvas.deny ^ 1) & (canvas.allow ^ 1)
    for node in reference_readers(canvas):
        blocked = [unit for unit in canvas.view.units(node) if open_units[unit]]
        open_units[blocked] = 0
        canvas.rule[blocked] = Rule.REFERENCE_VARIABLE
    roots = units_of(canvas.allow & canvas.processable)
    canvas.paint_allow(canvas.flood(roots, open_units, forward=True, backward=True), Rule.BESIDE_ALLOW)


def drop_unsupported(canvas: Canvas) -> None:
    """Types that cannot be 16 bit lose their paint: fixed ones, attributes such as FusedBatchNorm's U, quantized nodes.

    Difference "force-all-fixed": TensorFlow does so for allow-list nodes alone and fails under UNSAFE_FORCE_ALL.

    Example (bfloat16, allow_add=SparseMatMul)::

        allow1 = SparseMatMul(x, x) Ta=float32 Tb=float32  f16 (Ta, Tb, float32) → f16 (Ta, Tb)
    """
    unsupported = units_of(canvas.allow & (canvas.type_allowed ^ 1))
    canvas.unpaint_allow(unsupported, Rule.TYPE_NOT_ALLOWED)
    if not datatypes.QUANTIZED.isdisjoint(canvas.view.dtypes):
        quantized = [unit for unit in units_of(canvas.allow) if is_quantized(canvas.view, canvas.node_of[unit])]
        canvas.unpaint_allow(quantized, Rule.QUANTIZED)


def match_fused_types(canvas: Canvas) -> None:
    """The types of a fused product change together or not at all.

    ``_FusedConv2D`` carries T and TArgs; where they differ oneDNN aborts the process.

    Example (bfloat16, infer_add=_FusedConv2D)::

        allow1 = MatMul(x, x)                                                 f16
        infer1 = _FusedConv2D(allow1, bias, bias) num_args=1 TArgs=[float32]  f16 → float32
        allow2 = MatMul(infer1, x)                                            f16
    """
    view = canvas.view
    for node in view.nodes_with(FUSED_PRODUCTS):
        units = [unit for unit in view.units(node) if canvas.is_float32[unit] and not view.slot(node, unit).is_fixed]
        if not all(canvas.allow[unit] for unit in units):
            canvas.unpaint_allow(units, Rule.TYPE_NOT_ALLOWED)


def retarget_casts(canvas: Canvas) -> None:
    """An existing Cast to float32 whose readers are all allow casts to 16 bit instead.

    Difference "preserved-cast": TensorFlow does so for a preserved (fetched) Cast too, which changes the type that the
    caller gets.

    Example (float16)::

        n = Placeholder() dtype=int32
        cast1 = Cast(n) SrcT=int32 DstT=float32  float32 → f16
        allow1 = MatMul(cast1, x)                f16
    """
    view = canvas.view
    for node in view.nodes_with(CASTS):
        slot = view.signatures[node].slot_of("DstT")
        unit = view.base[node] + (slot or 0)
        readers = canvas.edges.fanouts(unit)
        free = canvas.is_float32[unit] and not canvas.locked[unit]
        if readers and free and all(canvas.allow[reader] for reader in readers):
            canvas.paint_allow([unit], Rule.CAST_FOLLOWS)


def absorb_casts(canvas: Canvas) -> None:
    """An existing Cast to the 16-bit type takes a painted value as it is, which makes it a copy that costs nothing.

    Otherwise the value would be cast to float32 for it alone, and back; none of TensorFlow's optimizers removes such a
    pair. TensorFlow's own pass makes it, so this rule runs only where amp_tf chooses the precision. Casts of constants
    are folded by TensorFlow's second round (``tests/hooks/grappler/test_executed_casts.py`` shows both).

    Example (auto)::

        x = Placeholder() shape=[512, 512]
        allow1 = MatMul(x, x)                            f16
        cast1 = Cast(allow1) SrcT=float32 DstT=bfloat16  float32 → f16
        allow2 = MatMul(cast1, cast1) T=bfloat16
    """
    view = canvas.view
    wanted = canvas.target.precision.data_type
    for node in view.nodes_with(CASTS):
        signature, first = view.signatures[node], view.base[node]
        source, result = signature.slot_of("SrcT"), signature.slot_of("DstT")
        if source is None or result is None or view.dtypes[first + result] != wanted:
            continue
        unit = first + source
        fanins = canvas.edges.fanins(unit)
        free = canvas.is_float32[unit] and not canvas.locked[unit]
        if fanins and free and all(canvas.allow[fanin] and canvas.is_float32[fanin] for fanin in fanins):
            canvas.paint_allow([unit], Rule.CAST_REPEATS)


def reference_readers(canvas: Canvas) -> list[int]:
    """Identity nodes that read a reference variable, and Enter nodes that read such a node, also through other Enters.

    An Enter that reads the variable itself is none of them, as in TensorFlow.
    """
    view = canvas.view
    if not view.nodes_with(REFERENCE_VARIABLES):
        return []
    first = view.first_inputs(view.mask_with(REFERENCE_READERS))
    first_source = {node: source for node, (source, _) in first.items()}
    return [node for node in first_source if _reads_reference(view.ops, first_source, node)]


def _reads_reference(ops: list[str], first_source: dict[int, int], node: Node) -> bool:
    """As TensorFlow: Identity must read the variable itself, Enter may read such an Identity or another Enter."""
    seen = set()
    while node in first_source and node not in seen:
        seen.add(node)
        source = first_source[node]
        if ops[node] == "Identity":
            return ops[source] in REFERENCE_VARIABLES
        node = source
    return False
