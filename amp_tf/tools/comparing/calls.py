"""Keeps the calls of a function, which become batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from amp_tf.errors import GraphError

Function = Callable[..., Any]
Patch = tuple[Any, str, Function]  #: the owner of what is patched, its name, and ours
Call = tuple[tuple[Any, ...], dict[str, Any]]  #: positional and named arguments


@dataclasses.dataclass
class Calls:
    """A function and its first calls, with copies of their tensors."""

    name: str  #: for people
    function: Function
    jit_compile: Any  #: whether XLA compiles it, as TensorFlow's arguments of this name say
    most: int  #: calls that are kept
    run_eagerly: bool = False  #: whether it is a step of a Keras model that runs eagerly
    kept: list[Call] = dataclasses.field(default_factory=list)

    def keep(self, *args: Any, **kwargs: Any) -> None:
        """Keeps a call unless there are enough.

        Tensors are copied, because the program may overwrite them afterwards.
        """
        import tensorflow as tf

        if len(self.kept) < self.most:
            self.kept.append(tf.nest.map_structure(_copied, (args, kwargs)))

    @property
    def alike(self) -> list[Call]:
        """Returns the calls that differ from the first one in tensors alone.

        Other arguments, such as ``training=True`` and variables, are the same in all of them.
        """
        import tensorflow as tf

        first = tf.nest.flatten(self.kept[0])
        found = []
        for call in self.kept:
            leaves = tf.nest.flatten(call)
            if len(leaves) == len(first) and all(map(_are_alike, leaves, first)):
                found.append(call)
        return found


def _copied(leaf: Any) -> Any:
    """Returns a tensor as an array of its own; variables and other values as they are.

    Raises:
        GraphError: the tensor is not dense.
    """
    import tensorflow as tf

    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        raise GraphError(
            f"an argument is a {type(leaf).__name__}, and only dense tensors can be fed",
            where="tf.function",
            fix="Pass its parts, such as its values, and put it together inside",
        )
    if hasattr(leaf, "assign"):
        return leaf
    if hasattr(leaf, "numpy"):
        return np.array(leaf.numpy())
    if isinstance(leaf, (np.ndarray, np.generic)):
        return np.array(leaf)
    return leaf


def _are_alike(one: Any, other: Any) -> bool:
    """Tells whether two arguments are equal, or both are tensors."""
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return type(one) is type(other) and not hasattr(one, "assign") and bool(one == other)


class Repeated:
    """Stands for an iterator, also in a trace.

    It returns its one element at each request, and a loop over it has one round.
    """

    def __init__(self, element: Any) -> None:
        self._element = element

    def __iter__(self) -> Iterator[Any]:
        return iter((self._element,))

    def __next__(self) -> Any:
        return self._element

    get_next = __next__

    def get_next_as_optional(self) -> Any:
        """Returns the element as an Optional, which is what Keras asks for in a loop."""
        import tensorflow as tf

        return tf.experimental.Optional.from_value(self._element)
