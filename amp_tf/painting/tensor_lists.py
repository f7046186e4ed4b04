"""TensorLists: the ops that share a list must agree on the type of its elements.

The graph shows a list only as a handle of type variant that runs from op to op. Ops connected by handles form a
cluster; values flow inside it from writers to readers, along edges that the graph does not show.

A list that leaves the graph is denied as in TensorFlow: nodes that may be touched become deny before deny spreads, the
others afterwards. To spread danger through the list would be safer, but differs from TensorFlow.
"""

from __future__ import annotations

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Node, Unit
from amp_tf.graph.templates import Signature
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import TENSOR_LIST_BOUNDARIES, TENSOR_LIST_READERS, TENSOR_LIST_WRITERS
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.reasons import Rule


def find_clusters(canvas: Canvas) -> None:
    """The clusters of float32 TensorList nodes; of those that are not safe, the nodes that may be touched become deny.

    A cluster is unsafe if a node of it may not be touched, or if its handle passes through a call, an argument or
    another place behind which unseen ops may use the list. The nodes that may not be touched follow in
    :func:`match_clusters`: as in TensorFlow, deny spreads from those of them that a setting puts on the deny list.

    Example (bfloat16)::

        shape = Const() dtype=int32 value=int32[2]*4
        size = Const() dtype=int32 value=int32[]*2
        index = Const() dtype=int32 value=int32[]*0
        list1 = TensorListReserve(shape, size) element_dtype=float32 shape_type=int32  float32 → f16
        allow1 = MatMul(x, x)                                                          f16
        write1 = TensorListSetItem(list1, index, allow1) element_dtype=float32         f16
        read1 = TensorListGetItem(write1, index, shape) element_dtype=float32          f16
        allow2 = MatMul(read1, x)                                                      f16
    """
    view = canvas.view
    element = {node: unit for node in view.nodes_where(handles_lists) if (unit := element_unit(view, node)) is not None}
    everywhere = np.ones(view.unit_count, np.uint8)
    seen: set[int] = set()
    for root in element:
        if root in seen or not canvas.processable[element[root]]:
            continue
        handle = handle_unit(view, root)
        if handle is None:
            continue
        reached = canvas.flood([handle], everywhere, forward=True, backward=True)
        touched = {canvas.node_of[unit] for unit in reached}
        cluster = {node: element[node] for node in sorted(touched | {root}) if node in element}
        seen.update(cluster)
        escapes = any(_is_boundary(canvas, node) for node in touched - element.keys())
        escapes = escapes or any(_is_element(canvas, unit) for unit in reached)
        if escapes or not all(canvas.processable[unit] for unit in cluster.values()):
            touchable = [unit for unit in cluster.values() if canvas.processable[unit]]
            canvas.paint_deny(touchable, Rule.LIST_ESCAPES)
        canvas.clusters.append(cluster)
    canvas.add_edges(_implicit_edges(canvas))


def _implicit_edges(canvas: Canvas) -> list[tuple[int, int]]:
    """For each reader of a list, an edge to it from every writer upstream: (writer's unit, reader's unit)."""
    view = canvas.view
    pairs = []
    for cluster in canvas.clusters:
        for node, unit in cluster.items():
            handle = handle_unit(view, node)
            if view.ops[node] not in TENSOR_LIST_READERS or handle is None or not canvas.processable[handle]:
                continue
            writers = {
                canvas.node_of[reached]
                for reached in canvas.flood([handle], canvas.processable, backward=True)
                if view.ops[canvas.node_of[reached]] in TENSOR_LIST_WRITERS
            }
            pairs += [(cluster[writer], unit) for writer in sorted(writers) if writer in cluster]
    return pairs


def match_clusters(canvas: Canvas) -> None:
    """All nodes of a cluster get one paint: deny if any is deny, else allow if any is allow.

    Example (bfloat16, tensor lists after pass 2)::

        shape = Const() dtype=int32 value=int32[2]*4
        size = Const() dtype=int32 value=int32[]*2
        index = Const() dtype=int32 value=int32[]*0
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

        shape = Const() dtype=int32 value=int32[2]*4
        size = Const() dtype=int32 value=int32[]*2
        index = Const() dtype=int32 value=int32[]*0
        list1 = TensorListReserve(shape, size) element_dtype=float32 shape_type=int32  float32 → f16
        allow1 = MatMul(x, x)                                                          f16
        write1 = TensorListSetItem(list1, index, allow1) element_dtype=float32         f16
        read1 = TensorListGetItem(write1, index, shape) element_dtype=float32          f16
        allow2 = MatMul(read1, x)                                                      f16
    """
    for cluster in canvas.clusters:
        units = list(cluster.values())
        denied = [unit for unit in units if canvas.deny[unit]]
        allowed = [unit for unit in units if canvas.allow[unit]]
        if denied:
            others = [unit for unit in units if not canvas.deny[unit]]
            escapes = any(canvas.rule[unit] == Rule.LIST_ESCAPES for unit in denied)
            rule = Rule.LIST_ESCAPES if escapes else Rule.LIST_DENIED
            _set_cause(canvas, others, denied[0])
            canvas.unpaint_allow(units, rule)
            canvas.paint_deny(others, rule)
        elif allowed:
            others = [unit for unit in units if not canvas.allow[unit]]
            _set_cause(canvas, others, allowed[0])
            canvas.paint_allow(others, Rule.LIST_FOLLOWS)


def handles_lists(signature: Signature) -> bool:
    """Whether an op makes, writes, reads or passes on a TensorList."""
    return "TensorList" in signature.op


def _is_boundary(canvas: Canvas, node: Node) -> bool:
    """Whether unseen ops may use a list that passes through this node.

    Difference "call-boundary": loops and branches in functional form (While, If, Case) hand the list to functions, and
    TensorFlow's pass, which meets them in lowered form, does not know them as boundaries.
    """
    op = canvas.view.ops[node]
    return op in TENSOR_LIST_BOUNDARIES or canvas.is_function(op) or canvas.view.signatures[node].holds_functions


def _is_element(canvas: Canvas, unit: Unit) -> bool:
    """Whether a list is stored there in another one, as a loop in a loop stores what its gradient needs.

    Difference "list-of-lists": TensorFlow does not follow a list into another and out again, and the readers of one
    list may get another type than its writers.
    """
    node = canvas.node_of[unit]
    return handles_lists(canvas.view.signatures[node]) and not canvas.view.slot(node, unit).is_fixed


def _set_cause(canvas: Canvas, units: list[Unit], cause: int) -> None:
    for unit in units:
        canvas.cause[unit] = cause


def element_unit(view: GraphView, node: Node) -> int | None:
    """The unit of a TensorList node that is the float32 type of the list's elements."""
    for unit in view.units(node):
        slot = view.slot(node, unit)
        if not slot.is_fixed and slot.index < 0 and view.dtypes[unit] == datatypes.FLOAT:
            return unit
    return None


def handle_unit(view: GraphView, node: Node) -> int | None:
    """The unit of a TensorList node that is the list's handle."""
    for unit in view.units(node):
        if view.slot(node, unit).is_fixed and view.dtypes[unit] == datatypes.VARIANT:
            return unit
    return None
