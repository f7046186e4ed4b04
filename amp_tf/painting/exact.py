"""What must be computed in float32 although the lists would convert it: its result would not only be rounded, but lost.

Three cases of single ops, and TensorFlow's pass knows none of them; :mod:`amp_tf.painting.contract` has those that
follow from where values go. A sum that is kept in the 16-bit type stops growing: 256 and 1 are 256 in bfloat16. Float
values that stand for whole numbers, such as the ids of a feature column, become other numbers: 1,001 is 1,000 in
bfloat16. And the gradient of a maximum looks for the maximum among the values that it was taken from, where it is not
found once it is rounded and they are not.

TensorFlow's CPU kernel of BiasAddGrad adds row after row in bfloat16; oneDNN's fused one does not, so which bias
gradients become 16 bit is decided last, and none does where oneDNN does not run. Elu and Selu compute exp(x) - 1 in 16
bit, LogSoftmax the logarithm of a sum that is rounded to 1. ``python -m benchmarks.kernel_accuracy`` asks all
elementwise kernels for every number: no other that may be 16 bit loses more than 8 units on CPUs. AvgPoolGrad and
ResizeNearestNeighborGrad add in their own type as well, up to 3 units off on average for windows of 16 × 16, and stay
as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Unit
from amp_tf.oplists.table import (
    ABSOLUTE,
    CASTS,
    CHOOSING,
    CLOSING,
    COMPARING,
    CPU,
    INACCURATE,
    KEEPING,
    MAXIMA,
    MAXIMA_GRADIENTS,
    PLACING,
    SUMS_IN_BFLOAT16,
    SUMS_IN_EIGEN,
    SUMS_IN_ITS_TYPE,
    UNCHANGED,
)
from amp_tf.oplists.targets import CPU_DEVICE
from amp_tf.painting.canvas import NO_CAUSE, Canvas
from amp_tf.painting.kernels import fused_with_gradients
from amp_tf.painting.reasons import FORCED, Rule
from amp_tf.precision import Precision

FARTHEST = 64  #: units behind a comparison among which the values are looked for that a maximum was chosen from


def take_sums_off_lists(canvas: Canvas) -> None:
    """Ops that add many values in their own type are on no list.

    Difference "narrow-sum": TensorFlow has ScatterNd among the ops that move values, and AvgPool on its infer list. On
    CPUs the kernel of AvgPool has a sum of float32 where it is oneDNN's: for bfloat16, and on some CPUs alone.

    Example (bfloat16)::

        cells = Const() dtype=int32 value=int32[1, 1]
        shape = Const() dtype=int32 value=int32[1]*4
        allow1 = MatMul(x, x)                                  f16
        sums = ScatterNd(cells, allow1, shape) Tindices=int32  f16 → float32
        allow2 = MatMul(sums, x)                               f16
    """
    if canvas.target.device_type != CPU_DEVICE:
        return
    narrow = {*SUMS_IN_ITS_TYPE, *(() if canvas.target.adds_in_float32 else SUMS_IN_EIGEN)}
    units = _units_of_ops(canvas, narrow)
    units = [unit for unit in units if canvas.on_clear[unit] or canvas.on_infer[unit]]
    for listed in (canvas.on_clear, canvas.on_infer):
        listed[units] = 0
    canvas.rule[units] = Rule.SUMS


def take_inaccurate_off_lists(canvas: Canvas) -> None:
    """Ops whose 16-bit kernels lose their result are on no list.

    They are on one until it is known where values come from and go: a difference of two log-softmaxes keeps the biases
    in float32 that they read.

    Difference "inaccurate-kernel": TensorFlow has Elu, Selu and LogSoftmax on its infer list. In bfloat16 the Elu of
    -1e-4 is 0, and so is the logarithm of a probability of 0.996.

    Example (bfloat16)::

        allow1 = MatMul(x, x)     f16
        elu1 = Elu(allow1)        f16 → float32
        allow2 = MatMul(elu1, x)  f16
    """
    units = _units_of_ops(canvas, INACCURATE)
    listed = [unit for unit in units if canvas.on_infer[unit] and not canvas.deny[unit]]
    canvas.on_infer[listed] = 0
    canvas.rule[listed] = Rule.INACCURATE


def drop_narrow_sums(canvas: Canvas) -> None:
    """Takes the paint off sums whose bfloat16 kernel keeps the sum in bfloat16, if nothing better computes them.

    Where oneDNN runs, it computes the bias gradient of a convolution with its filter's, in float32. So this comes
    last, when it is known which nodes have one type. Difference "narrow-sum": TensorFlow has BiasAddGrad on its infer
    list, and the bias gradient of a dense layer over 16,384 rows of ones is 512.

    Example (bfloat16)::

        allow1 = MatMul(x, x)                f16
        bias_gradient = BiasAddGrad(allow1)  f16 → float32
    """
    if canvas.target.lists.table == CPU and canvas.target.precision is Precision.BFLOAT16:
        units = [unit for unit in _units_of_ops(canvas, SUMS_IN_BFLOAT16) if canvas.allow[unit]]
        fused = fused_with_gradients(canvas) if units and canvas.target.adds_in_float32 else {}
        lone = [unit for unit in units if unit not in fused and canvas.rule[unit] not in FORCED]
        canvas.unpaint_allow(lone, Rule.SUMS)


def keep_whole_numbers(canvas: Canvas) -> None:
    """What a program turns into integers is painted deny, back to where it is made or comes from a product.

    So is what it takes the fraction or a sine of, and the places at which an image is read: a rounding is relative, and
    their need is absolute. Of the fraction of 1,000.3 nothing is left in bfloat16.

    Difference "whole-number": TensorFlow paints backwards, too, from a product through what moves values, so that the
    ids of a feature column are rounded with the columns beside them.

    Example (bfloat16)::

        axis = Const() dtype=int32 value=int32[]*1
        allow1 = MatMul(x, x)                       f16
        ids = Relu(x)                               f16 → float32
        number = Cast(ids) SrcT=float32 DstT=int32
        both = ConcatV2(allow1, ids, axis) N=2      f16
        allow2 = MatMul(both, x)                    f16
    """
    view = canvas.view
    seeds = []
    for node in view.nodes_with(CASTS):
        signature, first = view.signatures[node], view.base[node]
        source, result = signature.slot_of("SrcT"), signature.slot_of("DstT")
        if source is not None and result is not None and view.dtypes[first + result] in datatypes.INTEGERS:
            seeds.append(first + source)
    needy = [unit for node in view.nodes_with(ABSOLUTE) for unit in view.units(node)]
    placed = view.edges.at(view.mask_with(PLACING)[view.edges.dst_node] & (view.edges.dst_position == 1))
    seeds += [*needy, *placed.dst_unit.tolist()]
    canvas.paint_deny([unit for unit in needy if canvas.on_infer[unit] or canvas.on_clear[unit]], Rule.WHOLE_NUMBERS)
    passable = (canvas.on_infer | canvas.on_clear) & (canvas.deny ^ 1)
    canvas.paint_deny(canvas.flood(seeds, passable, backward=True), Rule.WHOLE_NUMBERS)


def keep_stored_maxima(canvas: Canvas) -> None:
    """A maximum that a loop or a branch keeps for its gradient is painted deny, with what keeps it and its operand.

    There the gradient, which compares the two, is in another part of the graph, and reads them from a list or an
    optional; an operand from outside it may read by a way of its own, which is painted deny as well. Difference
    "lost-maximum", as :func:`match_maxima`.

    Example (bfloat16)::

        axis = Const() dtype=int32 value=int32[]*0
        allow1 = MatMul(x, x)                                   f16
        max1 = Max(allow1, axis) keep_dims=true                 f16 → float32
        kept = OptionalFromValue(max1) Toutput_types=[float32]
        allow2 = MatMul(max1, x)                                f16
    """
    view, edges = canvas.view, canvas.view.edges
    is_keeping = view.mask_with(KEEPING)
    keeping = edges.at(is_keeping[edges.dst_node] & canvas.is_float32.astype(np.bool_)[edges.src_unit])
    if not len(keeping):
        return
    first = view.first_inputs(view.mask_with({*UNCHANGED, *MAXIMA}))
    first_source = {node: source for node, (source, _) in first.items()}
    kept: dict[int, list[int]] = {}  # by what they keep: the units that do, and those between
    for source, unit in keeping.rows("src_node", "dst_unit"):
        chain = _unchanged_from(canvas, source, first_source)
        between = [unit for node in chain[:-1] for unit in view.units(node)]
        kept.setdefault(chain[-1], []).extend([unit, *between])
    ways: dict[int, list[int]] = {}  # by what is compared: the units between
    compared = edges.at(view.mask_with(COMPARING)[edges.dst_node])
    for source in compared.src_node.tolist():
        chain = _unchanged_from(canvas, source, first_source)
        ways.setdefault(chain[-1], []).extend(unit for node in chain[:-1] for unit in view.units(node))
    for node in view.nodes_with(MAXIMA):
        if node in kept and node in first_source:
            operand = _unchanged_from(canvas, first_source[node], first_source)[-1]
            units = [*view.units(node), *kept[node], *kept.get(operand, ()), *ways.get(operand, ())]
            listed = canvas.on_infer | canvas.on_clear
            canvas.paint_deny([unit for unit in units if listed[unit] and canvas.is_float32[unit]], Rule.COMPARED)


def match_maxima(canvas: Canvas) -> None:
    """Where a maximum is compared with the values that it was taken from, both are rounded, or neither.

    Either the comparison is 16 bit, too, or the maximum is not. The gradient of a maximum compares so, and so do masks
    of the largest values, ``x >= tf.math.top_k(x, 2).values[:, -1:]``. For XLA neither is 16 bit: it leaves roundings
    out (``xla_allow_excess_precision``) where one op reads a value and not where another does, so that a maximum
    equals none of the values, and its gradient is 0 / 0. Difference "lost-maximum": in TensorFlow's pass
    a MaxPool3D is converted but its gradient, which has two types and kernels for both alike only, is not, and gives
    zeros.

    Example (bfloat16)::

        max1 = MaxPool3D(x)                         f16 → float32
        allow1 = Conv3D(max1, w)                    f16
        gradient1 = MaxPool3DGrad(x, max1, allow1)
        allow2 = Conv3D(gradient1, w)               f16
    """
    view, edges = canvas.view, canvas.view.edges
    for node in view.nodes_with(COMPARING):
        inputs = edges.into(node)
        inputs = inputs.at(inputs.dst_position < 2)  # the values and the maximum, in one type
        unit = int(inputs.dst_unit[0]) if len(inputs) == 2 else NO_CAUSE  # a broken graph may lack one
        if unit == NO_CAUSE or (canvas.allow[unit] and not canvas.target.is_xla):
            continue
        first, second = (_Chosen.at(canvas, int(source)) for source in inputs.src_unit)
        belong_together = view.ops[node] in MAXIMA_GRADIENTS or first.origins & second.origins
        if canvas.target.is_xla and view.ops[node] not in MAXIMA_GRADIENTS and first.origins & second.origins:
            units = [*first.converted, *second.converted, unit]
            if not any(view.ops[canvas.node_of[unit]] in CLOSING for unit in units):
                canvas.unpaint_allow([unit for unit in units if canvas.rule[unit] not in FORCED], Rule.COMPARED)
            continue
        rounded = [*first.rounded_beside(second), *second.rounded_beside(first)]
        if not (rounded and belong_together) or (first.rounded_beside(second) and second.rounded_beside(first)):
            continue
        is_free = canvas.convertible[unit] and not canvas.locked[unit]
        closes_loop = any(view.ops[canvas.node_of[unit]] in CLOSING for unit in rounded)
        may_convert = not canvas.deny[unit] or (closes_loop and canvas.rule[unit] == Rule.AFTER_PRODUCTS)
        if is_free and may_convert:
            canvas.paint_allow([unit], Rule.COMPARES)
        elif not closes_loop:
            canvas.unpaint_allow([unit for unit in rounded if canvas.rule[unit] not in FORCED], Rule.COMPARED)


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """Where a value was chosen from.

    Attributes:
        origins: the units that gave the values to choose from; those of :data:`FARTHEST` at most are known.
        converted: the converted units on the way from there.
        roundings: those of them that read float32.
    """

    origins: set[Unit]
    converted: list[Unit]
    roundings: set[Unit]

    def rounded_beside(self, other: _Chosen) -> list[Unit]:
        """The converted units that are on the way to this value alone; none if they round nothing."""
        is_rounded = self.roundings - other.roundings
        return [unit for unit in self.converted if unit not in other.converted] if is_rounded else []

    @classmethod
    def at(cls, canvas: Canvas, unit: Unit) -> _Chosen:
        seen, waiting = {unit}, [unit]
        origins: set[Unit] = set()
        converted: list[Unit] = []
        roundings: set[Unit] = set()
        while waiting and len(seen) < FARTHEST:
            unit = waiting.pop()
            sources = canvas.edges.fanins(unit) if canvas.view.ops[canvas.node_of[unit]] in CHOOSING else ()
            if not sources:
                origins.add(unit)
            elif canvas.allow[unit]:
                converted.append(unit)
                if not all(canvas.allow[source] for source in sources):
                    roundings.add(unit)
            waiting += set(sources) - seen
            seen.update(sources)
        return cls(origins, converted, roundings)


def _unchanged_from(canvas: Canvas, node: int, first_source: dict[int, int]) -> list[int]:
    """A node, and where its value comes from through nodes that do not change it."""
    chain = [node]
    while canvas.view.ops[chain[-1]] in UNCHANGED and first_source.get(chain[-1], node) not in chain:
        chain.append(first_source[chain[-1]])
    return chain


def _units_of_ops(canvas: Canvas, ops: Collection[str]) -> list[int]:
    """The float32 units of the nodes of some ops."""
    view = canvas.view
    nodes = view.nodes_where(lambda signature: signature.op in ops)
    return [unit for node in nodes for unit in view.units(node) if canvas.is_float32[unit]]
