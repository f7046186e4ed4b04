"""Judges outputs: they may not be much further from float32 than those of the ideal mixed program.

The ideal mixed program computes its products in 16 bit and casts their results back at once; its
error is inherent in multiplying in 16 bit. An output's error, relative in the L2 norm over the
batches with the largest errors, is divided by the largest of three: the ideal program's error, the
roundoff of the 16-bit type, and float32's own error on inputs that differ in their last bit. Above
:data:`LIMIT`, something other than products loses accuracy. If the error over all batches is above
:data:`LOST`, or numbers are not finite, the products themselves do.

Tensors are compared by reductions: each yields a row of numbers, and no tensor leaves the graph.
A value and its truth are both divided by the largest number of the truth before they are compared,
so that no square leaves float32's range. Nonfinite numbers are counted, and left out of the sums.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from amp_tf.precision import Precision
from amp_tf.tools.comparing.flattening import GRADIENT, UPDATE, Title

LIMIT = 4.0
LOST = 0.5  #: half of the norm: one bit is right; for an update, half of the numbers do not move
#: for a variable's gradient, which behind a normalization almost cancels
_LOST = {GRADIENT: 0.9}
NO_TRUTH = 0.01  #: if float32's own error is larger, there is nothing to compare with


@dataclasses.dataclass(frozen=True)
class Output:
    """One output of the step."""

    #: ``"loss"``, ``"gradient"``, ``"result"``, or ``"update"`` (of a variable)
    kind: str
    name: str  #: its name; for a gradient or an update, the variable's
    #: relative L2 error against float32, over the eighth of the batches with the largest errors;
    #: infinite where it is not finite and float32 is
    error: float
    ideal: float  #: the ideal mixed program's error
    noise: float  #: float32's own error with inputs that differ in their last bit
    #: ``error`` over the error that is allowed; 0 where float32 itself has fewer than two correct
    #: digits
    ratio: float
    is_good: bool  #: whether it is as right as 16 bit can be, and right enough to train with

    @property
    def title(self) -> str:
        """Its name, for messages."""
        if self.kind == self.name:
            return self.name
        return f"{self.kind} {self.name}"

    @property
    def has_truth(self) -> bool:
        """Tells whether float32 itself has two correct digits of it."""
        return self.noise <= NO_TRUTH

    @property
    def is_inherent(self) -> bool:
        """Tells whether it is wrong because products are rounded: the ideal program loses it, too.

        An overflow is not inherent, because one product in float32 may fix it.
        """
        if self.is_good or self.kind == UPDATE or self.ratio > LIMIT:
            return False
        is_finite = math.isfinite(self.error) and math.isfinite(self.ideal)
        return is_finite and self.ideal > _LOST.get(self.kind, LOST)


def are_good(outputs: Iterable[Output]) -> bool:
    """Tells whether all outputs are."""
    return all(output.is_good for output in outputs)


def inherent_in(outputs: Iterable[Output]) -> tuple[str, ...]:
    """Returns the titles of the outputs that the ideal program loses, too."""
    return tuple(output.title for output in outputs if output.is_inherent)


def judge(
    titles: Sequence[Title],
    errors: Sequence[Statistics],
    ideal: Sequence[Statistics],
    noise: Sequence[Statistics],
    everywhere: Sequence[Statistics],
    precision: Precision,
) -> list[Output]:
    """Returns the verdict on each output.

    Args:
        titles: those of the outputs.
        errors: those of the program that amp_tf makes, in the batches that are furthest off.
        ideal: those of the ideal mixed program in these batches.
        noise: those of float32 with inputs that differ in their last bit.
        everywhere: those of amp_tf's program in all batches.
        precision: the 16-bit type.
    """
    outputs = []
    for number, (kind, name) in enumerate(titles):
        error = errors[number].distance
        allowed = max(roundoff(precision), ideal[number].error, noise[number].error)
        ratio = 1.0  # of an infinite limit
        if math.isfinite(allowed):
            ratio = error / allowed
        every = everywhere[number]
        # The loss in all batches, as a part of what may be lost.
        lost = every.distance / _LOST.get(kind, LOST)
        if kind == UPDATE:  # Adam's first steps are signs: they may differ, but not vanish
            lost = every.underflow / LOST
        output = Output(
            kind,
            name,
            error=error,
            ideal=ideal[number].distance,
            noise=noise[number].distance,
            ratio=ratio,
            is_good=ratio <= LIMIT and lost <= 1 and not every.nonfinite,
        )
        if not output.has_truth and not every.nonfinite:
            output = dataclasses.replace(output, ratio=0.0, is_good=True)
        outputs.append(output)
    return outputs


def roundoff(precision: Precision) -> float:
    """Returns the largest relative error of one rounding."""
    return float(2.0**-precision.significant_bits)


def has_truth(statistics: Statistics, precision: Precision) -> bool:
    """Tells whether float32 has two correct digits of a node's result, by its error in 16 bit.

    A result that cancels to nothing, such as the gradient of a key's bias in attention, is only
    rounding in float32 too. In 16 bit its error is larger by the ratio of the roundoffs; only
    cancellation makes errors that large.
    """
    times = roundoff(precision) / roundoff(Precision.FLOAT32)
    return bool(statistics.nonfinite) or statistics.error <= NO_TRUTH * times


def error_text(value: float) -> str:
    """Returns a relative error as text, in percent unless it is tiny."""
    if not math.isfinite(value):
        return "inf"
    if 0 < value < 1e-4:
        return f"{value:.0e}"
    return f"{100 * value:.2f} %"


@dataclasses.dataclass(frozen=True)
class Statistics:
    """How a value differs from its truth, over some batches."""

    size: int  #: numbers compared
    #: relative L2 error of the numbers that are finite in both; infinite where the truth is zero
    #: and the value is not
    error: float
    nonfinite: float  #: share of the numbers that are inf or nan and finite in the truth
    #: share of the numbers that are zero and, in the truth, not zero but too small for 16 bit
    underflow: float
    nonfinite_truth: float  #: share that is inf or nan in the truth
    largest: float  #: the largest magnitude in the truth

    @classmethod
    def of(cls, rows: Sequence[np.ndarray] | np.ndarray) -> Statistics:
        """Pools one row a batch, each of :func:`difference_row`."""
        table = np.asarray(rows, np.float64)
        size, truth, difference, nonfinite, tiny, bad, largest = table.T
        scales = np.square(np.where(largest > 0, largest, 1.0))
        total = float((truth * scales).sum())
        off = float((difference * scales).sum())
        error = math.inf if off else 0.0
        if total:
            error = math.sqrt(off / total)
        count = max(float(size.sum()), 1.0)
        return cls(
            size=int(size.sum()),
            error=error,
            nonfinite=float(nonfinite.sum()) / count,
            underflow=float(tiny.sum()) / count,
            nonfinite_truth=float(bad.sum()) / count,
            largest=float(largest.max()),
        )

    @property
    def distance(self) -> float:
        """The error, infinite where numbers are not finite that should be."""
        if self.nonfinite:
            return math.inf
        return self.error


def difference_row(value: Any, truth: Any, smallest: float) -> Any:
    """Returns a tensor, shape (columns,), that says how a value differs from its float32 truth.

    Args:
        value: a floating-point tensor.
        truth: a float32 tensor. If it has another count of numbers, as what passes a threshold may
            have, nothing is compared.
        smallest: the smallest positive number of the 16-bit type; half of it is rounded to zero.
    """
    import tensorflow as tf

    truth = tf.reshape(truth, [-1])
    value = tf.reshape(tf.cast(value, tf.float32), [-1])
    size = tf.where(tf.equal(tf.size(value), tf.size(truth)), tf.size(truth), 0)
    truth = truth[:size]
    value = value[:size]
    is_good = tf.math.is_finite(value)
    is_true = tf.math.is_finite(truth)
    sizes = tf.where(is_true, tf.abs(truth), 0.0)
    largest = tf.maximum(tf.reduce_max(sizes), 0.0)  # of no numbers it is -inf
    scale = tf.where(largest > 0, largest, 1.0)
    off = tf.where(is_good & is_true, value / scale - truth / scale, 0.0)
    is_tiny = tf.equal(value, 0.0) & (sizes > 0) & (sizes <= smallest / 2)

    def count(mask: Any) -> Any:
        return tf.reduce_sum(tf.cast(mask, tf.float32))

    return tf.stack(
        [
            tf.cast(size, tf.float32),
            tf.reduce_sum(tf.square(sizes / scale)),
            tf.reduce_sum(tf.square(off)),
            count(is_true & ~is_good),
            count(is_tiny),
            count(~is_true),
            largest,
        ]
    )


def rows_in(graph: Any, smallest: float) -> Callable[[Sequence[Any], Any], Any]:
    """Returns a function that adds a tensor of rows to a graph, shape (values, columns).

    It takes some values and their float32 truth, and gives a :func:`difference_row` for each. The
    rows are one call of a function of the graph, so that thousands of them are made in seconds.
    """
    import tensorflow as tf

    names: dict[tuple[Any, ...], str] = {}

    def rows(truth: Any, *values: Any) -> Any:
        return tf.stack([difference_row(value, truth, smallest) for value in values])

    def measure(values: Sequence[Any], truth: Any) -> Any:
        types = tuple(value.dtype for value in values)
        if types not in names:
            specs = [tf.TensorSpec(None, dtype) for dtype in (tf.float32, *types)]
            function = tf.function(rows, autograph=False).get_concrete_function(*specs)
            with graph.as_default():
                function.add_to_graph(graph)
            names[types] = str(function.function_def.signature.name)
        # A node whose op is the function itself costs least to make and to prepare.
        call = graph.create_op(names[types], [truth, *values], [tf.float32], name="instrument")
        return call.outputs[0]

    return measure
