"""Turns calls of a function into batches: tensors are fed, other arguments are those of the first call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Call = tuple[tuple[Any, ...], dict[str, Any]]  #: positional and named arguments


def as_function(
    name: str, function: Callable[..., Any], calls: Sequence[Call], *, jit_compile: Any = None
) -> tuple[Callable[..., Any], list[Any]]:
    """A function that takes tensors only, and the tensors of each call.

    Args:
        name: the name for the function.
        function: what was called.
        calls: positional and named arguments, nests of tensors and other values, such as ``training=True``. Those
            that differ from the first one in something else than tensors are left out.
        jit_compile: whether XLA compiles it in the program.
    """
    import tensorflow as tf

    def parts(call: Call) -> tuple[list[Any], tuple[Any, ...]]:
        leaves = tf.nest.flatten(call)
        fed = [leaf for leaf in leaves if _is_fed(leaf)]
        return fed, tuple(None if _is_fed(leaf) else leaf for leaf in leaves)

    fixed = parts(calls[0])[1]
    is_fed = [_is_fed(leaf) for leaf in tf.nest.flatten(calls[0])]

    def call_with(*tensors: Any) -> Any:
        given = iter(tensors)
        leaves = [next(given) if fed else leaf for fed, leaf in zip(is_fed, fixed, strict=True)]
        arguments, named = tf.nest.pack_sequence_as(calls[0], leaves)
        return function(*arguments, **named)

    call_with.__name__ = name
    call_with.jit_compile = jit_compile  # type: ignore[attr-defined]
    alike = [fed for fed, rest in map(parts, calls) if len(fed) == sum(is_fed) and _are_same(rest, fixed)]
    return call_with, [tuple(map(_copy, fed)) for fed in alike]


def kept(call: Call) -> Call:
    """The call with copies of its tensors, because the program may overwrite them afterwards."""
    import tensorflow as tf

    args, kwargs = tf.nest.map_structure(lambda leaf: _copy(leaf) if _is_fed(leaf) else leaf, call)
    return args, kwargs


def _is_fed(leaf: Any) -> bool:
    is_tensor = hasattr(leaf, "numpy") and not hasattr(leaf, "assign")  # variables are passed on as they are
    return is_tensor or isinstance(leaf, (np.ndarray, np.generic))


def _copy(leaf: Any) -> np.ndarray:
    return np.array(leaf.numpy() if hasattr(leaf, "numpy") else leaf)


def _are_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(a is b or _are_equal(a, b) for a, b in pairs)


def _are_equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and not hasattr(one, "assign") and bool(one == other)
