"""Judges outputs: they may not be much further from float32 than those of the ideal mixed program.

The ideal mixed program computes its products in 16 bit and casts their results back at once; its
error is inherent in multiplying in 16 bit. An output's error, relative in the L2 norm over the
batches with the largest errors, is divided by the largest of three: the ideal program's error, the
roundoff of the 16-bit type, and float32's own error on inputs that differ in their last bit. Above
:data:`LIMIT`, something other than products loses accuracy. If the error over all batches is above
:data:`LOST`, or numbers are not finite, the products themselves do.

Reductions that measure how tensors differ: each yields a row of numbers, and no tensor leaves the
graph.

A value and its truth are both divided by the largest number of the truth before they are compared,
so that no square leaves float32's range. Nonfinite numbers are counted, and left out of the sums.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import numpy as np

from amp_tf.precision import Precision
from amp_tf.tools.comparing.flattening import GRADIENT, LOSS, RESULT, UPDATE

Patterns = tuple[str, ...]
LIMIT = 4.0
LOST = 0.5  #: half of the norm: one bit is right; for an update, half of the numbers do not move
LOST_GRADIENT = 0.9  #: for a variable's gradient, which behind a normalization almost cancels
NO_TRUTH = 0.01  #: if float32's own error is larger, there is nothing to compare with


@dataclasses.dataclass(frozen=True)
class Output:
    """One output of the step."""

    #: ``"loss"``, ``"gradient"``, ``"result"``, or ``"update"`` (of a variable)
    kind: Annotated[str, (LOSS, GRADIENT, RESULT, UPDATE)]
    name: str  #: its name; for a gradient or an update, the variable's
    #: relative L2 error against float32, over the batches with the largest errors, one of eight;
    #: infinite where it is not finite and float32 is
    error: float
    ideal: float  #: that of the ideal mixed program
    noise: float  #: that of float32 with inputs that differ in their last bit
    #: ``error`` over the error that is allowed; 0 where float32 itself has less than two correct
    #: digits
    ratio: float
    is_good: bool  #: whether it is as right as 16 bit can be, and right enough to train with


def judge(
    names: Sequence[tuple[str, str]],
    found: Sequence[Statistics],
    ideal: Sequence[Statistics],
    noise: Sequence[Statistics],
    everywhere: Sequence[Statistics],
    precision: Precision,
) -> list[Output]:
    """The verdict on each output, of which the kind and name are given.

    ``found``, ``ideal`` and ``noise`` are what amp_tf, the ideal mixed program, and float32 with
    inputs that differ in their last bit give in the batches that are furthest off; ``everywhere``
    is what amp_tf gives in all batches.
    """
    outputs = []
    for (kind, name), one, ideally, noisy, every in zip(
        names, found, ideal, noise, everywhere, strict=True
    ):
        allowed = max(roundoff(precision), ideally.error, noisy.error)
        ratio = (
            one.distance / allowed if math.isfinite(allowed) else 1.0
        )  # nothing can be worse than the ideal
        if (
            kind == UPDATE
        ):  # Adam's first steps are signs, which may differ a lot, but must not be zero
            is_lost = every.underflow > LOST
        else:
            is_lost = every.distance > (LOST_GRADIENT if kind == GRADIENT else LOST)
        if noisy.distance > NO_TRUTH and not every.nonfinite:
            ratio, is_lost = 0.0, False
        is_good = ratio <= LIMIT and not is_lost and not every.nonfinite
        outputs.append(
            Output(kind, name, one.distance, ideally.distance, noisy.distance, ratio, is_good)
        )
    return outputs


def limit(output: Output, precision: Precision) -> float:
    """The error up to which an output is good; infinite where float32 itself is not accurate to two
    digits.
    """
    if output.noise > NO_TRUTH:
        return math.inf
    most = LIMIT * max(roundoff(precision), output.ideal, output.noise)
    return min(most, _lost(output))


def why_limit(output: Output, precision: Precision) -> str:
    """The source of an output's finite :func:`limit`, as text."""
    sources = {
        "the rounding of one number": roundoff(precision),
        "what an ideal program loses, with only matmuls and convolutions in 16 bit": output.ideal,
        "what float32 itself loses": output.noise,
    }
    source = max(sources, key=lambda name: sources[name])
    if LIMIT * sources[source] > _lost(output):
        return "beyond that, hardly a digit is right"
    return f"{LIMIT:g} times {source}"


def _lost(output: Output) -> float:
    """The error beyond which an output is wrong, whatever the ideal program's error is."""
    if output.kind == UPDATE:
        return math.inf
    return LOST_GRADIENT if output.kind == GRADIENT else LOST


def roundoff(precision: Precision) -> float:
    """The largest relative error of one rounding."""
    return float(2.0**-precision.significant_bits)


def has_truth(statistics: Statistics, precision: Precision) -> bool:
    """Whether float32 has two correct digits of a node's result, judged by its error in 16 bit.

    A result that cancels to nothing, such as the gradient of a key's bias in attention, is only
    rounding in float32 too. In 16 bit its error is larger by the ratio of the roundoffs; only
    cancellation makes errors that large.
    """
    times = roundoff(precision) / roundoff(Precision.FLOAT32)
    return bool(statistics.nonfinite) or statistics.error <= NO_TRUTH * times


def figure(value: float) -> str:
    """A relative error as text."""
    if not math.isfinite(value):
        return "inf"
    return f"{value:.2%}" if value >= 1e-4 or not value else f"{value:.0e}"


def title(kind: str, name: str) -> str:
    """The name of an output, for messages."""
    return name if kind == name else f"{kind} {name}"


LARGEST = 6  #: a column of a row, in the order of Statistics.of


@dataclasses.dataclass(frozen=True)
class Statistics:
    """How a value differs from its truth, over all batches."""

    size: int  #: numbers compared
    #: relative L2 error of the numbers that are finite in both; infinite where the truth is zero
    #: and the value is not
    error: float
    nonfinite: float  #: share of the numbers that are inf or nan and finite in the truth
    #: share of the numbers that are zero and, in the truth, not zero but too small for 16 bit
    underflow: float
    nonfinite_truth: float  #: share that is inf or nan in the truth
    largest: float  #: the largest size of a number of the truth
    smallest: float  #: the smallest one that is not zero

    @classmethod
    def of(cls, rows: Iterable[np.ndarray]) -> Statistics:
        """What the rows of all batches say together."""
        table = np.asarray(list(rows), np.float64)
        size, truth, difference, nonfinite, tiny, bad, largest, smallest = table.T
        scales = np.square(np.where(largest > 0, largest, 1.0))
        total, off = float((truth * scales).sum()), float((difference * scales).sum())
        count = max(float(size.sum()), 1.0)
        return cls(
            size=int(size.sum()),
            error=float(np.sqrt(off / total)) if total else (float("inf") if off else 0.0),
            nonfinite=float(nonfinite.sum()) / count,
            underflow=float(tiny.sum()) / count,
            nonfinite_truth=float(bad.sum()) / count,
            largest=float(largest.max()),
            smallest=float(smallest.min()),
        )

    @property
    def distance(self) -> float:
        """The error, infinite where numbers are not finite that should be."""
        return float("inf") if self.nonfinite else self.error


def difference_row(value: Any, truth: Any, smallest: float) -> Any:
    """A tensor of one row that says how a value differs from its float32 truth, in the columns of
    :meth:`Statistics.of`.

    ``smallest`` is the smallest positive number of the 16-bit type; half of it is rounded to zero.
    """
    import tensorflow as tf

    truth, value = tf.reshape(truth, [-1]), tf.reshape(tf.cast(value, tf.float32), [-1])
    is_good, is_true = tf.math.is_finite(value), tf.math.is_finite(truth)
    sizes = tf.where(is_true, tf.abs(truth), 0.0)
    largest = tf.maximum(tf.reduce_max(sizes), 0.0)  # of no numbers it is -inf
    least = tf.reduce_min(tf.where(sizes > 0, sizes, np.inf))
    scale = tf.where(largest > 0, largest, 1.0)
    off = tf.where(is_good & is_true, value / scale - truth / scale, 0.0)
    sums = [tf.reduce_sum(tf.square(numbers)) for numbers in (sizes / scale, off)]
    is_tiny = tf.equal(value, 0.0) & (sizes > 0) & (sizes <= smallest / 2)
    counts = (
        tf.reduce_sum(tf.cast(mask, tf.float32)) for mask in (is_true & ~is_good, is_tiny, ~is_true)
    )
    return tf.stack([tf.cast(tf.size(truth), tf.float32), *sums, *counts, largest, least])


def rows_in(graph: Any, smallest: float) -> Callable[[Sequence[Any], Any], Any]:
    """What makes a tensor with a :func:`difference_row` for each of some values, of which the truth
    is given.

    Its shape is (values, columns). Rows are functions of a graph: each use is one node, so that
    graphs of thousands of rows are made in seconds.
    """
    import tensorflow as tf

    names: dict[tuple[Any, ...], str] = {}

    def of(truth: Any, *values: Any) -> Any:
        return tf.stack([difference_row(value, truth, smallest) for value in values])

    def measure(values: Sequence[Any], truth: Any) -> Any:
        types = tuple(value.dtype for value in values)
        if types not in names:
            specs = [tf.TensorSpec(None, dtype) for dtype in (tf.float32, *types)]
            function = tf.function(of, autograph=False).get_concrete_function(*specs)
            with graph.as_default():
                function.add_to_graph(graph)
            names[types] = str(function.function_def.signature.name)
        # A node whose op is the function itself, which costs least to make and to prepare.
        return graph.create_op(
            names[types], [truth, *values], [tf.float32], name="instrument"
        ).outputs[0]

    return measure
