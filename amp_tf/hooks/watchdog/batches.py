"""A batch of a training: as an iterator that has it alone, in the parts of replicas, and what of it is not finite."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)  #: of which a traced function takes a batch itself
_NAMES = ("x", "y", "sample weight")


class Given:
    """Stands for an iterator over a dataset, inside a trace: it has one batch.

    Args:
        batch: the batch, as tensors of the function that is traced.
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[Any]:
        return iter((self._batch,))

    def __next__(self) -> Any:
        return self._batch

    get_next = __next__

    def get_next_as_optional(self) -> Any:
        """The batch as an Optional, which is what Keras asks for in a loop."""
        return tf.experimental.Optional.from_value(self._batch)


def once_more(batch: Any, source: Any) -> Callable[[], Any]:
    """Makes what a step takes to get a batch again: an iterator like its own, for which it is not traced again.

    Args:
        batch: the batch.
        source: where it came from; of what is no plain iterator the batch itself is given.
    """
    if not isinstance(source, tf.data.Iterator):
        return lambda: batch
    dataset = tf.data.Dataset.from_generator(lambda: itertools.repeat(batch), output_signature=source.element_spec)
    return lambda: iter(dataset)


def parts_of(batch: Any) -> list[Any]:
    """The parts of a batch that the replicas of this process get; parts without examples are left out."""

    def part(number: int) -> Any:
        def of(leaf: Any) -> Any:
            return leaf.values[number] if isinstance(leaf, tf.distribute.DistributedValues) else leaf

        return tf.nest.map_structure(of, batch)

    leaves = tf.nest.flatten(batch)
    count = max((len(leaf.values) for leaf in leaves if isinstance(leaf, tf.distribute.DistributedValues)), default=1)
    found = [part(number) for number in range(count)]
    return [one for one in found if not any(_is_empty(leaf) for leaf in tf.nest.flatten(one))] or found[:1]


def find_nonfinite(parts: Sequence[Any]) -> str:
    """Which of a batch's data hold nan or inf, such as ``"x and y"``; empty where none do."""
    found = []
    for part in parts:
        places = part if isinstance(part, (tuple, list)) else (part,)
        named = zip(_NAMES, places, strict=False)
        found += [name for name, place in named if not all(map(_is_finite, tf.nest.flatten(place)))]
    return " and ".join(dict.fromkeys(found))


def _is_empty(leaf: Any) -> bool:
    shape: Any = getattr(leaf, "shape", ())
    return len(shape) > 0 and shape[0] == 0


def _is_finite(leaf: Any) -> bool:
    value = leaf.numpy() if hasattr(leaf, "numpy") else leaf
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())
