"""Applies an edit plan to a GraphDef or a FunctionDef; the only code that writes to a proto."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from amp_tf.graph.plan import EditPlan, NewCast, Retypes
from amp_tf.graph.serialized import NodeTable
from amp_tf.graph.view import GraphView
from amp_tf.graph.wire import TypePlaces


def retype_in_place(nodes: NodeTable, view: GraphView, plan: EditPlan) -> tuple[NodeTable, EditPlan]:
    """Makes the plan's changes of types that can be made by changing one byte, which are nearly all.

    Args:
        nodes: the nodes of a graph; they are not changed.
        view: the graph's view.
        plan: the edits.

    Returns:
        The nodes with other types, and the edits that are left.
    """
    if not plan.retypes:
        return nodes, plan
    changed, is_done = nodes.with_types(_places(view, plan.retypes), plan.retypes.data_type)
    return changed, dataclasses.replace(plan, retypes=plan.retypes.where(~is_done))


def _places(view: GraphView, retypes: Retypes) -> TypePlaces:
    slots = [slot for signature in view.of_kind for slot in signature.slots]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(slot.attr for slot in slots))}
    nodes = np.asarray(retypes.nodes)
    units = np.asarray(view.base)[nodes] + np.asarray(retypes.slots)
    attributes = view.of_slots(np.array([numbers[slot.attr] for slot in slots], np.int32))
    indices = view.of_slots(np.array([slot.index for slot in slots], np.int32))
    return TypePlaces(nodes, attributes[units], indices[units], list(numbers))


def apply_to_graph(protos: Any, view: GraphView, plan: EditPlan) -> None:
    """Edits the nodes of a graph in place.

    Args:
        protos: the nodes: :class:`~amp_tf.graph.serialized.NodesUnderEdit`, or the field ``node`` of a GraphDef.
        view: the graph's view.
        plan: the edits.
    """
    _retype(protos, view, plan)
    for node, position, name in sorted((*reader, cast.name) for cast in plan.casts for reader in cast.readers):
        protos[node].input[position] = name
    for cast in plan.casts:
        name = view.names[cast.src_node]
        source = f"{name}:{cast.src_port}" if cast.src_port else name
        _fill_cast(protos.add(), cast, source, view.devices[cast.src_node])


def apply_to_function(function: Any, view: GraphView, plan: EditPlan) -> None:
    """Edits a FunctionDef in place; its signature does not change.

    Args:
        function: the FunctionDef that the view was read from, or a copy of it.
        view: its view, with arguments as first and results as last nodes.
        plan: the edits.
    """
    first = len(function.signature.input_arg)
    body = list(function.node_def)
    results = list(function.signature.output_arg)
    protos = [None] * first + body + [None] * len(results)
    first_result = first + len(body)
    _retype(protos, view, plan)
    for cast in plan.casts:
        node, position = cast.readers[0]
        source = (
            function.ret[results[node - first_result].name] if node >= first_result else protos[node].input[position]
        )
        _fill_cast(function.node_def.add(), cast, source, view.devices[cast.src_node])
        result = f"{cast.name}:y:0"
        for node, position in cast.readers:
            if node >= first_result:
                function.ret[results[node - first_result].name] = result
            else:
                protos[node].input[position] = result


def _retype(protos: Sequence[Any], view: GraphView, plan: EditPlan) -> None:
    for rename in plan.renames:
        protos[rename.node].op = rename.op
        protos[rename.node].attr[rename.added_attr].type = rename.added_type
    signatures = view.signatures
    for retype in plan.retypes:
        slot = signatures[retype.node].slots[retype.slot]
        value = protos[retype.node].attr[slot.attr]
        if slot.index < 0:
            value.type = retype.data_type
        else:
            value.list.type[slot.index] = retype.data_type


def _fill_cast(node: Any, cast: NewCast, source: str, device: str) -> None:
    node.name = cast.name
    node.op = "Cast"
    node.device = device
    node.input.append(source)
    node.attr["SrcT"].type = cast.src_type
    node.attr["DstT"].type = cast.dst_type
    node.attr["Truncate"].b = False
