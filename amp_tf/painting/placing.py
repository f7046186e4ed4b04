"""Where casts stand: behind what passes a value on or picks a part of it, and none beside a cast that is there."""

from __future__ import annotations

import numpy as np

from amp_tf.graph.datatypes import Node, Unit
from amp_tf.graph.edits import Tensor
from amp_tf.graph.sizes import NO_SHAPES, element_count, shape_of
from amp_tf.oplists.table import HANDING_ON, PICKING, PINNED, VARIABLE_VALUES
from amp_tf.painting.canvas import Canvas, units_of
from amp_tf.painting.reasons import FORCED, Rule


def leave_carried_values(canvas: Canvas) -> None:
    """What passes a float32 value through unchanged, also to nodes that are not converted, stays in float32.

    The cast then stands behind it, for those that want 16 bit: the others get the value as it was, and no cast back. So
    the gradient of a bias is the sum of gradients that nobody rounded, though its product's gradients read them, too.

    Difference "passed-through": TensorFlow converts a Reshape before a product, and what else reads it gets rounded
    values.

    Example (bfloat16)::

        flat = Reshape(x, rows)   f16 → float32
        allow1 = MatMul(flat, x)  f16
        exact = Digamma(flat)
    """
    values = canvas.flow.values
    painted = canvas.allow.astype(np.bool_)
    forced = np.isin(canvas.rule, sorted(FORCED))
    converted = canvas.nodes_of(painted)
    carriers = values.nodes_of(HANDING_ON) & canvas.nodes_of(painted & ~forced)
    behind = values.readers_of(converted & ~carriers) & carriers
    free = carriers & ~behind & ~values.downstream(behind, through=carriers)
    shared = free & values.sources_of(~converted)
    found = shared | values.upstream(shared, through=free)
    canvas.unpaint_allow(units_of(canvas.view.spread(found)), Rule.CARRIED)


def leave_picked_values(canvas: Canvas) -> None:
    """What picks rows of a float32 table stays in float32, where no other converted node reads the table.

    The cast then stands behind it: of a table of embeddings the rows that were looked up are cast, not the table, which
    Keras 3 gathers from as a tensor. Values are the same to the last bit. A table is a variable, or what is larger than
    all that is picked of it; a variable that is known to be smaller is cast as a whole. In loops nothing is moved,
    because what picks there picks again and again.

    Difference "looked-up-rows": TensorFlow casts the table in each step.

    Example (bfloat16)::

        handle = VarHandleOp() dtype=float32 shape=[5000, 8]
        table = ReadVariableOp(handle) dtype=float32
        found = GatherV2(table, rows, axis) Tindices=int32 Taxis=int32  f16 → float32
        allow1 = MatMul(found, x)                                       f16
    """
    view, edges = canvas.view, canvas.view.edges
    if canvas.is_loop_body or view.nodes_with(PINNED):
        return
    meet = (canvas.is_float32[edges.src_unit] & (canvas.allow[edges.src_unit] ^ 1) & canvas.allow[edges.dst_unit]) == 1
    whole = meet & ~(view.mask_with(PICKING)[edges.dst_node] & (edges.dst_position == 0))
    cast = set(edges.at(whole).rows("src_node", "src_port"))
    picked: dict[Tensor, dict[Node, Unit]] = {}
    for *tensor, node, unit in edges.at(meet).rows("src_node", "src_port", "dst_node", "dst_unit"):
        if tuple(tensor) not in cast:
            picked.setdefault((tensor[0], tensor[1]), {})[node] = unit
    shapes = canvas.shapes or NO_SHAPES
    for (source, port), units in picked.items():
        table = element_count(shape_of(shapes, view.names[source], port))
        sizes = [element_count(shape_of(shapes, view.names[node])) for node in units]
        known = [size for size in sizes if size is not None]
        is_known = table is not None and len(known) == len(sizes)
        is_larger = sum(known) < (table or 0) if is_known else view.ops[source] in VARIABLE_VALUES
        if is_larger and not any(canvas.rule[unit] in FORCED for unit in units.values()):
            canvas.unpaint_allow(units.values(), Rule.PICKED)


def absorb_casts(canvas: Canvas) -> None:
    """An existing Cast to the 16-bit type takes a painted value as it is, which makes it a copy that costs nothing.

    Otherwise the value would be cast to float32 for it alone, and back; none of TensorFlow's optimizers removes such a
    pair. TensorFlow's own pass makes it, so this rule runs only where amp_tf chooses the precision. Casts of constants
    are folded by TensorFlow's second round (``tests/hooks/test_executed.py`` shows both).

    Example (auto)::

        x = Placeholder() shape=[512, 512]
        allow1 = MatMul(x, x)                            f16
        cast1 = Cast(allow1) SrcT=float32 DstT=bfloat16  float32 → f16
        allow2 = MatMul(cast1, cast1) T=bfloat16
    """
    for source, result in canvas.casts():
        fanins = canvas.edges.fanins(source)
        repeats = canvas.view.dtypes[result] == canvas.target.precision.data_type and canvas.is_free(source)
        if repeats and fanins and all(canvas.allow[fanin] and canvas.is_float32[fanin] for fanin in fanins):
            canvas.paint_allow([source], Rule.CAST_REPEATS)
