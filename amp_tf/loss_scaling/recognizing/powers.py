"""Finds the power of a variable that tensors of a traced graph are proportional to: shows whether a loop unscaled.

The power follows from the operations that a tensor was computed by::

    scaled = loss * scale                                  1     factors add their powers
    gradient = tf.gradients(scaled, weight)[0]             1     one input has a power: it is passed on
    unscaled = gradient / scale                            0     a quotient subtracts them
    squares = gradient * gradient                          2
    norm = tf.sqrt(squares)                                1
    total = gradient + scaled                              1     summands have the same
    mixed = gradient + unscaled                            None  or it is not known
    clipped = gradient / tf.maximum(norm, 1.0)             None

So a loop that multiplied its loss by the scale has divided its gradients if their power is 0, and has not if it is 1.
Where something with a power is added to, bounded by or compared with something without, they *meet*: what comes of it
depends on the scale. Decisions (booleans) are followed to find it, and have no power.

An operation that is in none of the tables is taken for linear in the one input that has a power, as the operations of a
backward pass are in the gradient that comes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from amp_tf.loss_scaling.recognizing import lineage
from amp_tf.oplists.table import (
    CALLS,
    DIVIDING,
    EXPONENTS,
    GATHERING,
    HOLDERS,
    IDENTITIES,
    MEETING,
    MULTIPLYING,
    SHAPING,
    WITHOUT_FACTOR,
)

_ANY = float("inf")  # of zeros and infinities, which are proportional to everything
_HANDLE = float("-inf")  # of the variable's handle, which is not a number


def power_of(tensors: Any, variable: Any) -> float | None:
    """The power of the variable to which all of the tensors are proportional.

    Args:
        tensors: a nest of tensors, ``tf.IndexedSlices`` and ``None``, of the graph that is being traced.
        variable: a resource variable, or a variable of several replicas.

    Returns:
        The power, 0 where nothing was computed from the variable; ``None`` where tensors differ or it is not known, as
        with eager execution.
    """
    if tf.executing_eagerly():
        return None
    return _same(_powers(tensors, variable, []))


def find_meeting(tensors: Any, variable: Any) -> str:
    """The place where a value proportional to the variable is added to, or compared with, one that is not.

    Args:
        tensors, variable: as for :func:`power_of`.

    Returns:
        The name of an operation that the tensors were computed by; empty where there is none, or it is not known.
    """
    meetings: list[str] = []
    if not tf.executing_eagerly():
        _powers(tensors, variable, meetings)
    return meetings[0] if meetings else ""


def _powers(tensors: Any, variable: Any, meetings: list[str]) -> list[float | None]:
    values = lineage.by_graph(tensor for tensor in lineage.tensors_in(tensors) if _carries(tensor))
    walks = {graph: _Walk(lineage.handles_of(variable), meetings) for graph in values}
    return [walks[graph].power(value) for graph, group in values.items() for value in group]


class _Walk:
    """The powers of the tensors of one graph, each computed once.

    Args:
        handles: of the variable.
        meetings: gets the names of operations in which something with a power meets something without.
        arguments: the powers of a function's arguments, by name.
    """

    def __init__(
        self, handles: Sequence[Any], meetings: list[str], arguments: Mapping[str, float | None] | None = None
    ) -> None:
        self._handles = handles
        self._meetings = meetings
        self._powers: dict[str, float | None] = dict(arguments or {})
        self._bodies: dict[str, _Walk] = {}
        self._captures: dict[str, Any] | None = None
        self._around: dict[Any, _Walk] = {}

    def power(self, tensor: Any) -> float | None:
        """The power of a tensor of the graph. Not recursive, because graphs are deep."""
        stack = [tensor]
        while stack:
            top = stack[-1]
            inputs = _inputs(top)
            missing = [] if top.name in self._powers else [i for i in inputs if i.name not in self._powers]
            if missing:
                stack += missing
                continue
            if top.name not in self._powers:
                self._powers[top.name] = self._combine(top, [self._powers[i.name] for i in inputs])
            stack.pop()
        return self._powers[tensor.name]

    def _combine(self, tensor: Any, powers: list[float | None]) -> float | None:
        operation = tensor.op.type
        if not powers:
            return self._leaf(tensor)
        if operation in CALLS:
            return self._call(tensor, powers)
        powers = [power for source, power in zip(_inputs(tensor), powers, strict=True) if source.dtype != tf.bool]
        if not powers:  # computed from booleans only
            return 0.0
        if operation == "ReadVariableOp":
            return 1.0 if powers == [_HANDLE] else 0.0
        if operation == "Identity":  # of a handle, too
            return powers[0]
        if _HANDLE in powers or None in powers:
            return None
        known = [power for power in powers if power is not None]
        if operation in MEETING and not {0.0, _ANY}.issuperset(known):
            # What a variable holds may be scaled as well: a sum of gradients of earlier steps.
            numbers = (i for i in _inputs(tensor) if i.dtype != tf.bool)
            sources = (i.op.type for i, power in zip(numbers, known, strict=True) if power == 0.0)
            if any(source != "ReadVariableOp" for source in sources):
                self._meetings.append(tensor.op.name)
        return known[tensor.value_index] if operation in IDENTITIES else _rule(operation, known)

    def _leaf(self, tensor: Any) -> float | None:
        if any(tensor is handle for handle in self._handles):
            return _HANDLE
        if tensor.op.type == "Merge":  # of a loop in TF1, where it is a part of a ring
            return None
        if tensor.op.type == "ZerosLike" or (tensor.op.type == "Const" and _is_kept(tensor)):
            return _ANY
        if self._captures is None:
            self._captures = lineage.captures_of(tensor.graph)
        outside = self._captures.get(tensor.name)
        if outside is None:
            return 0.0
        if hasattr(outside, "numpy"):
            return _HANDLE if any(outside is handle for handle in self._handles) else 0.0
        return self._around.setdefault(outside.graph, _Walk(self._handles, self._meetings)).power(outside)

    def _call(self, tensor: Any, powers: list[float | None]) -> float | None:
        body = lineage.body_of(tensor)
        if body is None:
            return None if _HANDLE in powers or None in powers else _rule("While", [p for p in powers if p is not None])
        if tensor.op.name not in self._bodies:
            carried = [number for number, source in enumerate(tensor.op.inputs) if _carries(source)]
            arguments = {body.inputs[number].name: p for number, p in zip(carried, powers, strict=True)}
            self._bodies[tensor.op.name] = _Walk(self._handles, self._meetings, arguments)
        return self._bodies[tensor.op.name].power(body.outputs[tensor.value_index])


def _rule(operation: str, powers: list[float]) -> float | None:
    """The power of an operation's result, given those of its inputs."""
    if operation in GATHERING:
        return _same(powers, zeros=_ANY)
    if operation in MULTIPLYING or operation in DIVIDING:
        if powers[0] == _ANY or (operation in MULTIPLYING and _ANY in powers):
            return _ANY
        sign = 1.0 if operation in MULTIPLYING else -1.0
        return None if _ANY in powers else powers[0] + sign * sum(powers[1:])
    if operation in SHAPING:
        return powers[0]
    if operation in EXPONENTS:
        return 0.0 if powers[0] == _ANY else EXPONENTS[operation] * powers[0]
    some = [power for power in powers if power not in (0.0, _ANY)]
    if len(some) > 1 and not operation.startswith(HOLDERS):
        return None
    return _same(some)


def _same(powers: Sequence[float | None], zeros: float = 0.0) -> float | None:
    """The power that all have; ``None`` if they differ, ``zeros`` if none has any."""
    distinct = {power for power in powers if power != _ANY}
    if not distinct:
        return zeros
    return distinct.pop() if len(distinct) == 1 else None


def _inputs(tensor: Any) -> list[Any]:
    """The inputs that can carry a value of the variable, or depend on one by a decision."""
    if tensor.op.type in WITHOUT_FACTOR:
        return []
    return [source for source in tensor.op.inputs if _carries(source)]


def _carries(tensor: Any) -> bool:
    dtype = tensor.dtype
    return bool(dtype.is_floating or dtype.is_complex or dtype in (tf.resource, tf.variant, tf.bool))


def _is_kept(tensor: Any) -> bool:
    """Whether a constant stays the same under any factor: it is zero or infinite."""
    value = tf.get_static_value(tensor)
    return value is not None and bool((value == value / 2).all())
