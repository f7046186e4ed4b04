"""Lets the tensors that an optimizer stores outlive the condition around its step.

A user's optimizer may store a tensor, such as the norm of its gradients, for the training step to
log. A scaled step is traced inside a condition, and nothing outside may read the tensors of a
condition's branch. So the stored tensors become results of the condition, which then replace them.
If the step is skipped, they are zero. The step's result is stored as well, until the wrapper
returns it.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from amp_tf.loss_scaling.calls import replica

#: of a condition
Branch = Callable[[], Any]

# Objects of these packages store no tensor of a user's step.
_LIBRARIES = frozenset({"builtins", "tensorflow", "keras", "tf_keras", "numpy", "amp_tf"})
_UNCOPIED = (tf.resource, tf.variant)  #: types of which there is no zero
# An attribute of an optimizer: by replica, what its step returned and nobody has taken yet.
_RESULTS = "_amp_tf_results"


def choose(predicate: Any, then: Branch, otherwise: Branch, owner: Any = None) -> Any:
    """Builds ``tf.cond``, from which tensors of ``then`` that ``owner`` stores may be read.

    They are found in the owner's attributes, in the dicts, lists, deques and tuples there, and in
    the attributes of other objects of the user's. If ``otherwise`` runs, they are zero, with size 0
    in each unknown dimension.

    Eager tensors need no such care. In a TF1 graph, fetching such a result alone would run the
    whole step, so there the tensors stay in their branch.

    Returns what the branches return: a tensor.
    """
    if owner is None or tf.executing_eagerly() or not _is_traced():
        return tf.cond(predicate, then, otherwise)
    stored: dict[int, Any] = {}  # by id
    branch: Any = None  # of then, which is traced first

    def then_with_stored() -> list[Any]:
        nonlocal branch
        result = then()
        branch = tf.compat.v1.get_default_graph()

        def note(value: Any) -> Any:
            if _is_tensor_of(value, branch):
                stored[id(value)] = value
            return value

        _change_stored(owner, note)
        return [result, *stored.values()]

    def otherwise_with_zeros() -> list[Any]:
        return [otherwise(), *(_zeros_like(value, branch) for value in stored.values())]

    result, *results = tf.cond(predicate, then_with_stored, otherwise_with_zeros)
    readable = dict(zip(stored, results, strict=True))
    _change_stored(owner, lambda value: readable.get(id(value), value))
    return result


def store_result(owner: Any, result: Any) -> None:
    """Stores what an optimizer's step returned on this replica, for :func:`take_result`.

    Counters and operations of the libraries' own steps need not be stored.
    """
    if result is not None and not isinstance(result, (tf.Variable, tf.Operation)):
        vars(owner).setdefault(_RESULTS, {})[replica()] = result


def take_result(owner: Any, default: Any) -> Any:
    """Returns what the step of this replica stored, and forgets it; else the default.

    In a TF1 graph it is always the default, because the result stays in its branch.
    """
    result = vars(owner).get(_RESULTS, {}).pop(replica(), default)
    if tf.executing_eagerly() or _is_traced():
        return result
    return default


def _is_traced() -> bool:
    return hasattr(tf.compat.v1.get_default_graph(), "outer_graph")


def _change_stored(owner: Any, change: Callable[[Any], Any]) -> None:
    """Replaces each value that an object stores by ``change(value)``."""
    seen: set[int] = set()
    waiting: list[Any] = [getattr(owner, "__dict__", {})]
    while waiting:
        container = waiting.pop()
        if id(container) in seen:
            continue
        seen.add(id(container))
        items = list(enumerate(container))
        if isinstance(container, dict):
            items = list(container.items())
        for key, value in items:
            changed = _changed(value, change)
            if changed is not value:
                container[key] = changed
            elif isinstance(value, (dict, list, collections.deque)):
                waiting.append(value)
            elif _is_of_user(value):
                waiting.append(vars(value))


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """The changed value; a tuple is made anew if one of its parts changed."""
    if not isinstance(value, tuple):
        return change(value)
    parts = [_changed(part, change) for part in value]
    if all(map(operator.is_, parts, value)):
        return value
    if hasattr(value, "_fields"):
        return value.__class__(*parts)
    return tuple(parts)  # TensorFlow may have wrapped it


def _is_of_user(value: Any) -> bool:
    """Tells whether a value is an object with attributes, of a class outside the libraries."""
    package = type(value).__module__.partition(".")[0]
    return package not in _LIBRARIES and not isinstance(value, type) and hasattr(value, "__dict__")


def _is_tensor_of(value: Any, graph: Any) -> bool:
    """Tells whether a value is a tensor of which a part was made in this graph.

    It may be composite. There is no zero for some types, which do not count.
    """
    if not tf.is_tensor(value) or isinstance(value, tf.Variable):
        return False
    is_of_graph = False
    for part in _parts_of(value):
        if part.dtype in _UNCOPIED:
            return False
        is_of_graph |= getattr(part, "graph", None) is graph  # eager tensors have none
    return is_of_graph


def _parts_of(value: Any) -> list[Any]:
    return list(tf.nest.flatten(value, expand_composites=True))


def _zeros_like(value: Any, graph: Any) -> Any:
    """Makes zeros like a tensor that was made in a graph.

    A composite tensor keeps its other parts, such as a known dense shape.
    """
    if isinstance(value, tf.Tensor):
        return _zeros(value)
    parts = []
    for part in _parts_of(value):
        if getattr(part, "graph", None) is not graph:
            parts.append(part)
            continue
        known = tf.get_static_value(part)
        if known is None:
            parts.append(_zeros(part))
        else:
            parts.append(tf.constant(known))
    return tf.nest.pack_sequence_as(value, parts, expand_composites=True)


def _zeros(tensor: Any) -> Any:
    """Zeros of a tensor's type and shape, with size 0 in each unknown dimension."""
    if tensor.shape.rank is None:
        return tf.zeros([], tensor.dtype)
    return tf.zeros([size or 0 for size in tensor.shape], tensor.dtype)
