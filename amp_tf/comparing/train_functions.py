"""What Keras 3 and tf_keras have in common where they train: the train function, and its batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def owner_of(model: type) -> Any:
    """The class that has the library's own ``make_train_function`` and ``train_step``."""
    return next(base for base in model.__mro__ if "make_train_function" in vars(base))


def steps_a_call(model: Any) -> int:
    """How many batches one call of the train function takes."""
    count = getattr(model, "steps_per_execution", None) or getattr(model, "_steps_per_execution", None)
    return 1 if count is None else int(count.numpy() if hasattr(count, "numpy") else count)


def without_optionals(batch: Any) -> Any:
    """A batch with ``None`` for the optionals by which Keras says that."""
    import tensorflow as tf

    return tf.nest.map_structure(lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch)


def is_labelled(batch: Any) -> bool:
    """Whether a batch is (x, y) or (x, y, sample_weight)."""
    return isinstance(batch, tuple) and len(batch) in (2, 3) and batch[0] is not None and batch[1] is not None


def iterate(batches: Sequence[Any]) -> Any:
    """An iterator over some batches."""
    import tensorflow as tf

    dataset: Any = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
    return iter(dataset)
