"""Knows gradients of variables: where they are taken, and which tensors are computed from them.

A gradient is marked where it is taken. In a graph, a tensor is computed from it if the way back
from the tensor reaches a mark: through ops that clip, scale or accumulate gradients, into functions
that are called, and out of functions that capture what they use. Only floating-point values are
followed, so what counts right predictions is no gradient, not even in meta-learning. Three kinds
of gradients are not found: those that a variable accumulated, those that a function takes as
arguments, and what eager code computes from a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

# An attribute of a graph: the names of the ops that compute gradients. Eager gradients have it too.
_MARK = "_amp_tf_gradients"


def sources_of(place: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns what gradients are taken of, from the arguments of a call.

    Args:
        place: the position of the sources among ``args``.
        args, kwargs: the arguments of ``GradientTape.gradient`` or ``tf.gradients``.
    """
    if len(args) > place:
        return args[place]
    return kwargs.get("sources", kwargs.get("xs"))


def handles(source: Any) -> Iterator[Any]:
    """Yields the handles of a variable, or of its replicas; none of other tensors.

    It may be one of Keras, too.
    """
    if isinstance(source, tf.Tensor):
        dtype = source.dtype
        if dtype == tf.resource or dtype._is_ref_dtype:
            yield source
    variable = source
    if not isinstance(source, tf.Variable):
        variable = getattr(source, "value", None)
    if not isinstance(variable, tf.Variable):
        return
    for part in getattr(variable, "values", None) or [variable]:
        if hasattr(part, "handle"):
            yield part.handle
        else:  # TF1's have none
            yield part._ref()


def mark(sources: Any, gradients: Any) -> None:
    """Marks the gradients of variables among those that were just taken of sources."""
    pairs = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=False)
    for source, gradient in pairs:
        tensor = gradient
        if isinstance(gradient, tf.IndexedSlices):
            tensor = gradient.values
        if not isinstance(tensor, tf.Tensor) or not [*handles(source)]:
            continue
        if _is_eager(tensor):
            setattr(tensor, _MARK, True)
        elif hasattr(tensor.graph, _MARK):
            getattr(tensor.graph, _MARK).add(tensor.op.name)
        else:
            setattr(tensor.graph, _MARK, {tensor.op.name})


def is_gradient(tensor: Any) -> bool:
    """Tells whether a tensor is a gradient of a variable, or is computed from one."""
    unvisited = [tensor]
    seen: set[tuple[int, str]] = set()
    while unvisited:
        value = unvisited.pop()
        if _is_eager(value):
            if hasattr(value, _MARK):
                return True
            continue
        key = (id(value.graph), value.name)
        if key in seen or not value.dtype.is_floating:
            continue
        seen.add(key)
        if value.op.name in getattr(value.graph, _MARK, ()):
            return True
        unvisited += _origins(value)
    return False


def _is_eager(tensor: Any) -> bool:
    return not hasattr(tensor, "graph")


def _origins(value: Any) -> Iterator[Any]:
    """Yields the tensors that a symbolic tensor may be computed from, one step back."""
    op = value.op
    yield from op.inputs
    for function in _called_by(op):
        if value.value_index < len(function.outputs):
            yield function.outputs[value.value_index]
    if not op.inputs:
        for outer, inner in getattr(value.graph, "captures", ()):
            if inner is value:
                yield outer


def _called_by(op: Any) -> Iterator[Any]:
    """Yields the graphs of the functions that an op calls: of a call, a condition or a loop."""
    functions = op.graph._functions
    if not functions:
        return
    for attribute in op.op_def.attr:
        if attribute.type == "func":
            function = functions.get(op.get_attr(attribute.name).name)
            if hasattr(function, "graph"):  # those of tf.compat.v1's Defun have none
                yield function.graph
