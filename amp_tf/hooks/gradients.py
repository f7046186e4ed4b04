"""Knows gradients of variables: where they are taken, and which tensors are computed from them.

A gradient is marked where it is taken. In a graph, a tensor is computed from it if the way back
from the tensor reaches a mark: through ops that clip, scale or accumulate gradients, into functions
that are called or vectorized, and out of functions that capture what they use. Only floating-point
values are followed, so what counts right predictions is no gradient, not even in meta-learning.
Three kinds of gradients are not found: those that a variable accumulated, those that a function
takes as arguments, and what eager code computes from a gradient.

A graph in which gradients were taken before it was watched, or in another program, is told by its
ops, once: at the next gradient, or when somebody asks. The ops that run tell whether variables are
trained. A step that scales its loss, in any library, asks whether gradients are finite.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from amp_tf.hooks import internals
from amp_tf.hooks.patches import Patches
from amp_tf.loss_scaling.calls import places
from amp_tf.loss_scaling.finite import values_of
from amp_tf.oplists.table import HARMLESS, Trait

#: Ops with which a scaled step finds gradients that overflowed.
_FINITE_TESTS = Trait("IsFinite")
# An attribute of a tensor: whether it is a gradient of a variable; none if that is not known.
_MARK = "_amp_tf_is_gradient"
# An attribute of a graph: whether it had gradients when it was looked at first.
_HAD_GRADIENTS = "_amp_tf_had_gradients"
# An attribute of a graph: ops that were run, each with whether it trains unscaled.
_JUDGED = "_amp_tf_is_judged"
#: TensorFlow's scopes of what computes gradients, by a tape and by ``tf.gradients``
_SCOPES = re.compile(r"(^|/)(gradient_tape|gradients(_\d+)?)/")


def watch(patches: Patches, listen: Callable[[Any, Any], None]) -> None:
    """Calls ``listen(sources, gradients)`` from now on, whenever gradients were taken.

    Idempotent.
    """
    # The number is the position of the sources among the arguments.
    internals.GRADIENTS_BY_TAPE.surround(patches, functools.partial(_take, listen, 2))
    internals.GRADIENTS_BY_GRAPH.surround(patches, functools.partial(_take, listen, 1))


def were_taken_before(graph: Any) -> bool:
    """Tells whether gradients were taken in a graph before anything watched, and marks them."""
    if not hasattr(graph, _HAD_GRADIENTS):
        backward = list(filter(_is_backward, _run_by(graph.get_operations())))
        for op in backward:
            for tensor in op.outputs:
                setattr(tensor, _MARK, True)
        setattr(graph, _HAD_GRADIENTS, bool(backward))
    had: bool = getattr(graph, _HAD_GRADIENTS)
    return had


def train_unscaled(graph: Any, ops: Callable[[], Iterable[Any]]) -> bool:
    """Tells whether some ops, once run, train variables by gradients of a loss that is not scaled.

    Only gradients count that were taken before anything watched. Each op is judged once.
    """
    if not were_taken_before(graph):
        return False
    judged = getattr(graph, _JUDGED, {})
    asked = list(ops())
    new = [op for op in asked if op not in judged]
    run = _run_by(new)
    is_scaled = any(op.type in _FINITE_TESTS for op in run)
    judged |= dict.fromkeys(new, not is_scaled and any(map(_trains, run)))
    setattr(graph, _JUDGED, judged)
    return any(judged[op] for op in asked)


def _run_by(ops: Iterable[Any]) -> list[Any]:
    """Returns the ops that run with some ops, those of functions included.

    Functions whose gradients were watched are left out.
    """
    found = dict.fromkeys(ops)
    unvisited = list(found)
    while unvisited:
        op = unvisited.pop()
        needed = [tensor.op for tensor in op.inputs]
        needed += op.control_inputs
        for graph in _called_by(op):
            if getattr(graph, _HAD_GRADIENTS, True):
                needed += graph.get_operations()
        for other in needed:
            if other not in found:
                found[other] = None
                unvisited.append(other)
    return list(found)


def _trains(op: Any) -> bool:
    """Tells whether an op writes a variable by a gradient."""
    if op.type in HARMLESS or not any(map(_is_handle, op.inputs)) or [*_called_by(op)]:
        return False
    return any(is_gradient(tensor) for tensor in op.inputs if not _is_handle(tensor))


def _is_backward(op: Any) -> bool:
    """Tells whether an op belongs to a gradient, by ``tf.gradients`` or by a tape."""
    return getattr(op, "_original_op", None) is not None or bool(_SCOPES.search(op.name))


def _take(listen: Callable[[Any, Any], None], place: int, call: Any) -> Any:
    if not tf.executing_eagerly():
        for graph in places():
            were_taken_before(graph)
    gradients = call()
    sources = call.keywords.get("sources", call.keywords.get("xs"))
    if len(call.args) > place:
        sources = call.args[place]
    listen(sources, gradients)
    return gradients


def handles(source: Any) -> Iterator[Any]:
    """Yields the handles of a variable, or of its replicas; none of other tensors.

    It may be one of Keras, too.
    """
    if isinstance(source, tf.Tensor) and _is_handle(source):
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


def _is_handle(tensor: Any) -> bool:
    return bool(tensor.dtype == tf.resource or tensor.dtype._is_ref_dtype)


def mark(sources: Any, gradients: Any) -> None:
    """Marks the gradients of variables among those that were just taken of sources."""
    pairs = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=False)
    for source, gradient in pairs:
        tensor = values_of(gradient)
        if isinstance(tensor, tf.Tensor) and [*handles(source)]:
            setattr(tensor, _MARK, True)


def is_gradient(tensor: Any) -> bool:
    """Tells whether a tensor is a gradient of a variable, or is computed from one.

    Each tensor of a graph is visited once: those that are computed from none are marked, too.
    """
    unvisited = [tensor]
    seen: dict[int, Any] = {}
    while unvisited:
        value = unvisited.pop()
        if getattr(value, _MARK, False):
            return True
        is_eager = not hasattr(value, "graph")
        if is_eager or hasattr(value, _MARK) or id(value) in seen or not value.dtype.is_floating:
            continue
        seen[id(value)] = value
        unvisited += _origins(value)
    for value in seen.values():
        setattr(value, _MARK, False)
    return False


def _origins(value: Any) -> Iterator[Any]:
    """Yields the tensors that a symbolic tensor may be computed from, one step back."""
    op = value.op
    yield from op.inputs
    original = getattr(op, "_original_op", None)
    if original is not None:  # of what is vectorized; of tf.gradients it is the forward op
        yield from original.outputs
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
        if attribute.type not in ("func", "list(func)"):
            continue
        for called in tf.nest.flatten(op.get_attr(attribute.name)):
            function = functions.get(called.name)
            if hasattr(function, "graph"):  # those of tf.compat.v1's Defun have none
                yield function.graph
