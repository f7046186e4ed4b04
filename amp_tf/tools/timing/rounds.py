"""Runs a program with amp_tf and without it in turns, and judges by the ratios of the rounds.

In each round both ways run once, one after the other, in alternating order, so that slow changes of
the machine cancel. The ratio of a round is that of the medians of its steps. Rounds go on until the
geometric mean of the ratios has a standard error below 3 %, and Student's t tells with 99 % that
amp_tf is faster or slower, or the ratio to 5 %. It is 99 % because each round is one more chance to
be wrong: of programs that are equally fast both ways, 4 in 100 are called faster or slower, and
with 95 % it would be 14 (simulated, up to 12 rounds whose ratios vary by 10 %).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence

from amp_tf.config import DISABLE_VAR
from amp_tf.reporting.files import Row
from amp_tf.tools.progress import Progress, during, silent

LEAST_ROUNDS = 3
_PRECISE = 0.03  # the standard error, of the ratio
_SAME = 0.05  # of the ratio: a smaller difference is not worth further rounds
#: Student's t for 99 %, two-sided, by degrees of freedom from 1; then the last one
_T = (63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17, 3.11)
_MINUTE = 60.0
_WAYS = {False: "float32", True: "with amp_tf"}  # by whether amp_tf is on


@dataclasses.dataclass(frozen=True)
class Run:
    """The times and the memory of one run."""

    step_ms: tuple[float, ...]  #: each step after the first ones, in milliseconds
    first_s: float  #: until the end of the first step, in seconds
    peak_mib: float | None = None  #: the most memory that was in use; ``None`` where it is unknown

    @property
    def median(self) -> float:
        """The median step time, in milliseconds."""
        return statistics.median(self.step_ms)


Runs = tuple[Run, ...]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of some rounds: how many times as fast the program is with amp_tf."""

    speedup: float  #: the geometric mean of the rounds' ratios
    error: float  #: the standard error of ``speedup``
    rounds: int

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Verdict:
        """Judges the ratios of two rounds or more: float32's median step time over amp_tf's."""
        logarithms = [math.log(ratio) for ratio in ratios]
        speedup = math.exp(statistics.fmean(logarithms))
        error = speedup * statistics.stdev(logarithms) / math.sqrt(len(ratios))
        return cls(speedup, error, len(ratios))

    @property
    def _margin(self) -> float:
        """Half of the 99 % confidence interval, of the ratio."""
        t = _T[min(self.rounds - 2, len(_T) - 1)]
        return t * self.error / self.speedup

    @property
    def is_faster(self) -> bool:
        return math.log(self.speedup) > self._margin

    @property
    def is_slower(self) -> bool:
        return -math.log(self.speedup) > self._margin

    @property
    def is_known(self) -> bool:
        """True where the rounds say which is faster, or that neither is by more than chance."""
        return self.is_faster or self.is_slower or self._margin < _SAME

    @property
    def is_settled(self) -> bool:
        """True where further rounds are not worth their time."""
        return self.error < _PRECISE * self.speedup and self.is_known

    def in_words(self, device: str) -> str:
        """Returns the verdict in words, for a device such as ``"CPU"``."""
        times = f"{self.speedup:.2f} ± {self.error:.2f} times"
        if self.is_faster:
            return f"faster: {times}"
        if self.is_slower:
            return f"slower on this {device}: {times} as fast. {DISABLE_VAR}=1 avoids it"
        if self.is_known:
            return f"not faster on this {device} ({times}): {DISABLE_VAR}=1 loses nothing"
        cure = "stop other work, or allow more rounds"
        return f"too noisy to say after {self.rounds} rounds ({times}): {cure}"


@dataclasses.dataclass(frozen=True, repr=False)
class Timed:
    """The result of a timing."""

    step: str  #: what a step is, such as ``fit`` or the name of a ``tf.function``
    device: str  #: ``"GPU"`` or ``"CPU"``
    summary: str  #: what amp_tf converted, in the words of the summary line
    float32: Runs  #: the runs without amp_tf, one for each round
    mixed: Runs  #: the runs with it

    @property
    def verdict(self) -> Verdict:
        """How many times as fast it is, and how well that is known."""
        ratios = []
        for float32, mixed in zip(self.float32, self.mixed, strict=True):
            ratios.append(float32.median / mixed.median)
        return Verdict.of(ratios)

    def to_dict(self) -> Row:
        """Returns everything as JSON's types."""
        verdict = self.verdict
        return {
            **dataclasses.asdict(self),
            "speedup": verdict.speedup,
            "standard_error": verdict.error,
            "verdict": verdict.in_words(self.device),
        }

    def __repr__(self) -> str:
        float32 = _figures(self.float32)
        mixed = _figures(self.mixed)
        titles = [
            "ms a step, median",
            "s until the first step",
            f"peak {self.device} memory, MiB",
        ]
        counts = f"{_count(self.float32):,} and {_count(self.mixed):,} of them"
        lines = [f"A step of {self.step}, {counts} in {self.verdict.rounds} rounds:"]
        rows = zip(["", *titles], [_WAYS[False], *float32], [_WAYS[True], *mixed], strict=False)
        for title, one, other in rows:
            lines.append(f"  {title:24}{one:>18}{other:>18}")
        return "\n".join([*lines, self.summary, self.verdict.in_words(self.device)])


def _count(runs: Sequence[Run]) -> int:
    """Counts the steps."""
    return sum(len(run.step_ms) for run in runs)


def _figures(runs: Sequence[Run]) -> list[str]:
    """Returns the figures of one way: steps, first step, and memory where it is known."""
    steps: list[float] = []
    for run in runs:
        steps += run.step_ms
    first = statistics.median(run.first_s for run in runs)
    figures = [_digits(statistics.median(steps)), _digits(first)]
    peaks = [run.peak_mib for run in runs if run.peak_mib is not None]
    if peaks:
        figures.append(f"{max(peaks):,.0f}")
    return figures


def _digits(value: float) -> str:
    """Formats a figure with three digits or more."""
    decimals = (value < 10) + (value < 100)
    return f"{value:,.{decimals}f}"


def take_rounds(
    run: Callable[[bool], Run],
    rounds: int,
    minutes: float,
    tell: Progress = silent,
    progress: Progress = silent,
) -> tuple[Runs, Runs]:
    """Runs both ways in rounds until the verdict is settled.

    Args:
        run: runs once, with amp_tf if its argument is true; the first run is with it.
        rounds: how many are made at most; three are made in any case.
        minutes: after so many no further round begins.
        tell: called with a line for each round.
        progress: called with what is being done.

    Returns:
        The runs in float32 and those with amp_tf, one of each for each round.
    """
    until = time.monotonic() + _MINUTE * minutes
    runs: dict[bool, list[Run]] = {False: [], True: []}
    ratios: list[float] = []
    most = max(rounds, LEAST_ROUNDS)
    for number in range(1, most + 1):
        order = [True, False]
        if number % 2 == 0:
            order.reverse()
        for is_mixed in order:
            with during(progress, f"round {number} of at most {most}: {_WAYS[is_mixed]}"):
                runs[is_mixed].append(run(is_mixed))
        float32 = runs[False][-1].median
        mixed = runs[True][-1].median
        ratios.append(float32 / mixed)
        figures = f"{_digits(float32)} ms a step in float32, {_digits(mixed)} with amp_tf"
        tell(f"round {number}: {figures}")
        if number < LEAST_ROUNDS:
            continue
        if time.monotonic() > until or Verdict.of(ratios).is_settled:
            break
    return tuple(runs[False]), tuple(runs[True])
