"""TensorLists: their writers and readers have one type.

The graph shows a list only as a handle of type variant that runs from op to op. Ops connected by
handles form a cluster, and agree on the type of its elements; values flow inside it from writers to
readers, along edges that the graph does not show. A list that leaves the graph is denied as in
TensorFlow: nodes that may be touched become deny before deny spreads, the others afterwards.
Spreading deny through the list would be safer, but differs from TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import connected, reach
from amp_tf.graph.datatypes import Node, NodeMask, Unit, UnitMask, indices
from amp_tf.graph.templates import Signature
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.decisions import Decision, Verdict
from amp_tf.painting.reasons import Code


def find_clusters(canvas: Canvas) -> Canvas:
    """Gives nodes that share a TensorList of float32 one type; float32 if the list has unknown
    users.

    Such nodes are a *cluster*. It is unsafe if a node of it may not be touched, or if its handle
    passes through a call, an argument or another place behind which unseen ops may use the list.
    Its nodes that may not be touched become deny in :func:`match_clusters`. As in TensorFlow, deny
    spreads only from those of them that a setting puts on the deny list.

    Example (bfloat16)::

        list1 = TensorListReserve(shape, size) element_dtype=float32 shape_type=int32  float32 → f16
        allow1 = MatMul(x, x)                                                          f16
        write1 = TensorListSetItem(list1, index, allow1) element_dtype=float32         f16
        read1 = TensorListGetItem(write1, index, shape) element_dtype=float32          f16
        allow2 = MatMul(read1, x)                                                      f16
    """
    view = canvas.view
    element_of: dict[Unit, Unit] = {}  # by the handle of the list
    of_lists: NodeMask = view.of_kinds(map(handles_lists, view.of_kind), np.bool_)
    for node in indices(of_lists):
        element, handle = list_units(view, node)
        if element is not None and handle is not None:
            element_of[handle] = element
    if not element_of:
        return canvas
    is_unseen = _unseen(canvas, of_lists)
    is_handle = np.asarray(view.dtypes) == datatypes.VARIANT
    edges = view.edges.at(is_handle[view.edges.src_unit])
    escaping: list[Unit] = []
    clusters = []
    pairs: list[tuple[Unit, Unit]] = []
    for handles in connected(indices(is_handle), edges.rows("src_unit", "dst_unit")):
        cluster = {handle: element_of[handle] for handle in handles if handle in element_of}
        units = [*cluster.values()]
        can_be_touched = canvas.processable[units]
        if not can_be_touched.any():
            continue
        if not can_be_touched.all() or is_unseen[handles].any():
            escaping += np.compress(can_be_touched, units).tolist()
        clusters.append(units)
        pairs += _pairs(canvas, cluster)
    if pairs:
        through_lists = np.array([(*pair, 0) for pair in pairs], np.int32).T
        rows = [canvas.src, canvas.dst, canvas.positions]
        canvas = canvas.connected(*np.concatenate([rows, through_lists], axis=1))
    canvas = canvas.having(clusters=clusters)
    return canvas.after(Decision(Verdict.DENY, escaping, Code.LIST_ESCAPES))


def _unseen(canvas: Canvas, of_lists: NodeMask) -> UnitMask:
    """Returns the units behind which unseen ops may use a list.

    Difference "call-boundary": loops and branches in functional form (While, If, Case) hand the
    list to functions. TensorFlow's pass does not stop at them, because it sees them in lowered
    form. Difference "list-of-lists": TensorFlow does not follow a list that is stored in another
    list and read again, as nested loops do for their gradients. So the readers of a list may get
    another type than its writers.
    """
    view = canvas.view
    boundaries = canvas.subject.calls | view.mask_with(table.TENSOR_LIST_BOUNDARIES)
    into_lists = view.units_of(of_lists) & ~view.fixed_units()
    return view.units_of(boundaries) | into_lists


def _pairs(canvas: Canvas, cluster: Mapping[Unit, Unit]) -> Iterator[tuple[Unit, Unit]]:
    """Yields the writers upstream of each reader, as pairs of units.

    The units are those of the writer's elements and of the reader's.

    Args:
        cluster: by the handle of a node, the unit of its elements.
    """
    writes = canvas.view.units_with(table.TENSOR_LIST_WRITERS)
    reads = canvas.view.units_with(table.TENSOR_LIST_READERS)
    for handle, element in cluster.items():
        if not reads[handle] or not canvas.processable[handle]:
            continue
        reached = reach([handle], canvas.processable, canvas.links.inward)
        for writer in sorted(reached):
            if writes[writer] and writer in cluster:
                yield cluster[writer], element


def match_clusters(canvas: Canvas) -> Canvas:
    """Gives all nodes that share a TensorList one paint: deny if any of them is deny, else allow if
    any is allow.

    Example (bfloat16, tensor lists after pass 2)::

        list1 = TensorListReserve(shape, size) element_dtype=float32 shape_type=int32
        allow1 = MatMul(x, x)                                                          f16
        write1 = TensorListSetItem(list1, index, allow1) element_dtype=float32
        read1 = TensorListGetItem(write1, index, shape) element_dtype=float32
        infer1 = Tanh(read1)                                                           f16 → float32
        allow2 = MatMul(infer1, x)                                                     f16
        deny1 = Exp(x)
        write2 = TensorListSetItem(write1, index, deny1) element_dtype=float32
        read2 = TensorListGetItem(write2, index, shape) element_dtype=float32
        infer2 = Tanh(read2)
        allow3 = MatMul(infer2, x)                                                     f16

    Example (bfloat16, tensor lists after pass 6)::

        list1 = TensorListReserve(shape, size) element_dtype=float32 shape_type=int32  float32 → f16
        allow1 = MatMul(x, x)                                                          f16
        write1 = TensorListSetItem(list1, index, allow1) element_dtype=float32         f16
        read1 = TensorListGetItem(write1, index, shape) element_dtype=float32          f16
        allow2 = MatMul(read1, x)                                                      f16
    """
    decisions = []
    for units in canvas.clusters:
        denied = np.compress(canvas.deny[units], units).tolist()
        allowed = np.compress(canvas.allow[units], units).tolist()
        leading = denied or allowed
        if not leading:
            continue
        others = [unit for unit in units if unit not in leading]
        causes = dict.fromkeys(others, leading[0])
        if not denied:
            decisions.append(Decision(Verdict.ALLOW, others, Code.LIST_FOLLOWS, causes))
            continue
        reason = Code.LIST_DENIED
        if (canvas.code[denied] == Code.LIST_ESCAPES).any():
            reason = Code.LIST_ESCAPES
        decisions.append(Decision(Verdict.LEAVE, units, reason))
        decisions.append(Decision(Verdict.DENY, others, reason, causes))
    return canvas.after(*decisions)


def handles_lists(signature: Signature) -> bool:
    """Returns whether an op makes, writes, reads or passes on a TensorList."""
    return "TensorList" in signature.op


def list_units(view: GraphView, node: Node) -> tuple[Unit | None, Unit | None]:
    """Returns two units of a TensorList node.

    One is for the float32 type of the list's elements, the other for the list's handle.
    """
    element: Unit | None = None
    handle: Unit | None = None
    for unit in view.units(node):
        slot = view.slot(node, unit)
        data_type = view.dtypes[unit]
        if data_type == datatypes.VARIANT and slot.is_fixed and handle is None:
            handle = unit
        is_free = not slot.is_fixed and slot.index < 0
        if data_type == datatypes.FLOAT and is_free and element is None:
            element = unit
    return element, handle
