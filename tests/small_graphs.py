"""Graphs written as text, in the form that :mod:`tests.graph_text` prints.

    x = Placeholder()
    m = MatMul(x, x) transpose_b=true @/device:CPU:0 ^x

Attributes that a line leaves out get TensorFlow's default; a type attribute without a default is
float32, and a count is the number of inputs. A constant is ``value=float32[4, 4]``, full of 0.25,
or ``value=int32[2]*4``, full of 4. A shape is ``[2, ?]``, or ``?`` where its rank is not known.
"""

import re

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.framework import op_def_registry

_LINE = re.compile(r"^(\S+) = (\w+)\((.*?)\)(?: (.*))?$")
_PART = re.compile(r"@\S+|\^\S+|\w+=(?:\w*\[[^\]]*\]\S*|'[^']*'|\S+)")
_HEAD = re.compile(r"^function (\w+)\((.*?)\) -> \((.*?)\)$")
_TENSOR = re.compile(r"^(\w+)\[(.*?)\](?:\*(\S+))?$")


def graph(text, *functions):
    """A GraphDef with the nodes of the text and a library of the functions."""
    made = graph_pb2.GraphDef(node=[node(line) for line in _lines(text)])
    made.library.function.extend(functions)
    made.versions.producer = tf.version.GRAPH_DEF_VERSION
    return made


def all_nodes(graph):
    """The nodes of a graph and of its functions."""
    nodes = list(graph.node)
    for each in graph.library.function:
        nodes += each.node_def
    return nodes


def function(text):
    """A FunctionDef: a head ``function f(x: float32) -> (y: float32)``, its nodes, and ``return y =
    m:product:0``.
    """
    head, *body = _lines(text)
    name, arguments, results = _HEAD.match(head).groups()
    made = function_pb2.FunctionDef()
    made.signature.name = name
    for side, args in ((made.signature.input_arg, arguments), (made.signature.output_arg, results)):
        for arg in filter(None, args.split(", ")):
            arg_name, _, type_name = arg.partition(": ")
            side.add(name=arg_name, type=_type(type_name))
    for line in body:
        if line.startswith("return "):
            result, _, tensor = line.removeprefix("return ").partition(" = ")
            made.ret[result] = tensor
        else:
            made.node_def.append(node(line))
    return made


def node(line):
    """The NodeDef of one line."""
    name, op, inputs, rest = _LINE.match(line).groups()
    made = node_def_pb2.NodeDef(name=name, op=op)
    made.input.extend(filter(None, inputs.split(", ")))
    data_count = len(made.input)
    op_def = op_def_registry.get(op)
    kinds = {attr.name: attr.type for attr in op_def.attr} if op_def else {}
    for part in _PART.findall(rest or ""):
        if part.startswith("@"):
            made.device = part[1:]
        elif part.startswith("^"):
            made.input.append(part)
        else:
            key, _, value = part.partition("=")
            made.attr[key].CopyFrom(_value(kinds.get(key, ""), value))
    for attr in op_def.attr if op_def else ():
        if attr.name in made.attr or attr.HasField("default_value"):
            continue
        if attr.type == "type":
            made.attr[attr.name].type = _type("float32")
        elif attr.type == "int":
            made.attr[attr.name].i = data_count
    return made


def types_of(graph_def, name):
    """The type attributes of a node, as names."""
    found = next(node for node in graph_def.node if node.name == name)
    return {
        key: tf.as_dtype(value.type).name for key, value in sorted(found.attr.items()) if value.type
    }


def arg_types(node, arg):
    """The DataTypes of the ports of one argument of a node."""
    if arg.type_list_attr:
        return list(_attribute(node, arg.type_list_attr).list.type)
    count = 1
    if arg.number_attr:
        count = min(max(_attribute(node, arg.number_attr).i, 0), 10_000)
    data_type = arg.type
    if arg.type_attr:
        data_type = _attribute(node, arg.type_attr).type
    return [data_type] * count


def _attribute(node, name):
    # Looking a missing key up in a protobuf map adds the key.
    if name in node.attr:
        return node.attr[name]
    return attr_value_pb2.AttrValue()


def run(
    graph_def,
    fetch,
    feeds=None,
    times=1,
):
    """The values of nodes in the last of some runs, computed by the graph as it is: no Grappler
    pass touches it.

    A node that is called ``init`` is run before.
    """
    config = config_pb2.ConfigProto(operation_timeout_in_ms=60_000)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=imported, config=config) as session:
            if any(node.name == "init" for node in graph_def.node):
                session.run("init")
            return [session.run([f"{name}:0" for name in fetch], feeds) for _ in range(times)][-1]


def _lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def _type(name):
    return int(tf.as_dtype(name).as_datatype_enum)


def _value(kind, text):
    """An AttrValue; for an attribute that no op definition knows, the kind is guessed from the
    text.
    """
    made = type(node_def_pb2.NodeDef().attr["any"])()
    if kind == "type":
        made.type = _type(text)
    elif kind == "list(type)":
        made.list.type.extend(_type(name) for name in _entries(text))
    elif kind == "shape" and text == "?":
        made.shape.unknown_rank = True
    elif kind == "shape":
        made.shape.CopyFrom(
            tf.TensorShape([None if d == "?" else int(d) for d in _entries(text)]).as_proto()
        )
    elif kind == "tensor":
        found = _TENSOR.match(text)
        assert found, (
            f"{text!r} is no constant: write float32[4, 4], int32[2]*4 or, for one number, "
            "int32[]*4"
        )
        type_name, dims, fill = found.groups()
        shape = [int(dim) for dim in filter(None, dims.split(", "))]
        values = np.full(shape, float(fill or 0.25), tf.as_dtype(type_name).as_numpy_dtype)
        made.tensor.CopyFrom(tf.make_tensor_proto(values))
    elif kind == "func":
        made.func.name = text.removesuffix("()")
    elif kind == "list(shape)":
        made.list.SetInParent()  # an empty list is all that the tests need
    elif kind == "list(int)":
        made.list.i.extend(map(int, _entries(text)))
    elif kind == "list(string)":
        made.list.s.extend(entry.strip("'").encode() for entry in _entries(text))
    elif kind == "bool" or text in ("true", "false"):
        made.b = text == "true"
    elif kind == "float":
        made.f = float(text)
    elif kind == "int" or text.isdecimal():
        made.i = int(text)
    else:
        made.s = text.strip("'").encode()
    return made


def _entries(text):
    return [entry for entry in text.strip("[]").split(", ") if entry]
