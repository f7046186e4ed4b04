"""Places of casts: rules that move casts and change no value.

Casts move behind nodes that pass a value on or pick a part of it, and merge with casts of the
program.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amp_tf.graph.datatypes import Node, Unit, indices
from amp_tf.graph.edits import Tensor
from amp_tf.graph.sizes import NO_SHAPES, element_count, shape_of
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.decisions import Decision, Verdict
from amp_tf.painting.reasons import FORCED, Code
from amp_tf.painting.value_graph import casts_of


def leave_carried_values(canvas: Canvas) -> Canvas:
    """Keeps nodes in float32 that only pass on float32 values or arrange them, if some of their
    readers are not converted.

    The cast then stands behind them, for readers in 16 bit; the others get the unrounded value, and
    need no cast back. So a bias gradient adds up unrounded gradients, although the gradients of its
    product read them, too, behind the gradient of a slice, say.

    Difference "passed-through": TensorFlow converts a Reshape before a product, and its other
    readers get rounded values.

    Example (bfloat16)::

        flat = Reshape(x, rows)   f16 → float32
        allow1 = MatMul(flat, x)  f16
        exact = Digamma(flat)

    Example (bfloat16)::

        shape = Const() dtype=int32 value=int32[2]*4
        at = Const() dtype=int32 value=int32[2]*1
        back = StridedSliceGrad(shape, at, at, at, x) Index=int32  f16 → float32
        allow1 = MatMul(back, x) transpose_a=true                  f16
        bias_grad = Sum(back, axis)
        step = Digamma(bias_grad)
    """
    values = canvas.values
    assert values is not None
    converted = canvas.view.nodes_of(canvas.allow)
    forced = np.isin(canvas.code, sorted(FORCED))
    carriers = values.of_ops(table.HANDING_ON | table.ARRANGING)
    carriers = carriers & canvas.view.nodes_of(canvas.allow & ~forced)
    behind = values.readers_of(converted & ~carriers) & carriers
    free = carriers & ~values.downstream(behind, through=carriers)
    shared = free & values.sources_of(~converted)
    found = values.upstream(shared, through=free)
    return canvas.leaving(indices(canvas.view.units_of(found)), Code.CARRIED)


def leave_picked_values(canvas: Canvas) -> Canvas:
    """Keeps lookups of rows in a float32 table in float32, if no other converted node reads the
    table.

    The cast then stands behind the lookup. So only the rows that are looked up in a table of
    embeddings are cast, and not the table, which Keras 3 reads as a whole. Values are the same to
    the last bit. A table is a tensor that is larger than all rows picked from it; if sizes are
    unknown, a variable is one. Lookups in loops stay as they are, because they run again and again.

    Difference "looked-up-rows": TensorFlow casts the table in each step.

    Example (bfloat16)::

        handle = VarHandleOp() dtype=float32 shape=[5000, 8]
        table = ReadVariableOp(handle) dtype=float32
        found = GatherV2(table, rows, axis) Tindices=int32 Taxis=int32  f16 → float32
        allow1 = MatMul(found, x)                                       f16
    """
    view = canvas.view
    in_loop = canvas.subject.is_loop_body or view.nodes_with(table.LOOP_ENTRIES)
    if in_loop or not view.nodes_with(table.PICKING):
        return canvas
    left: list[Unit] = []
    for tensor, units in _picked_alone(canvas).items():
        nodes = [view.unit_nodes[unit] for unit in units]
        if _is_larger(canvas, tensor, nodes) and not any(map(canvas.is_forced, units)):
            left += units
    return canvas.leaving(left, Code.PICKED)


def _picked_alone(canvas: Canvas) -> dict[Tensor, list[Unit]]:
    """Returns the float32 tensors that converted nodes read only to pick rows.

    Each is given with the units that read it.
    """
    view = canvas.view
    edges = view.edges
    allow = canvas.allow
    source_is_float32 = canvas.is_float32[edges.src_unit] & ~allow[edges.src_unit]
    meet = source_is_float32 & allow[edges.dst_unit]
    picks = view.mask_with(table.PICKING)[edges.dst_node] & (edges.dst_position == 0)
    whole = set(edges.at(meet & ~picks).rows("src_node", "src_port"))
    found: dict[Tensor, list[Unit]] = {}
    for source, port, unit in edges.at(meet).rows("src_node", "src_port", "dst_unit"):
        if (source, port) not in whole:
            found.setdefault((source, port), []).append(unit)
    return found


def _is_larger(canvas: Canvas, tensor: Tensor, nodes: Sequence[Node]) -> bool:
    """Returns whether a tensor is larger than all parts that some nodes pick.

    If a size is unknown, a variable counts as larger.
    """
    view = canvas.view
    shapes = canvas.subject.shapes or NO_SHAPES
    source, port = tensor
    left = element_count(shape_of(shapes, view.names[source], port))
    for node in nodes:
        picked = element_count(shape_of(shapes, view.names[node]))
        if left is None or picked is None:
            return view.ops[source] in table.VARIABLE_VALUES
        left -= picked
    return left is not None and left > 0


def retarget_casts(canvas: Canvas) -> Canvas:
    """Changes a Cast of the program from float32 to 16 bit, if all its readers are allow.

    Difference "preserved-cast": TensorFlow changes a preserved (fetched) Cast, too, and so the type
    that the caller gets.

    Example (float16)::

        cast1 = Cast(n) SrcT=int32 DstT=float32  float32 → f16
        allow1 = MatMul(cast1, x)                f16
    """
    following = []
    for _, _, result in casts_of(canvas.view):
        readers = canvas.links.fanouts(result)
        if readers and canvas.is_free(result) and canvas.allow[readers].all():
            following.append(result)
    return canvas.after(Decision(Verdict.ALLOW, following, Code.CAST_FOLLOWS))


def absorb_casts(canvas: Canvas) -> Canvas:
    """Lets a Cast of the program to the 16-bit type read a painted value as it is, so that the Cast
    is a copy and costs nothing.

    Otherwise the value would be cast to float32 for it alone, and back, and no optimizer of
    TensorFlow removes such a pair. TensorFlow's own pass makes such pairs, so this rule runs only
    where amp_tf chooses the precision. Casts of constants are folded by TensorFlow's second round
    (``tests/hooks/test_executed.py`` shows both).

    Example (auto)::

        x = Placeholder() shape=[512, 512]
        allow1 = MatMul(x, x)                            f16
        cast1 = Cast(allow1) SrcT=float32 DstT=bfloat16  float32 → f16
        allow2 = MatMul(cast1, cast1) T=bfloat16
    """
    f16 = canvas.target.precision.data_type
    repeating = []
    for _, source, result in casts_of(canvas.view):
        (value,) = canvas.links.fanins(source)
        repeats = canvas.view.dtypes[result] == f16 and canvas.is_free(source)
        if repeats and canvas.allow[value] and canvas.is_float32[value]:
            repeating.append(source)
    return canvas.after(Decision(Verdict.ALLOW, repeating, Code.CAST_REPEATS))
