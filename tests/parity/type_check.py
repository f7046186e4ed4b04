"""Whether the types on every wire agree, worked out from the OpDefs alone, independent of amp_tf's own verification."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2, op_def_pb2

from tests.parity.op_pool import op_def


def type_errors(graph: graph_pb2.GraphDef) -> list[str]:
    """The wires whose ends have different DataTypes; calls of functions are taken as they are."""
    outputs = {node.name: output_types(node) for node in graph.node}
    errors = []
    for node in graph.node:
        wanted = input_types(node)
        data = [source for source in node.input if not source.startswith("^")]
        if wanted is None:
            continue
        if len(wanted) != len(data):
            errors.append(f"{node.name} takes {len(wanted)} inputs and has {len(data)}")
            continue
        for source, data_type in zip(data, wanted, strict=True):
            name, _, port = source.partition(":")
            types = outputs.get(name, [])
            if types is None:
                continue
            if not 0 <= int(port or 0) < len(types) or types[int(port or 0)] != data_type:
                errors.append(f"{node.name} takes DataType {data_type} and reads {source} of {types}")
    return errors


def input_types(node: node_def_pb2.NodeDef) -> list[int] | None:
    """The DataTypes of the data inputs, or ``None`` for an op that is only known as a function."""
    definition = op_def(node.op)
    return None if definition is None else _types(node, definition.input_arg)


def output_types(node: node_def_pb2.NodeDef) -> list[int] | None:
    """The DataTypes of the output ports, or ``None`` for an op that is only known as a function."""
    definition = op_def(node.op)
    return None if definition is None else _types(node, definition.output_arg)


def _types(node: node_def_pb2.NodeDef, args: Sequence[op_def_pb2.OpDef.ArgDef]) -> list[int]:
    types: list[int] = []
    for arg in args:
        if arg.type_list_attr:
            types.extend(_attribute(node, arg.type_list_attr).list.type)
        else:
            data_type = _attribute(node, arg.type_attr).type if arg.type_attr else arg.type
            count = _attribute(node, arg.number_attr).i if arg.number_attr else 1
            types.extend([data_type] * min(max(count, 0), 10_000))
    return types


def _attribute(node: node_def_pb2.NodeDef, name: str) -> attr_value_pb2.AttrValue:
    # Looking a missing key up in a protobuf map adds the key.
    return node.attr[name] if name in node.attr else attr_value_pb2.AttrValue()
