"""What must be computed in float32 although the lists would convert it: its result would not only be rounded, but lost.

Four cases, and TensorFlow's pass knows none of them. A sum that is kept in the 16-bit type stops growing: 256 and 1
are 256 in bfloat16. A variable that is written back through 16 bit stands still: an average of 3 that moves by 1 % of
its distance stops on its way. And float values that stand for whole numbers, such as the ids of a feature column,
become other numbers: 1,001 is 1,000 in bfloat16. And the gradient of a maximum looks for the maximum among the values
that it was taken from, where it is not found once it is rounded and they are not.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.oplists.table import CPU, SHRINKING, STORING, SUMS_IN_BFLOAT16, SUMS_IN_ITS_TYPE
from amp_tf.painting.canvas import NO_CAUSE, Canvas, units_of
from amp_tf.painting.economy import fused_with_products
from amp_tf.painting.reasons import Rule
from amp_tf.precision import Precision

_MAXIMA = frozenset({"Max", "MaxPool", "MaxPool3D", "MaxPoolV2", "Min"})
_UNCHANGED = frozenset({"BroadcastTo", "ExpandDims", "Identity", "Reshape", "Squeeze"})
# Ops that compare their first two inputs; the gradients of maxima are or contain one.
_COMPARING = frozenset(
    (
        *("Equal", "MaxPool3DGrad", "MaxPool3DGradGrad", "MaxPoolGrad", "MaxPoolGradGrad", "MaxPoolGradGradV2"),
        *("MaxPoolGradV2",),
    )
)
_FORCED = (Rule.FORCED_BY_LEVEL, Rule.FORCED_BY_NAME, Rule.FORCED_BY_SCOPE)


def take_sums_off_lists(canvas: Canvas) -> None:
    """Ops of the clear list that add many values in their own type are on no list.

    Difference "narrow-sum": TensorFlow has ScatterNd among the ops that move values.
    """
    if canvas.target.lists.table == CPU:
        units = _units_of_ops(canvas, SUMS_IN_ITS_TYPE)
        units = [unit for unit in units if canvas.on_clear[unit]]
        canvas.on_clear[units] = 0
        canvas.rule[units] = Rule.SUMS


def drop_narrow_sums(canvas: Canvas) -> None:
    """Takes the paint off sums whose bfloat16 kernel keeps the sum in bfloat16, if nothing better computes them.

    oneDNN computes the bias gradient of a convolution with its filter's, and keeps the sum in float32. So this comes
    last, when it is known which nodes have one type. Difference "narrow-sum": TensorFlow has BiasAddGrad on its infer
    list, and the bias gradient of a dense layer over 16,384 rows of ones is 512.
    """
    if canvas.target.lists.table == CPU and canvas.target.precision is Precision.BFLOAT16:
        units = [unit for unit in _units_of_ops(canvas, SUMS_IN_BFLOAT16) if canvas.allow[unit]]
        fused = fused_with_products(canvas) if units else set()
        lone = [unit for unit in units if unit not in fused and canvas.rule[unit] not in _FORCED]
        canvas.unpaint_allow(lone, Rule.SUMS)


def keep_stored(canvas: Canvas) -> None:
    """What only serves to compute what a variable will hold is painted deny.

    So are the moving averages of batch normalization, and optimizers that are written in plain operations, from the
    gradient on. A value that something else reads as well stays as it is, and so does a large one that is summed up.
    Difference "stored-value": TensorFlow converts them where they follow a product.
    """
    view, edges = canvas.view, canvas.view.edges
    stack = view.nodes_where(lambda signature: signature.op in STORING)
    if not stack:
        return
    listed = units_of((canvas.on_infer | canvas.on_clear) & canvas.is_float32)
    is_open = np.zeros(view.node_count, np.bool_)
    is_open[np.asarray(canvas.node_of)[listed]] = True
    is_open &= ~view.of_kinds((signature.op in SHRINKING for signature in view.of_kind), np.bool_)
    readers_left = np.bincount(edges.src_node, minlength=view.node_count).tolist()
    firsts = np.searchsorted(edges.dst_node, np.arange(view.node_count + 1)).tolist()
    open_nodes, sources, base = is_open.tolist(), edges.src_node.tolist(), view.base
    stored_by = [NO_CAUSE] * view.node_count
    while stack:
        node = stack.pop()
        for source in sources[firsts[node] : firsts[node + 1]]:
            readers_left[source] -= 1
            if open_nodes[source] and not readers_left[source]:
                stack.append(source)
                stored_by[source] = node
    causes = np.asarray(stored_by, np.int32)
    kept = units_of(view.spread(causes != NO_CAUSE) & canvas.is_float32)
    first_units = np.asarray(base, np.int32)[causes]
    np.frombuffer(canvas.cause, np.int32)[kept] = view.spread(first_units)[kept]
    canvas.paint_deny(kept, Rule.STORED)


def keep_whole_numbers(canvas: Canvas) -> None:
    """What a program turns into integers is painted deny, back to where it is made or comes from a product.

    Difference "whole-number": TensorFlow paints backwards, too, from a product through what moves values, so that the
    ids of a feature column are rounded with the columns beside them.
    """
    view = canvas.view
    seeds = []
    for node in view.nodes_where(lambda signature: signature.op == "Cast"):
        signature, first = view.signatures[node], view.base[node]
        source, result = signature.slot_of("SrcT"), signature.slot_of("DstT")
        if source is not None and result is not None and view.dtypes[first + result] in datatypes.INTEGERS:
            seeds.append(first + source)
    passable = (canvas.on_infer | canvas.on_clear) & (canvas.deny ^ 1)
    canvas.paint_deny(canvas.flood(seeds, passable, backward=True), Rule.WHOLE_NUMBERS)


def match_maxima(canvas: Canvas) -> None:
    """The gradient of a maximum gets the maximum and the values that it was taken from both rounded, or neither.

    Either the comparison is 16 bit, too, or the maximum is not. Difference "lost-maximum": in TensorFlow's pass a
    MaxPool3D is converted but its gradient, which has two types and kernels for both alike only, is not, and gives
    zeros.
    """
    view, edges = canvas.view, canvas.view.edges
    first_source = _first_sources(canvas, {*_UNCHANGED, *_MAXIMA})
    for node in view.nodes_where(lambda signature: signature.op in _COMPARING):
        inputs = edges.at(slice(*np.searchsorted(edges.dst_node, (node, node + 1))))
        inputs = inputs.at(inputs.dst_position < 2)  # the values and the maximum, in one type
        is_painted = [bool(canvas.allow[unit]) for unit in inputs.src_unit]
        unit = int(inputs.dst_unit[0]) if len(inputs) == 2 else NO_CAUSE  # a broken graph may lack one
        if unit == NO_CAUSE or canvas.allow[unit] or is_painted[0] == is_painted[1]:
            continue
        chain = [int(inputs.src_node[is_painted.index(True)])]
        while view.ops[chain[-1]] in _UNCHANGED and first_source.get(chain[-1], chain[0]) not in chain:
            chain.append(first_source[chain[-1]])
        if view.ops[chain[-1]] not in _MAXIMA:
            continue
        if canvas.convertible[unit] and not canvas.deny[unit] and not canvas.locked[unit]:
            canvas.paint_allow([unit], Rule.COMPARES)
        else:
            units = [unit for node in chain for unit in view.units(node) if canvas.rule[unit] not in _FORCED]
            canvas.unpaint_allow(units, Rule.COMPARED)


def _first_sources(canvas: Canvas, ops: Collection[str]) -> dict[int, int]:
    """Where the first input of each node of some ops comes from."""
    view, edges = canvas.view, canvas.view.edges
    is_wanted = view.of_kinds((signature.op in ops for signature in view.of_kind), np.bool_)
    chosen = edges.at(is_wanted[edges.dst_node] & (edges.dst_position == 0))
    return dict(zip(chosen.dst_node.tolist(), chosen.src_node.tolist(), strict=True))


def _units_of_ops(canvas: Canvas, ops: Collection[str]) -> list[int]:
    """The float32 units of the nodes of some ops."""
    view = canvas.view
    nodes = view.nodes_where(lambda signature: signature.op in ops)
    return [unit for node in nodes for unit in view.units(node) if canvas.is_float32[unit]]
