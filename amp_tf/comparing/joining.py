"""Joins versions of one flat step in one graph: they share what is fed, and nothing else.

Each version is a *side*: its nodes have the side's name as prefix, and its variables are its own, set to the user's
values before each batch. So no version sees the updates of another, and the user's own variables are never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amp_tf.comparing.flattening import FlatStep, Variable
from amp_tf.comparing.randomness import make_stateless

FLOAT32 = "float32"  #: the side that is right
AMP = "amp"  #: as amp_tf rewrites it
_SHARED = "input"


def join(step: FlatStep, sides: Mapping[str, Any]) -> Any:
    """The joint GraphDef.

    Args:
        step: the step.
        sides: for each side its GraphDef, a rewritten version of the step's; float32 first.
    """
    from tensorflow.core.framework import graph_pb2

    joint = graph_pb2.GraphDef(versions=step.graph.versions)
    fed = {*step.feeds, *step.captures}
    constants = {node.name: node for node in step.graph.node if node.op == "Const" and not node.input}
    for side, graph in sides.items():
        shared = {name: f"{_SHARED}/{name}" for name in fed}
        if side != FLOAT32:
            same = [node.name for node in graph.node if node.name in constants and node == constants[node.name]]
            shared.update((name, f"{FLOAT32}/{name}") for name in same)
        functions = {
            function.signature.name: f"{side}__{function.signature.name}" for function in graph.library.function
        }
        _add_functions(joint, graph, functions)
        for node in graph.node:
            if node.name in shared and (side != FLOAT32 or node.name not in fed):
                continue
            added = joint.node.add()
            added.CopyFrom(node)
            added.name = shared.get(node.name, f"{side}/{node.name}")
            added.input[:] = [_renamed(text, side, shared) for text in node.input]
            if node.name in step.variables:
                _make_variable(added, step.variables[node.name])
            _rename_in(added, side, functions)
    make_stateless(joint)
    return joint


def tensor_name(side: str, name: str, step: FlatStep) -> str:
    """The name of one of the step's tensors in the joint graph."""
    return f"{feed_name(side, name.partition(':')[0], step)}:{name.partition(':')[2] or '0'}"


def feed_name(side: str, node: str, step: FlatStep) -> str:
    """The name of one of the step's nodes in the joint graph, unless it is a constant."""
    is_shared = node in step.feeds or node in step.captures
    return f"{_SHARED if is_shared else side}/{node}"


def _renamed(text: str, side: str, shared: Mapping[str, str]) -> str:
    mark = "^" if text.startswith("^") else ""
    node, colon, port = text.removeprefix("^").partition(":")
    return f"{mark}{shared.get(node, f'{side}/{node}')}{colon}{port}"


def _make_variable(node: Any, variable: Variable) -> None:
    """Turns the placeholder of a handle into a variable; a reference variable's node is one already."""
    if variable.is_reference:
        node.attr["shared_name"].s = node.name.encode()
        return
    node.op = "VarHandleOp"
    node.attr.clear()
    node.attr["dtype"].type = variable.data_type
    for size in variable.value.shape:
        node.attr["shape"].shape.dim.add().size = size
    node.attr["shape"].shape.SetInParent()
    node.attr["shared_name"].s = node.name.encode()


def _add_functions(joint: Any, graph: Any, functions: Mapping[str, str]) -> None:
    for function in graph.library.function:
        added = joint.library.function.add()
        added.CopyFrom(function)
        added.signature.name = functions[function.signature.name]
        for node in added.node_def:
            _rename_functions(node, functions)
    for gradient in graph.library.gradient:
        joint.library.gradient.add(
            function_name=functions.get(gradient.function_name, gradient.function_name),
            gradient_func=functions.get(gradient.gradient_func, gradient.gradient_func),
        )


def _rename_in(node: Any, side: str, functions: Mapping[str, str]) -> None:
    """Renames the nodes, frames and functions that a node's attributes refer to."""
    node.attr.pop("_class", None)  # with which nodes it wants to be placed
    if "frame_name" in node.attr:
        node.attr["frame_name"].s = f"{side}/".encode() + node.attr["frame_name"].s
    _rename_functions(node, functions)


def _rename_functions(node: Any, functions: Mapping[str, str]) -> None:
    for value in node.attr.values():
        for called in (value.func, *value.list.func) if value.HasField("func") else value.list.func:
            called.name = functions.get(called.name, called.name)
    if node.op in functions:
        node.op = functions[node.op]
