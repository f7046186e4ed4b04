"""Describes what loss scaling did in this process: the status of each scale, and skipped steps.

Adapters read their variables into a :class:`Status`; the callback and the hooks log and raise the
errors and lines that are made here. Imports no TensorFlow. Skipped steps are logged as warnings
because absl hides INFO.

The ledger keeps a scaler's variables alive, a few bytes, because the optimizer is mostly gone when
the summary line is printed. If there are very many scalers, the oldest are only counted. A
parameter server is not asked at exit: it may be gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from amp_tf.errors import AmpError

DEFAULT_MAX_SKIPS = 100
# Skipped steps in a row, because a few bad batches can bring the scale to its floor.
_MOST_AT_FLOOR = 10


class LossScaleError(AmpError, ArithmeticError):
    """Training makes no progress: all steps are skipped, and a lower scale will not help."""


class Cause(enum.Enum):
    """Why the last steps were skipped; the value is what people read."""

    OVERFLOW = "the scaled gradients overflow float16"
    UNSCALED = "the gradients are NaN or infinite, and the loss was never scaled"
    SUM = "the gradients are finite, but their norm or their sum over replicas is not"
    GRADIENT = (
        "the gradients are NaN or infinite although the scale is at its floor and the loss is "
        "finite"
    )
    LOSS = "the loss itself is NaN or infinite before it is scaled, so no loss scale can help"
    DATA = "the input data or the labels hold NaN or infinities, so no loss scale can help"
    RANGE = (
        "the input data or the labels hold values beyond float16's 65504, so no loss scale can help"
    )


class SkipFacts(NamedTuple):
    """The facts that are known about the last skipped step."""

    knows_gradients: bool = False  #: they were examined
    #: some gradient itself was NaN or infinite, not only their norm or sum
    has_nonfinite_gradient: bool = False
    knows_data: bool = False  #: the loss was traced
    has_nonfinite_data: bool = False  #: the loss was computed from NaN or infinities
    has_large_data: bool = False  #: the loss was computed from values beyond float16's range


@dataclasses.dataclass(frozen=True)
class Status:
    """A wrapper's state as Python numbers.

    The first fields are those of :class:`amp_tf.loss_scaling.schedule.State`.

    ``nonfinite_losses_in_row`` is 0 where the loss was not seen in the same graph as the gradients.
    """

    scale: float
    good_steps: int = 0
    skipped: int = 0
    skipped_in_row: int = 0
    steps: int = 0
    last_change: int = 0
    nonfinite_losses_in_row: int = 0
    min_scale: float = 0.0  #: the floor
    nonfinite_variables: tuple[str, ...] = ()  #: of the last skipped step, in model order
    #: in no checkpoint, unlike the fields above
    last_skip: SkipFacts = dataclasses.field(default=SkipFacts(), compare=False)
    #: ``False`` of a wrapper whose training step scales no loss
    scales_loss: bool = dataclasses.field(default=True, compare=False)
    #: ``False`` of a wrapper of another library
    counts_skips: bool = dataclasses.field(default=True, compare=False)

    @property
    def is_at_floor(self) -> bool:
        """Tells whether the scale cannot back off further, and a step was made with it."""
        return self.scale <= self.min_scale and self.steps > self.last_change

    @property
    def cause(self) -> Cause | None:
        """Why the last step was skipped; ``None`` if it was not."""
        if self.skipped_in_row == 0:
            return None
        return self.last_cause

    @property
    def last_cause(self) -> Cause:
        """Why the last skipped step was skipped, however long ago."""
        if not self.scales_loss:
            return Cause.UNSCALED
        facts = self.last_skip
        is_loss_nonfinite = self.nonfinite_losses_in_row > 0
        if is_loss_nonfinite and facts.has_nonfinite_data:
            return Cause.DATA
        if is_loss_nonfinite and not facts.has_large_data:
            return Cause.LOSS
        if is_loss_nonfinite:
            return Cause.RANGE
        if facts.knows_gradients and not facts.has_nonfinite_gradient:
            return Cause.SUM
        if not self.is_at_floor:
            return Cause.OVERFLOW
        if facts.has_large_data:
            return Cause.RANGE
        return Cause.GRADIENT


def describe_backoff(before: Status, now: Status) -> str:
    """One log line on the steps skipped between two looks at the same optimizer."""
    skipped = now.skipped - before.skipped
    return (
        f"skipped {skipped} step{'s' * (skipped > 1)} ({now.skipped} of {now.steps} so far): "
        f"{now.last_cause.value}; "
        f"loss scale {format_scale(before.scale)} -> {format_scale(now.scale)}"
    )


def find_trouble(
    status: Status, max_skips: int = DEFAULT_MAX_SKIPS, label: str = ""
) -> LossScaleError | None:
    """Returns the error to raise if training is stuck, else ``None``.

    It is stuck after ``max_skips`` skipped steps in a row, or ten at the floor. The label names
    what trains.
    """
    skipped_at_floor = 0
    if status.is_at_floor:
        skipped_at_floor = min(status.skipped_in_row, status.steps - status.last_change)
    if status.skipped_in_row < max_skips and skipped_at_floor < _MOST_AT_FLOOR:
        return None
    cause = status.last_cause
    floor = " (its floor)" * status.is_at_floor
    what = (
        f"{status.skipped_in_row} steps in a row were skipped, {status.skipped} of {status.steps} "
        f"in all; the loss scale is {format_scale(status.scale)}{floor}; {cause.value}"
    )
    names = status.nonfinite_variables
    if names:
        more = f" and {len(names) - 5} more" * (len(names) > 5)
        what += f". Nonfinite gradients: {', '.join(names[:5])}{more}"
    fix = _FIXES[cause]
    if cause is Cause.LOSS and status.last_skip.knows_data:
        fix = f"The input data of that step is finite. {fix.replace(_SUSPECT_DATA, '')}"
    return LossScaleError(what, where=label or "loss scaling", fix=fix)


def format_scale(scale: float) -> str:
    """A scale as people write it: ``2^15`` for powers of two, else a short decimal."""
    mantissa, exponent = math.frexp(scale)
    if mantissa == 0.5:
        return f"2^{exponent - 1}"
    return f"{scale:g}"


_SUSPECT_DATA = "NaN in the input data and labels, for "
_FIXES = {
    Cause.DATA: (
        "Check the input data: look for NaN, empty rows and divisions by zero where it is read "
        "and normalized, for instance with tf.debugging.assert_all_finite"
    ),
    Cause.RANGE: (
        "Scale the data and labels down, or set AMP_TF_PRECISION=bfloat16, which has float32's "
        "range"
    ),
    Cause.UNSCALED: (
        "Look for NaN in the input data. If float16 overflows, scale the loss with "
        "optimizer.scale_loss, whose scale may go below 1, or set AMP_TF_PRECISION=bfloat16, which "
        "has float32's range"
    ),
    Cause.SUM: (
        "The gradients explode: look at the learning rate, and clip by value before the norm is "
        "computed; the float32 run overflows there as well"
    ),
    Cause.OVERFLOW: (
        "Start from a smaller scale, LossScaleOptimizer(optimizer, initial_scale=…), or keep the "
        "layers of these variables in float32 with AMP_TF_KEEP_FLOAT32"
    ),
    Cause.GRADIENT: (
        "Look for a division by zero, log(0) or sqrt(0) in the layers of these variables, and for "
        "values beyond float16's 65504, labels included. Keep these layers in float32 with "
        "AMP_TF_KEEP_FLOAT32, or set AMP_TF_PRECISION=bfloat16, which has float32's range"
    ),
    Cause.LOSS: (
        f"Look for {_SUSPECT_DATA}log(0) or a division by zero in the loss, and for a learning "
        "rate so high that the float32 run diverges as well; run one batch with "
        "tf.debugging.enable_check_numerics()"
    ),
}

_MOST = 64  # scalers
_POINTS = 512  # of a curve; beyond that, every second one is dropped


@dataclasses.dataclass
class _Entry:
    label: str
    read: Callable[[], Status] | None  # or raises
    last: Status | None = None  # the status at the last look
    #: (step, scale, skipped steps)
    points: list[tuple[int, float, int]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Ledger:
    """The scalers of a process, by their numbers."""

    entries: dict[int, _Entry] = dataclasses.field(default_factory=dict)  #: the latest comes last
    entered: int = 0  #: how many there were
    lock: Any = dataclasses.field(default_factory=threading.Lock)


# Changes at a scaler's first call, or when one is looked at. It outlives all of them, for the
# summary line.
_ledger = _Ledger()


def enter(label: str, read: Callable[[], Status] | None = None) -> int:
    """Adds a scaler that scaled its first loss, or made its first step.

    Args:
        label: names the optimizer until :func:`note_look` knows the model.
        read: returns its status; it may keep nothing alive but its variables. Without it the last
            look counts.

    Returns its number.
    """
    with _ledger.lock:
        number = _ledger.entered
        _ledger.entered += 1
        _ledger.entries[number] = _Entry(label, read)
        oldest = None
        if len(_ledger.entries) > _MOST:
            oldest = _ledger.entries.pop(next(iter(_ledger.entries)))
    del oldest  # outside of the lock
    return number


def note_look(number: int | None, status: Status, label: str = "") -> str:
    """Records the status of a scaler, by its number from :func:`enter`, and makes it the latest.

    Returns its label: the one that is given, or else the one that it was entered with.
    """
    with _ledger.lock:
        if number is None or number not in _ledger.entries:
            return label
        entry = _ledger.entries.pop(number)
        entry.last = status
        entry.label = label or entry.label
        entry.points.append((status.steps, status.scale, status.skipped))
        if len(entry.points) > _POINTS:
            del entry.points[1:-1:2]
        _ledger.entries[number] = entry
        return entry.label


def statuses() -> tuple[list[tuple[str, Status]], int]:
    """The label and status of each scaler that made a step, and the number of scalers left out.

    The latest comes last.
    """
    found = [(entry.label, status) for entry, status in _looks()]
    return found, _ledger.entered - len(_ledger.entries)


def curves() -> list[dict[str, Any]]:
    """The loss scale over time of each scaler that made a step and counts those it skipped."""
    found = []
    for entry, now in _looks():
        if not now.counts_skips:
            continue
        found.append(
            {
                "label": entry.label,
                "scale": now.scale,
                "steps": now.steps,
                "skipped": now.skipped,
                "points": sorted({*entry.points, (now.steps, now.scale, now.skipped)}),
            }
        )
    return found


def _looks() -> Iterator[tuple[_Entry, Status]]:
    """The scalers that made a step, each with its status now."""
    with _ledger.lock:
        entries = list(_ledger.entries.values())
    for entry in entries:
        status = entry.last or Status(1.0)
        with contextlib.suppress(Exception):  # its devices are gone, as at the end of a cluster
            if entry.read is not None:
                status = entry.read()
        if status.steps:
            yield entry, status
