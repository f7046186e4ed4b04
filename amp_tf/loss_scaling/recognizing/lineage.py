"""Finds the variables that tensors of a traced graph were computed from: shows whether a loss was scaled by hand.

The graph is walked from the tensors back to where their values come from: through functions that it calls, output by
output, and through captured values into the graphs around it. Control inputs carry no value and are not followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from amp_tf.oplists.table import CALLS

_FLOAT = 1  # DT_FLOAT


def depends_on(tensors: Any, variable: Any) -> bool:
    """Whether any of the tensors was computed from the variable.

    Args:
        tensors: a nest of tensors, ``tf.IndexedSlices`` and ``None``, of the graph that is being traced.
        variable: a resource variable, or a variable of several replicas.

    Returns:
        The answer; false with eager execution, which keeps no record. What a TensorFlow loop or branch returns counts
        as computed from everything that it takes.
    """
    if tf.executing_eagerly():
        return False
    return any(source is handle for source in sources(tensors_in(tensors)) for handle in handles_of(variable))


def handles_of(variable: Any) -> list[Any]:
    """The handle of a resource variable, or those of a variable of several replicas."""
    return [component.handle for component in getattr(variable, "values", None) or [variable]]


def key_of(handle: Any) -> Any:
    """A key for a handle: a tensor may have several Python objects, and each keeps its graph alive."""
    return id(handle) if hasattr(handle, "numpy") else handle.name


def depend_on_scale(tensors: Iterable[Any], trained: set[Any]) -> bool:
    """Whether tensors were computed from a scalar float variable that is not trained: a loss scale, most likely.

    Args:
        tensors: of graphs that are being traced.
        trained: the keys of the handles of trained variables.
    """
    return any(key_of(source) not in trained and is_float_scalar(source) for source in sources(tensors))


def is_float_scalar(handle: Any) -> bool:
    """Whether a tensor is the handle of a scalar float32 variable, a resource or a reference."""
    if handle.dtype != tf.resource:
        return not hasattr(handle, "numpy") and handle.op.type == "VariableV2" and handle.shape.rank == 0
    parts = list(getattr(getattr(handle, "_handle_data", None), "shape_and_type", []))
    return len(parts) == 1 and parts[0].dtype == _FLOAT and not (parts[0].shape.dim or parts[0].shape.unknown_rank)


def tensors_in(nest: Any) -> list[Any]:
    """The tensors of a graph in a nest of tensors, ``tf.IndexedSlices`` and other things."""
    flat = tf.nest.flatten(nest, expand_composites=True)
    return [tensor for tensor in flat if tf.is_tensor(tensor) and not hasattr(tensor, "numpy")]


def captures_of(graph: Any) -> dict[str, Any]:
    """The tensors outside a graph that its placeholders stand for, by the placeholders' names."""
    return {inner.name: outer for outer, inner in getattr(graph, "captures", ())}


def by_graph(tensors: Iterable[Any]) -> dict[Any, list[Any]]:
    """Groups tensors by their graph: in a branch, some may belong to the graph around it."""
    groups: dict[Any, list[Any]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.graph, []).append(tensor)
    return groups


def body_of(call: Any) -> Any:
    """The graph of the function that a tensor's operation calls; ``None`` if only the runtime knows it."""
    return getattr(call.graph._get_function(call.op.get_attr("f").name), "graph", None)


def sources(tensors: Iterable[Any]) -> Iterator[Any]:
    """The tensors that values are computed from in the end: variable handles, constants, arguments, some of them eager.

    Args:
        tensors: of graphs that are being traced.
    """
    captured = []
    for graph, group in by_graph(tensors).items():
        outside = captures_of(graph)
        for tensor in _leaves(group):
            source = outside.get(tensor.name, tensor)
            if source is tensor or hasattr(source, "numpy"):
                yield source
            else:
                captured.append(source)
    if captured:
        yield from sources(captured)


def _leaves(tensors: Iterable[Any]) -> Iterator[Any]:
    """The outputs of operations without inputs that tensors of one graph are computed from."""
    stack = list(tensors)
    seen = {tensor.name for tensor in stack}
    while stack:
        tensor = stack.pop()
        inputs = _inputs_behind(tensor)
        if not inputs:
            yield tensor
        new = {source.name: source for source in inputs if source.name not in seen}
        seen.update(new)
        stack += new.values()


def _inputs_behind(tensor: Any) -> list[Any]:
    """The inputs of its operation that a tensor is computed from."""
    inputs = list(tensor.op.inputs)
    if tensor.op.type not in CALLS:
        return inputs
    body = body_of(tensor)
    if body is None:
        return inputs
    number_of = {argument.name: number for number, argument in enumerate(body.inputs)}
    leaves = _leaves([body.outputs[tensor.value_index]])
    return [inputs[number_of[leaf.name]] for leaf in leaves if leaf.name in number_of]
