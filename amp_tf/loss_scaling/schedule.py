"""The algorithm of dynamic loss scaling: a pure state machine, bounded on both sides.

Three schedules share one interface, so that nothing asks "is loss scaling on?": :class:`NoScale`,
:class:`FixedScale` and :class:`DynamicScale`. A schedule is a frozen dataclass of settings; what
changes during training is a :class:`State`, and a step maps one state to the next. The arithmetic
is branch-free, and its few functions have one name in NumPy and TensorFlow: the very same lines run
on NumPy's numbers (tests, simulation) and on tensors (training).

The dynamic algorithm, after Micikevicius et al., Mixed Precision Training, ICLR 2018 (arXiv
1710.03740), section 3.2::

    finite step      good_steps += 1
                     after growth_steps of them: scale = min(scale * growth, max_scale)
    nonfinite step   the step is skipped
                     from the hysteresis-th in a row on: scale = max(scale * backoff, min_scale)

A scale that is far too large would cost a skipped step for each factor of two. So the third
back-off in a row counts for 4, the next one for 16, and those after it for 64. The overshoot is
then undone, one back-off with each finite step, until the next nonfinite step: a scale that is too
small for a while loses little, but a skipped step is lost. From 2^15 down to the floor of 2^-24 at
most six steps are skipped; with one factor of two each it would be up to 39. A scale that is near
is found as before. Meanwhile ``good_steps`` is negative, so that checkpoints need no further
variable.

The scale may go below 1: if the unscaled gradients themselves leave float16, a floor of 1 would
skip every step.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any, ClassVar, NamedTuple, TypedDict

import numpy as np

from amp_tf.errors import ConfigError
from amp_tf.values import check_bool, check_count, invalid

DEFAULT_INITIAL_SCALE = 2.0**15
DEFAULT_GROWTH_STEPS = 2000
DEFAULT_MIN_SCALE = 2.0**-24
# The largest power of two that float32 holds: the scale, and a loss of ordinary size times the
# scale, stay finite.
DEFAULT_MAX_SCALE = 2.0**127
# Below it processors may flush to zero, and a scale of zero turns gradients into 0/0.
_SMALLEST_NORMAL = 2.0**-126
# (number of the back-off in a row, how many it counts for): after two, the scale is far off.
_BACKOFFS = ((1, 1), (3, 4), (4, 16), (5, 64))
_WHERE = "loss scaling, "


class ScheduleSettings(TypedDict, total=False):
    """The settings of :func:`build_schedule` beside the first scale and the growth steps."""

    dynamic: bool
    enabled: bool
    growth_factor: float
    backoff_factor: float
    hysteresis: int
    min_scale: float
    max_scale: float


class State(NamedTuple):
    """The state of a schedule between steps: numbers, or scalar tensors.

    ``good_steps`` is the growth tracker. ``nonfinite_losses`` outlives finite steps, so that the
    last skip can be explained later.
    """

    scale: Any  #: the factor on the loss; float32, all others int64
    #: finite steps since the last change or skip; if negative, how many back-offs are to be undone
    good_steps: Any = 0
    skipped: Any = 0  #: steps in all
    skipped_in_row: Any = 0  #: since the last finite step
    steps: Any = 0  #: in all, skipped ones included
    last_change: Any = 0  #: the value of ``steps`` when the scale last changed
    #: the number of steps with a nonfinite loss at the end of the last run of skipped steps
    nonfinite_losses: Any = 0


class Schedule:
    """The base of the three schedules: they count steps, and skip nonfinite ones.

    ``maths``, in all three, is the module that computes with the state: NumPy, or TensorFlow for
    tensors, on which ``==`` means identity in a TF1 graph.
    """

    skips_nonfinite: ClassVar[bool] = True  #: if not, gradients need no check at all
    initial_scale: float = 1.0

    def initial_state(self) -> State:
        """The state before the first step."""
        return State(scale=np.float32(self.initial_scale))

    def after_finite(self, state: State, maths: Any = np) -> State:
        """The state after a step that was applied."""
        return state._replace(
            good_steps=state.good_steps + 1,
            skipped_in_row=state.skipped_in_row * 0,
            steps=state.steps + 1,
        )

    def after_nonfinite(
        self, state: State, maths: Any = np, is_loss_nonfinite: Any = False
    ) -> State:
        """The state after a step that was skipped.

        ``is_loss_nonfinite`` tells whether the loss itself was, as far as is known.
        """
        in_this_row = maths.where(state.skipped_in_row > 0, state.nonfinite_losses, 0)
        return state._replace(
            good_steps=state.good_steps * 0,
            skipped=state.skipped + 1,
            skipped_in_row=state.skipped_in_row + 1,
            steps=state.steps + 1,
            nonfinite_losses=maths.where(is_loss_nonfinite, in_this_row + 1, 0),
        )


@dataclasses.dataclass(frozen=True)
class NoScale(Schedule):
    """No scaling and no check: the optimizer behaves as if it were not wrapped.

    Every step counts as a finite one.
    """

    skips_nonfinite: ClassVar[bool] = False

    def after_finite(self, state: State, maths: Any = np) -> State:
        return state._replace(steps=state.steps + 1)


@dataclasses.dataclass(frozen=True)
class FixedScale(Schedule):
    """One scale for the whole training, without a floor; nonfinite steps are skipped and counted.

    Raises a ConfigError where the scale is not between 2^-126 and 2^127.
    """

    initial_scale: float

    def __post_init__(self) -> None:
        _check_range("initial_scale", self.initial_scale, _SMALLEST_NORMAL, DEFAULT_MAX_SCALE)


@dataclasses.dataclass(frozen=True)
class DynamicScale(Schedule):
    """A scale as large as the gradients allow.

    It grows after many finite steps, and backs off after a nonfinite one. Raises a ConfigError
    where a setting is outside its range, or the initial scale not between floor and ceiling.
    """

    #: better too high than too low: it decreases in a few steps but grows slowly. Of six public
    #: programs (``benchmarks.public``) two skip 4 of 300 and of 500 steps, and 2^14 would spare one
    #: of each; four skip none, and small gradients keep a bit more.
    initial_scale: float = DEFAULT_INITIAL_SCALE
    growth_steps: int = DEFAULT_GROWTH_STEPS  #: finite steps in a row before the scale grows
    growth_factor: float = 2.0  #: its factor when it grows; above 1
    backoff_factor: float = 0.5  #: its factor after a nonfinite step; between 0 and 1
    #: the number of nonfinite steps in a row from which the scale backs off; all are skipped in any
    #: case
    hysteresis: int = 1
    min_scale: float = DEFAULT_MIN_SCALE  #: the floor; at least 2^-126, the smallest normal float32
    #: the ceiling; at most 2^127, the largest power of two in float32
    max_scale: float = DEFAULT_MAX_SCALE

    def __post_init__(self) -> None:
        _check_range("min_scale", self.min_scale, _SMALLEST_NORMAL, DEFAULT_MAX_SCALE)
        _check_range("max_scale", self.max_scale, self.min_scale, DEFAULT_MAX_SCALE)
        _check_range("initial_scale", self.initial_scale, self.min_scale, self.max_scale)
        check_count(self.growth_steps, where=f"{_WHERE}dynamic_growth_steps")
        check_count(self.hysteresis, where=f"{_WHERE}hysteresis")
        growth = self.growth_factor
        backoff = self.backoff_factor
        if not isinstance(growth, numbers.Real) or not 1.0 < growth < math.inf:
            raise invalid(growth, f"{_WHERE}growth_factor", "a finite number above 1")
        if not isinstance(backoff, numbers.Real) or not 0.0 < backoff < 1.0:
            raise invalid(backoff, f"{_WHERE}backoff_factor", "a number above 0 and below 1")

    def after_finite(self, state: State, maths: Any = np) -> State:
        """Counts the step; every ``growth_steps`` in a row the scale grows, up to the ceiling.

        A back-off that overshot is undone in each step.
        """
        counted = super().after_finite(state, maths)
        good = counted.good_steps
        is_due = good >= self.growth_steps
        undone = np.float32(1.0 / self.backoff_factor)
        factor = maths.where(is_due, np.float32(self.growth_factor), undone)
        grown = maths.minimum(state.scale * factor, np.float32(self.max_scale))
        scale = maths.where(is_due, grown, maths.where(state.good_steps < 0, grown, state.scale))
        moved = _move(counted, scale, maths)
        return moved._replace(good_steps=maths.where(is_due, good * 0, good))

    def after_nonfinite(
        self, state: State, maths: Any = np, is_loss_nonfinite: Any = False
    ) -> State:
        """Counts the skipped step; from the ``hysteresis``-th in a row on the scale backs off.

        It stops at the floor. The third back-off in a row counts for several, and each after it for
        more, unless the loss itself is nonfinite: no scale helps there.
        """
        counted = super().after_nonfinite(state, maths, is_loss_nonfinite)
        # This is the place-th back-off in a row; none if it is zero or negative.
        place = counted.skipped_in_row - self.hysteresis + 1
        place = maths.where(is_loss_nonfinite, maths.minimum(place, 1), place)
        lowered = state.scale
        to_make_up = counted.good_steps
        for first, times in _BACKOFFS:
            factor = np.float32(max(self.backoff_factor**times, _SMALLEST_NORMAL))
            lowered = maths.where(place >= first, state.scale * factor, lowered)
            if times > 1:
                to_make_up = maths.where(place >= first, state.good_steps - times, to_make_up)
        lowered = maths.minimum(lowered, np.float32(self.max_scale))
        lowered = maths.maximum(lowered, np.float32(self.min_scale))
        moved = _move(counted, maths.where(place > 0, lowered, state.scale), maths)
        is_at_floor = maths.equal(moved.scale, state.scale)
        to_undo = maths.minimum(state.good_steps, 0)
        return moved._replace(good_steps=maths.where(is_at_floor, to_undo, to_make_up))


def build_schedule(
    initial_scale: float = DEFAULT_INITIAL_SCALE,
    dynamic_growth_steps: int = DEFAULT_GROWTH_STEPS,
    *,
    dynamic: bool = True,
    enabled: bool = True,
    **settings: Any,
) -> Schedule:
    """The schedule that the keyword arguments of ``amp_tf.LossScaleOptimizer`` describe.

    Without ``enabled`` it is :class:`NoScale`, without ``dynamic`` a :class:`FixedScale`, else a
    :class:`DynamicScale` with the other settings; ``dynamic_growth_steps`` is Keras' name for its
    ``growth_steps``. A value outside its range is a ConfigError that names the setting, the value
    and the valid ones.
    """
    known = ("initial_scale", "dynamic_growth_steps", *ScheduleSettings.__annotations__)
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"there is no setting {name!r}",
                where="loss scaling",
                fix=f"The settings are: {', '.join(known)}",
            )
    if not check_bool(enabled, where=f"{_WHERE}enabled"):
        return NoScale()
    if not check_bool(dynamic, where=f"{_WHERE}dynamic"):
        return FixedScale(_plain(initial_scale))
    plain = {name: _plain(value) for name, value in settings.items()}
    return DynamicScale(_plain(initial_scale), _plain(dynamic_growth_steps), **plain)


def check_scale(value: object) -> None:
    """Raises a ConfigError for a number outside of 2**-126 to 2**127.

    Other values, such as tensors, pass.
    """
    if isinstance(value, numbers.Real):
        _check_range("loss_scale", value, _SMALLEST_NORMAL, DEFAULT_MAX_SCALE)


def usable_scale(scale: float, schedule: Schedule) -> float:
    """Returns a scale that Keras' own wrapper saved.

    If it collapsed to zero or grew to infinity, the first scale takes its place.
    """
    if _SMALLEST_NORMAL <= scale <= DEFAULT_MAX_SCALE:
        return scale
    return float(schedule.initial_state().scale)


def _move(state: State, scale: Any, maths: Any) -> State:
    is_same = maths.equal(scale, state.scale)
    last_change = maths.where(is_same, state.last_change, state.steps)
    return state._replace(scale=scale, last_change=last_change)


def _plain(value: Any) -> Any:
    """A numpy number as Python's own type, which configuration files can hold."""
    if isinstance(value, int) or not isinstance(value, numbers.Real):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value)


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not low <= float(value) <= high:
        raise invalid(value, f"{_WHERE}{name}", f"numbers from {low:g} to {high:g}")
