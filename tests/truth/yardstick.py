"""A 16-bit result may be not much further from float32 than the ideal mixed program's.

The ideal mixed program computes its products in 16 bit and casts their results back at once. Its
loss is inherent in multiplying in 16 bit, and any loss beyond it comes from the choice of what else
became 16 bit. So a result is judged by a ratio, its error over the ideal program's, and a ratio
above :data:`LIMIT` is a defect. A product that a rule keeps in float32 is float32 in the ideal
program, too: so each new rule makes the yardstick stricter, never looser.

Errors are relative, in the L2 norm, over all draws of the inputs together: a single number is near
the truth by luck, eight of them are not. The ideal error has a floor, because a value may be
rounded to 16 bit, once, where the ideal program happens to be exact; and no less than float32
itself varies when its inputs change by one unit in the last place: where it varies by more than
:data:`NO_TRUTH`, as the gradient of a bias in front of batch normalization, which is zero but for
rounding, anything finite is good. Numbers that a user reads (losses, metrics) have no right to that
rounding: their floor is lower.
"""

from __future__ import annotations

import dataclasses

import numpy as np

LIMIT = 4.0  # a ratio above this is a defect, or a named limit
# where float32 varies by more, it keeps no two digits, and there is nothing to compare with
NO_TRUTH = 0.01
READ_SHARE = (
    1 / 12
)  # of the floor, for a number that a user reads; one rounding of it is then a ratio of about 5
# the first word of the name of what must be as in float32: nobody asked to convert it
UNTOUCHED = "untouched"
FLOAT32_FLOOR = 2.0**-20
READ = ("loss", "metric")  # the first words of the names of such numbers


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The yardstick's judgement of one tensor.

    Attributes:
        ratio: the error over the largest of the ideal error and the floors. 1 where both programs
            have infinities that float32 has not: the ideal one is no better.
        error: relative L2 error of the program under amp_tf.
        ideal: that of the ideal mixed program.
    """

    ratio: float
    error: float
    ideal: float

    @property
    def is_good(self):
        return self.ratio <= LIMIT


def distance(value, truth):
    """The relative L2 error of a tensor; infinite where it is not finite, or of another shape, and
    the truth is not.
    """
    if value.shape != truth.shape:
        return np.inf
    value = _as_reals(value)
    truth = _as_reals(truth)
    finite = np.isfinite(truth)
    if (
        not np.array_equal(value[~finite], truth[~finite], equal_nan=True)
        or not np.isfinite(value[finite]).all()
    ):
        return np.inf
    value = value[finite]
    truth = truth[finite]
    difference = np.sqrt(np.square(value - truth).sum())
    return float(difference / np.sqrt(np.square(truth).sum())) if difference else 0.0


def judge(
    name,
    value,
    ideal,
    truth,
    unit,
    noise=0.0,
):
    """The verdict on one tensor.

    Args:
        name: what it is; its first word says whether a user reads it as a number.
        value: by the program under amp_tf.
        ideal: by the ideal mixed program.
        truth: by the program in float32.
        unit: the unit roundoff of the 16-bit type.
        noise: how far float32 itself varies.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        error = distance(value, truth)
        least = distance(ideal, truth)
        kind = name.split()[0]
        if kind == UNTOUCHED:
            allowed = max(FLOAT32_FLOOR, noise)
        else:
            allowed = max(least, unit * READ_SHARE if kind in READ else unit, noise)
        if np.isinf(error):
            ratio = 1.0 if np.isinf(allowed) else np.inf
        else:
            ratio = 0.0 if noise > NO_TRUTH else error / allowed
    return Verdict(float(ratio), error, least)


def _as_reals(array):
    array = np.asarray(array)
    if np.iscomplexobj(array):
        array = np.stack([array.real, array.imag], axis=-1)
    return array.astype(np.float64).reshape(-1)
