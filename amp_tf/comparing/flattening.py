"""A traced step as one flat graph, as amp_tf sees it at run time: calls inlined, loops and branches lowered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from amp_tf.comparing.randomness import every_node, set_seeds
from amp_tf.comparing.steps import Step
from amp_tf.errors import GraphError
from amp_tf.rewriting.planning import CAST_SUFFIX

_COMPILED = "_XlaMustCompile"
_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable that the step reads or writes.

    Attributes:
        name: as its owner calls it.
        value: what it holds now.
        data_type: its ``DataType`` number.
        is_reference: whether it is one of TF1's, which gives itself out, and no handle.
    """

    name: str
    value: np.ndarray
    data_type: int
    is_reference: bool = False


@dataclasses.dataclass(frozen=True)
class FlatStep:
    """A step as a graph.

    Attributes:
        graph: the GraphDef.
        feeds: the placeholders of the arguments, in order.
        captures: placeholders of captured tensors, and their values.
        variables: placeholders of variables' handles, or the variables' nodes.
        results: names of the tensors that the step returns.
        effects: names of the nodes that must run too, such as updates of variables.
        is_compiled: whether parts of it are for XLA, which are run without it here.
    """

    graph: Any
    feeds: tuple[str, ...]
    captures: Mapping[str, np.ndarray]
    variables: Mapping[str, Variable]
    results: tuple[str, ...]
    effects: tuple[str, ...]
    is_compiled: bool

    @property
    def ends(self) -> tuple[str, ...]:
        """Names of the nodes that a rewrite must leave as they are."""
        nodes = (*self.feeds, *self.captures, *self.variables, *(name.partition(":")[0] for name in self.results))
        return (*nodes, *self.effects)


def flatten(step: Step, function: Any) -> FlatStep:
    """Inlines what a step calls.

    Args:
        step: the step.
        function: its concrete function.

    Raises:
        GraphError: it captures something else than variables and tensors, such as a table, or was rewritten before.
    """
    captures, variables = _read_captures(function)
    effects = tuple(operation.name for operation in function.graph.control_outputs)
    ends = [tensor.name for tensor in (*function.inputs, *function.outputs)]
    flat, is_compiled = flatten_graph(function.graph.as_graph_def(add_shapes=True), [*ends, *effects])
    count = len(step.batches[0]) + step.is_scaled
    return FlatStep(
        graph=flat,
        feeds=tuple(tensor.op.name for tensor in function.inputs[:count]),
        captures=captures,
        variables=variables,
        results=tuple(tensor.name for tensor in function.outputs),
        effects=effects,
        is_compiled=is_compiled,
    )


def flatten_graph(graph: Any, ends: list[str]) -> tuple[Any, bool]:
    """Inlines what a graph calls, and gives its random ops seeds.

    Args:
        graph: a GraphDef, which is changed.
        ends: the nodes and tensors that are wanted.

    Returns:
        The graph, and whether XLA would have compiled parts of it.

    Raises:
        GraphError: it was rewritten before.
    """
    is_compiled = _leave_xla_out(graph)
    flat = _inline(graph, ends)
    if any(node.name.endswith(CAST_SUFFIX) for node in flat.node):
        raise GraphError(
            "functions of the step are in 16 bit already: amp_tf is on, and rewrote them for XLA as they were made",
            where="compare(model_or_function)",
            fix="Compare in a process with AMP_TF_DISABLE=1",
        )
    set_seeds(flat)
    return flat, is_compiled


def _read_captures(function: Any) -> tuple[dict[str, np.ndarray], dict[str, Variable]]:
    import tensorflow as tf

    of_handle = {id(variable.handle): variable for variable in function.graph.variables}
    captures, variables = {}, {}
    for outer, inner in function.graph.captures:
        if inner.op.type == "Const":  # small ones are written into the graph
            continue
        if outer.dtype not in (tf.resource, tf.variant):
            captures[inner.op.name] = outer.numpy()
        elif id(outer) in of_handle:
            variable = of_handle[id(outer)]
            # Its own memory on a CPU: who writes a variable that is read elsewhere takes other memory.
            value = aligned(np.asarray(variable.read_value()))
            variables[inner.op.name] = Variable(variable.name.partition(":")[0], value, variable.dtype.as_datatype_enum)
        else:
            raise GraphError(
                f"the step captures {inner.op.name!r} ({outer.dtype.name}), which is neither a variable nor a tensor",
                where="compare(model_or_function)",
                fix="Pass a function without lookup tables and iterators: look up before, and feed what they give",
            )
    return captures, variables


def aligned(value: Any) -> Any:
    """The same numbers where TensorFlow can use them in place: its allocator's addresses are multiples of 64."""
    if not isinstance(value, np.ndarray) or value.dtype == object or value.ctypes.data % _ALIGNMENT == 0:
        return value
    room = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    found = room[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    found[...] = value
    return found


def _inline(graph: Any, ends: list[str]) -> Any:
    """Grappler's own function pass, alone; no public interface of TensorFlow's runs it."""
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
    from tensorflow.python.grappler import tf_optimizer

    meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    meta_graph.collection_def["train_op"].node_list.value.extend(ends)  # by which Grappler knows what is wanted
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1  # small graphs too
    options.optimizers.append("function")
    return tf_optimizer.OptimizeGraph(config, meta_graph)


def _leave_xla_out(graph: Any) -> bool:
    """Takes away what keeps functions from being inlined; whether XLA would have compiled any."""
    is_compiled = False
    for function in graph.library.function:
        is_compiled |= function.attr[_COMPILED].b if _COMPILED in function.attr else False
        for name in (_COMPILED, "_noinline", "api_implements"):
            function.attr.pop(name, None)
    for node in every_node(graph):
        node.attr.pop(_COMPILED, None)
    return is_compiled
