"""Judges outputs: they may not be much further from float32 than those of the ideal mixed program.

The ideal mixed program computes its products in 16 bit and casts their results back at once; its error is inherent in
multiplying in 16 bit. An output's error, relative in the L2 norm over the batches with the largest errors, is divided
by the largest of three: the ideal program's error, the roundoff of the 16-bit type, and float32's own error on inputs
that differ in their last bit. Above :data:`LIMIT`, something other than products loses accuracy. If the error over all
batches is above :data:`LOST`, or numbers are not finite, the products themselves do.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated

from amp_tf.comparing.instruments import Statistics
from amp_tf.comparing.steps import GRADIENT, LOSS, RESULT, UPDATE
from amp_tf.precision import Precision

LIMIT = 4.0
LOST = 0.5  #: half of the norm: one bit is right; for an update, half of the numbers do not move
LOST_GRADIENT = 0.9  #: for a variable's gradient, which behind a normalization almost cancels
NO_TRUTH = 0.01  #: if float32's own error is larger, there is nothing to compare with


@dataclasses.dataclass(frozen=True)
class Output:
    """One output of the step.

    Attributes:
        kind: ``"loss"``, ``"gradient"``, ``"result"``, or ``"update"`` (of a variable).
        name: its name; for a gradient or an update, the variable's.
        error: relative L2 error against float32, over the batches with the largest errors, one of eight; infinite where
            it is not finite and float32 is.
        ideal: that of the ideal mixed program.
        noise: that of float32 with inputs that differ in their last bit.
        ratio: ``error`` over the error that is allowed; 0 where float32 itself has less than two correct digits.
        is_good: whether it is as right as 16 bit can be, and right enough to train with.
    """

    kind: Annotated[str, (LOSS, GRADIENT, RESULT, UPDATE)]
    name: str
    error: float
    ideal: float
    noise: float
    ratio: float
    is_good: bool


def judge(
    names: Sequence[tuple[str, str]],
    found: Sequence[Statistics],
    ideal: Sequence[Statistics],
    noise: Sequence[Statistics],
    everywhere: Sequence[Statistics],
    precision: Precision,
) -> list[Output]:
    """The verdict on each output.

    Args:
        names: kind and name of each.
        found: as amp_tf computes them, in the batches that are furthest off.
        ideal: as the ideal mixed program does in these.
        noise: as float32 does with inputs that differ in their last bit, in these.
        everywhere: as amp_tf computes them, in all batches.
        precision: the 16-bit type.
    """
    unit = roundoff(precision)
    rows = zip(names, found, ideal, noise, everywhere, strict=True)
    return [_judge(kind, name, one, least, wander, every, unit) for (kind, name), one, least, wander, every in rows]


def limit(output: Output, precision: Precision) -> float:
    """The error up to which an output is good; infinite where float32 itself is not accurate to two digits."""
    if output.noise > NO_TRUTH:
        return math.inf
    most = LIMIT * max(roundoff(precision), output.ideal, output.noise)
    return most if output.kind == UPDATE else min(most, LOST_GRADIENT if output.kind == GRADIENT else LOST)


def roundoff(precision: Precision) -> float:
    """The largest relative error of one rounding."""
    return float(2.0**-precision.significant_bits)


def has_truth(statistics: Statistics, precision: Precision) -> bool:
    """Whether float32 has two correct digits of a node's result, judged by its error in 16 bit.

    A result that cancels to nothing, such as the gradient of a key's bias in attention, is only rounding in float32
    too. In 16 bit its error is larger by the ratio of the roundoffs; only cancellation makes errors that large.
    """
    times = roundoff(precision) / roundoff(Precision.FLOAT32)
    return bool(statistics.nonfinite) or statistics.error <= NO_TRUTH * times


def _judge(
    kind: str, name: str, found: Statistics, ideal: Statistics, noise: Statistics, everywhere: Statistics, unit: float
) -> Output:
    has_no_truth = noise.distance > NO_TRUTH
    allowed = max(unit, ideal.error, noise.error)
    ratio = found.distance / allowed if math.isfinite(allowed) else 1.0  # nothing can be worse than the ideal
    if kind == UPDATE:  # Adam's first steps are signs, which may differ a lot, but must not be zero
        is_lost = everywhere.underflow > LOST
    else:
        is_lost = everywhere.distance > (LOST_GRADIENT if kind == GRADIENT else LOST)
    if has_no_truth and not everywhere.nonfinite:
        ratio, is_lost = 0.0, False
    is_good = ratio <= LIMIT and not is_lost and not everywhere.nonfinite
    return Output(kind, name, found.distance, ideal.distance, noise.distance, ratio, is_good)


def figure(value: float) -> str:
    """A relative error as text."""
    if not math.isfinite(value):
        return "inf"
    return f"{value:.2%}" if value >= 1e-4 or not value else f"{value:.0e}"


def title(kind: str, name: str) -> str:
    """The name of an output, for messages."""
    return name if kind == name else f"{kind} {name}"
