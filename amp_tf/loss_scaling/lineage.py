"""Whether tensors of a traced graph were computed from a variable: how a loss that was scaled by hand is recognized.

The graph is walked from the tensors back to where their values come from: through functions that it calls, output by
output, and through captured values into the graphs around it. Control inputs carry no value and are not followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


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
    handles = [component.handle for component in getattr(variable, "values", None) or [variable]]
    symbolic = [tensor for tensor in tf.nest.flatten(tensors, expand_composites=True) if tf.is_tensor(tensor)]
    return any(source is handle for source in _sources(symbolic) for handle in handles)


def _sources(tensors: Iterable[Any]) -> Iterator[Any]:
    """What the values come from in the end: variable handles, constants, arguments; some of them eager tensors."""
    captured = []
    for tensor in _leaves(tensors):
        outside = {inner.name: outer for outer, inner in getattr(tensor.graph, "captures", ())}
        if tensor.name not in outside:
            yield tensor
        elif hasattr(outside[tensor.name], "numpy"):
            yield outside[tensor.name]
        else:
            captured.append(outside[tensor.name])
    if captured:
        yield from _sources(captured)


def _leaves(tensors: Iterable[Any]) -> Iterator[Any]:
    """The results of operations without inputs that the tensors, all of one graph, are computed from."""
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
    """What of its operation's inputs a tensor is computed from."""
    inputs = list(tensor.op.inputs)
    if tensor.op.type not in _CALLS:
        return inputs
    function = tensor.graph._get_function(tensor.op.get_attr("f").name)
    body = getattr(function, "graph", None)
    if body is None:  # known to the runtime alone
        return inputs
    number_of = {argument.name: number for number, argument in enumerate(body.inputs)}
    leaves = _leaves([body.outputs[tensor.value_index]])
    return [inputs[number_of[leaf.name]] for leaf in leaves if leaf.name in number_of]
