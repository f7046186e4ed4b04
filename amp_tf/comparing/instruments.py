"""Reductions that compare tensors inside the graph: a row of numbers leaves it for each, and no tensor.

A value is compared with its truth after both are divided by the largest number of the truth, so that no square leaves
float32's range. What is not finite is counted, and left out of the sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_COLUMNS = 10  #: what one row holds, in the order of :class:`Statistics`


@dataclasses.dataclass(frozen=True)
class Statistics:
    """How a value differs from its truth, over all batches.

    Attributes:
        size: numbers compared.
        error: relative L2 error of what is finite in both; infinite where the truth is zero and the value is not.
        nonfinite: share of the numbers that are inf or nan and finite in the truth.
        lost: share of the numbers that are zero and not in the truth.
        underflow: share of the numbers that are zero and, in the truth, not zero but too small for 16 bit.
        nonfinite_truth: share that is inf or nan in the truth.
        largest: the largest size of a number of the truth.
        smallest: the smallest one that is not zero.
        largest_value: the largest finite size of a number of the value.
    """

    size: int
    error: float
    nonfinite: float
    lost: float
    underflow: float
    nonfinite_truth: float
    largest: float
    smallest: float
    largest_value: float

    @classmethod
    def of(cls, rows: Iterable[np.ndarray]) -> Statistics:
        """What the rows of all batches say together."""
        table = np.asarray(list(rows), np.float64)
        size, truth, difference, nonfinite, zeros, tiny, bad, largest, smallest, value = table.T
        scales = np.square(np.where(largest > 0, largest, 1.0))
        total, off = float((truth * scales).sum()), float((difference * scales).sum())
        count = max(float(size.sum()), 1.0)
        return cls(
            size=int(size.sum()),
            error=float(np.sqrt(off / total)) if total else (float("inf") if off else 0.0),
            nonfinite=float(nonfinite.sum()) / count,
            lost=float(zeros.sum()) / count,
            underflow=float(tiny.sum()) / count,
            nonfinite_truth=float(bad.sum()) / count,
            largest=float(largest.max()),
            smallest=float(smallest.min()),
            largest_value=float(value.max()),
        )

    @property
    def distance(self) -> float:
        """The error, infinite where numbers are not finite that should be."""
        return float("inf") if self.nonfinite else self.error


def measure(value: Any, truth: Any, smallest: float) -> Any:
    """A tensor of one row that says how a value differs from its truth, to be built in the graph.

    Args:
        value: any floating-point tensor.
        truth: another of the same shape.
        smallest: the smallest positive number of the 16-bit type; half of it is rounded to zero.
    """
    import tensorflow as tf

    value, truth = (tf.reshape(tf.cast(tensor, tf.float32), [-1]) for tensor in (value, truth))
    zero = tf.zeros_like(truth)
    is_good, is_true = tf.math.is_finite(value), tf.math.is_finite(truth)
    both = tf.logical_and(is_good, is_true)
    sizes = tf.where(is_true, tf.abs(truth), zero)
    largest = tf.reduce_max(tf.concat([sizes, [0.0]], 0))
    scale = tf.where(largest > 0, largest, 1.0)
    difference = tf.where(both, value / scale - truth / scale, zero)
    is_lost = tf.logical_and(tf.equal(value, 0.0), sizes > 0)
    row = [
        tf.cast(tf.size(truth), tf.float32),
        tf.reduce_sum(tf.square(sizes / scale)),
        tf.reduce_sum(tf.square(difference)),
        _count(tf.logical_and(is_true, tf.logical_not(is_good))),
        _count(is_lost),
        _count(tf.logical_and(is_lost, sizes <= smallest / 2)),
        _count(tf.logical_not(is_true)),
        largest,
        tf.reduce_min(tf.concat([tf.where(sizes > 0, sizes, np.inf), [np.inf]], 0)),
        tf.reduce_max(tf.concat([tf.where(is_good, tf.abs(value), zero), [0.0]], 0)),
    ]
    return tf.stack(row)


def stack(rows: Sequence[Any]) -> Any:
    """All rows as one tensor, shape (rows, columns)."""
    import tensorflow as tf

    return tf.stack(rows) if rows else tf.zeros([0, _COLUMNS])


def _count(mask: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_sum(tf.cast(mask, tf.float32))
