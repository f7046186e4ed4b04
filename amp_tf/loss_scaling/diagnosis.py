"""What loss scaling tells people: its status as plain numbers, and why training is stuck.

No TensorFlow here. Adapters read their variables into a :class:`Status`; the callback and the hooks log and raise what
this module writes.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable

from amp_tf.errors import AmpError

DEFAULT_MAX_SKIPS = 100

TWO_LINES = (
    "scaled_loss = optimizer.scale_loss(loss)              # inside the GradientTape\n"
    "    gradients = tape.gradient(scaled_loss, variables)     # then apply_gradients, which unscales"
)


class LossScaleError(AmpError, ArithmeticError):
    """Training makes no progress: steps are skipped one after the other, and a lower scale will not help."""


class Cause(enum.Enum):
    """Why the last steps were skipped; the value is what people read."""

    OVERFLOW = "the scaled gradients overflow float16"
    GRADIENT = "the gradients are NaN or infinite although the scale is at its floor and the loss is finite"
    LOSS = "the loss itself is NaN or infinite before it is scaled, so no loss scale can help"


@dataclasses.dataclass(frozen=True)
class Status:
    """A wrapper's state as Python numbers.

    Attributes:
        scale: the loss scale.
        good_steps, skipped, skipped_in_row, steps, last_change: as in :class:`amp_tf.loss_scaling.schedule.State`.
        nonfinite_losses_in_row: of the last row of skipped steps, how many had a nonfinite loss up to its end; 0 where
            the loss was not seen in the same graph as the gradients.
        min_scale: the floor.
        nonfinite_variables: the variables whose gradients were nonfinite in the last skipped step, in model order.
    """

    scale: float
    good_steps: int = 0
    skipped: int = 0
    skipped_in_row: int = 0
    steps: int = 0
    last_change: int = 0
    nonfinite_losses_in_row: int = 0
    min_scale: float = 0.0
    nonfinite_variables: tuple[str, ...] = ()

    @classmethod
    def of(cls, scale: float, counters: Iterable[int], schedule: object, names: Iterable[str] = ()) -> Status:
        """The status of a wrapper.

        Args:
            scale: the loss scale.
            counters: good_steps, skipped, skipped_in_row, steps, last_change and nonfinite_losses_in_row.
            schedule: the wrapper's schedule. One that does not move has no floor: it was chosen too large, or not.
            names: of the variables whose gradients were nonfinite.
        """
        good, skipped, in_row, steps, change, losses = (int(n) for n in counters)
        floor = float(getattr(schedule, "min_scale", 0.0))
        return cls(scale, good, skipped, in_row, steps, change, losses, floor, tuple(names))

    @property
    def is_at_floor(self) -> bool:
        """Whether the scale cannot back off further."""
        return self.scale <= self.min_scale

    @property
    def cause(self) -> Cause | None:
        """Why the last step was skipped; ``None`` if it was not."""
        return None if self.skipped_in_row == 0 else self.last_cause

    @property
    def last_cause(self) -> Cause:
        """Why the last skipped step was skipped, however long ago."""
        if self.nonfinite_losses_in_row > 0:
            return Cause.LOSS
        return Cause.GRADIENT if self.is_at_floor else Cause.OVERFLOW


def describe_backoff(before: Status, now: Status) -> str:
    """One log line on the steps skipped between two looks at the same optimizer."""
    skipped = now.skipped - before.skipped
    steps = "1 step" if skipped == 1 else f"{skipped} steps"
    return (
        f"skipped {steps} ({now.skipped} of {now.steps} in all): {now.last_cause.value}; loss scale "
        f"{format_scale(before.scale)} -> {format_scale(now.scale)}"
    )


def find_trouble(status: Status, max_skips: int = DEFAULT_MAX_SKIPS) -> LossScaleError | None:
    """The error that a stuck training deserves, or ``None`` while there is hope.

    Args:
        status: the wrapper's state now.
        max_skips: how many skipped steps in a row are too many; at least 1.
    """
    at_floor = status.is_at_floor and status.skipped_in_row > 1
    if status.skipped_in_row < max_skips and not at_floor:
        return None
    cause = status.cause
    names = status.nonfinite_variables
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    what = (
        f"{status.skipped_in_row} steps in a row were skipped, {status.skipped} of {status.steps} in all; "
        f"the loss scale is {format_scale(status.scale)}"
        + (" (its floor)" if status.is_at_floor else "")
        + f"; {cause.value if cause else ''}"
        + (f". Nonfinite gradients: {shown}" if names else "")
    )
    return LossScaleError(what, where="loss scaling", fix=_FIXES[cause or Cause.OVERFLOW])


def format_scale(scale: float) -> str:
    """A scale as people write it: ``2^15`` for powers of two, else a short decimal."""
    mantissa, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:g}"


_FIXES = {
    Cause.OVERFLOW: (
        "Start from a smaller scale, LossScaleOptimizer(optimizer, initial_scale=…), or keep the layers of these "
        "variables in float32 with AMP_TF_KEEP_FLOAT32"
    ),
    Cause.GRADIENT: (
        "Look for a division by zero, log(0) or sqrt(0) in the layers of these variables, and for values beyond "
        "float16's 65504, labels included. Keep these layers in float32 with AMP_TF_KEEP_FLOAT32, or set "
        "AMP_TF_PRECISION=bfloat16, which has float32's range"
    ),
    Cause.LOSS: (
        "Look for NaN in the input data and labels, for log(0) or a division by zero in the loss, and for a learning "
        "rate so high that the float32 run diverges as well; run one batch with tf.debugging.enable_check_numerics()"
    ),
}
