"""Turns training runs of a TF1 session into a step: its graph, what was fed, and the variables' values.

A run is cut out of the session's graph. What it was fed, and what its data sources produced, is fed again, so that each
version gets the same batches. Resource and reference variables begin with the values that they had.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.comparing.flattening import FlatStep, Variable, aligned, flatten_graph
from amp_tf.comparing.steps import RESULT, Step
from amp_tf.errors import GraphError
from amp_tf.oplists.table import REFERENCE_VARIABLES, VARIABLE_HANDLES

_WHERE = "tf.compat.v1.Session.run"


@dataclasses.dataclass(frozen=True)
class SessionRuns:
    """Runs of one session that have the same fetches.

    Attributes:
        name: the name of the runs.
        graph: the session's ``tf.Graph``.
        fetches: the fetched tensors.
        targets: the operations that they ran.
        fed: the tensors that were fed, and the outputs of data sources.
        variables: the values of all variables of the graph, by the name of the variable's node.
        options: the session's RewriterConfig.
    """

    name: str
    graph: Any
    fetches: Sequence[Any]
    targets: Sequence[Any]
    fed: Sequence[Any]
    variables: Mapping[str, np.ndarray]
    options: Any

    def flat_step(self, batches: Iterable[Sequence[np.ndarray]]) -> tuple[Step, FlatStep]:
        """The step and its flat graph.

        Args:
            batches: for each run the values of ``fed``.

        Raises:
            GraphError: a variable has no value.
        """
        graph, feeds = _with_placeholders(self.graph.as_graph_def(add_shapes=True), self.fed)
        renamed = {tensor.name: f"{name}:0" for tensor, name in zip(self.fed, feeds, strict=True)}
        results = [renamed.get(tensor.name, tensor.name) for tensor in self.fetches]
        targets = [operation.name for operation in self.targets]
        graph = _cut_out(graph, {*(name.partition(":")[0] for name in (*results, *targets)), *feeds})
        variables = {
            node.name: self._variable(node)
            for node in graph.node
            if node.op in VARIABLE_HANDLES or node.op in REFERENCE_VARIABLES
        }
        ends = [*results, *(f"{name}:0" for name in feeds), *targets, *variables]
        flat, shapes, is_compiled = flatten_graph(graph, ends, self.options)
        floats = [number for number, tensor in enumerate(self.fetches) if tensor.dtype.base_dtype.is_floating]
        step = Step(
            results=tuple((RESULT, tensor.name) for tensor in self.fetches),
            floats=tuple(floats),
            batches=tuple(map(tuple, batches)),
        )
        return step, FlatStep(
            graph=flat,
            feeds=feeds,
            captures={},
            variables=variables,
            results=tuple(results),
            effects=tuple(targets),
            is_compiled=is_compiled,
            shapes=shapes,
        )

    def _variable(self, node: Any) -> Variable:
        if node.name not in self.variables:
            raise GraphError(
                f"the value of variable {node.name!r} is not known",
                where=_WHERE,
                fix="Create variables with tf.compat.v1.get_variable, which makes a node that reads them",
            )
        value = self.variables[node.name]
        return Variable(node.name, aligned(value), node.attr["dtype"].type, node.op in REFERENCE_VARIABLES)


def _with_placeholders(graph: Any, fed: Sequence[Any]) -> tuple[Any, tuple[str, ...]]:
    """The graph with a placeholder for each tensor that is fed; and the placeholders' names."""
    import tensorflow as tf

    names = {tensor.name: _placeholder_name(tensor) for tensor in fed}
    replaced = {tensor.op.name for tensor in fed if len(tensor.op.outputs) == 1}
    result = tf.compat.v1.GraphDef(versions=graph.versions, library=graph.library)
    for tensor in fed:
        node = result.node.add(name=names[tensor.name], op="Placeholder")
        node.attr["dtype"].type = tensor.dtype.base_dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
        node.attr["_output_shapes"].list.shape.add().CopyFrom(tensor.shape.as_proto())
    for node in graph.node:
        if node.name not in replaced:
            added = result.node.add()
            added.CopyFrom(node)
            added.device = ""  # it names the program's cluster, and the comparison runs here
            added.input[:] = [names.get(text if ":" in text else f"{text}:0", text) for text in node.input]
    return result, tuple(names[tensor.name] for tensor in fed)


def _placeholder_name(tensor: Any) -> str:
    """The node's name, if the node has one result; else a new name."""
    name, _, port = tensor.name.partition(":")
    return name if len(tensor.op.outputs) == 1 else f"{name}/amp_tf_fed_{port}"


def _cut_out(graph: Any, ends: set[str]) -> Any:
    """The part of the graph that some nodes need, in the graph's order."""
    import tensorflow as tf

    nodes = {node.name: node for node in graph.node}
    found: set[str] = set()
    waiting = list(ends)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [text.removeprefix("^").partition(":")[0] for text in nodes[name].input]
    result = tf.compat.v1.GraphDef(versions=graph.versions, library=graph.library)
    result.node.extend(node for node in graph.node if node.name in found)
    return result
