"""What is asked for: by how much a metric may be worse than in float32, in how many runs.

What a tuning found: the patterns, and the sets that were tried.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_tf.errors import ConfigError
from amp_tf.tools import keeping, some

_LEAST_RUNS = 5  # float32 twice, amp_tf with nothing in 16 bit, all in 16 bit, and one more


@dataclasses.dataclass(frozen=True)
class Goal:
    """How much worse than in float32 a metric may be."""

    metric: str  #: its name
    most: float  #: by how much it may be worse, in its own unit
    is_loss: bool  #: whether a larger value is worse

    def limit(self, float32: Sequence[float]) -> float:
        """The worst value that is good. Runs in float32 differ by chance, and the worst counts;
        without any, all values are good.
        """
        if self.is_loss:
            return max(float32, default=math.inf) + self.most
        return min(float32, default=-math.inf) - self.most

    def is_good(self, value: float | None, limit: float) -> bool:
        """Whether a value is good; none, and one that is not finite, never is."""
        if value is None or not math.isfinite(value):
            return False
        return value <= limit if self.is_loss else value >= limit

    def bound(self, limit: float) -> str:
        """The limit in words."""
        return f"at {'most' if self.is_loss else 'least'} {limit:.6g}"


def read_goal(
    metric: str, *, max_drop: Any, max_rise: Any, max_runs: Any, name: Callable[[str], str] = str
) -> Goal:
    """The goal that a user asks for; a ConfigError where an argument means nothing, of which
    ``name`` gives the user's name.
    """
    is_loss = max_rise is not None
    most, where = (max_rise, "max_rise") if is_loss else (max_drop, "max_drop")
    if (
        not isinstance(most, numbers.Real) or not 0 <= float(most) < math.inf
    ):  # NumPy's are such numbers, too
        raise ConfigError(f"{most!r} is not a change", where=name(where), fix="Write 0 or more")
    if not isinstance(max_runs, numbers.Integral) or max_runs < _LEAST_RUNS:
        fix = (
            f"Write {_LEAST_RUNS} or more: float32 twice, amp_tf with nothing in 16 bit, and all "
            "in 16 bit come first"
        )
        raise ConfigError(f"{max_runs!r} runs are too few", where=name("max_runs"), fix=fix)
    return Goal(metric, float(most), is_loss)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run gave."""

    metrics: Mapping[str, float] = dataclasses.field(
        default_factory=dict
    )  #: the values of the metrics, by name
    share: float | None = (
        None  #: of the operations of products that were in 16 bit; ``None`` where it is not known
    )
    step_ms: float | None = None  #: the median time of a step; ``None`` where it is not known
    failure: str = ""  #: why there is no metric; empty where there is one
    report: Mapping[str, Any] | None = (
        None  #: the report of the process; ``None`` where it is not needed any more
    )

    @classmethod
    def of(
        cls, metrics: Mapping[str, float], report: Mapping[str, Any] | None, failure: str = ""
    ) -> Outcome:
        """What a run gave, by its metrics and the report of its process."""
        figures, steps = (report or {}).get("figures") or {}, (report or {}).get("steps") or [{}]
        return cls(
            metrics, figures.get("products_share_f16"), steps[0].get("median_ms"), failure, report
        )


@dataclasses.dataclass(frozen=True)
class Trade:
    """One of the sets that were tried."""

    kept: tuple[str, ...]  #: the patterns of what stays in float32
    outcome: Outcome  #: of its run
    is_good: bool  #: whether its metric is good


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The result of a tuning."""

    goal: Goal  #: what a good run is
    #: for ``AmpConfig.keep_float32``; ``None`` where nothing was found that suffices
    patterns: tuple[str, ...] | None
    float32: tuple[float, ...]  #: the metric's values in float32
    limit: float  #: the worst value that is good
    mixed: float | None  #: the metric's value with all in 16 bit that amp_tf converts
    chosen: Outcome | None  #: the outcome with the patterns
    trades: tuple[Trade, ...]  #: all sets that were tried, most of the products in 16 bit first
    runs: int  #: how many there were
    proof: str  #: what is known of the patterns beyond that they suffice, for people
    is_verified: bool = True  #: whether the metric that nothing was chosen by is good, too
    notes: tuple[str, ...] = ()  #: further notes
    made: str = ""  #: what was tuned: the precision, the device and TensorFlow's version
    #: of some patterns, what a comparison of one step found there, for people
    why: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def best_trades(self) -> list[Trade]:
        """The trades that no other one beats, both in the share of 16 bit and in the metric."""
        sign = 1.0 if self.goal.is_loss else -1.0

        def costs(trade: Trade) -> tuple[float, float]:
            value = trade.outcome.metrics.get(self.goal.metric, math.nan)
            return -(trade.outcome.share or 0.0), math.inf if math.isnan(value) else sign * value

        best: list[Trade] = []
        for trade in sorted(self.trades, key=costs):
            if not best or costs(trade)[1] < costs(best[-1])[1]:
                best.append(trade)
        return best

    def __str__(self) -> str:
        name, values = self.goal.metric, " and ".join(f"{value:.6g}" for value in self.float32)
        head = f"{name}: {values} in float32, good is {self.goal.bound(self.limit)}"
        notes = [f"Note: {note}" for note in self.notes]
        if self.patterns is None or self.chosen is None:
            return "\n".join(
                [head, f"No set was found that suffices, in {self.runs} runs.", *notes]
            )
        count, part = len(self.patterns), self.chosen.share
        what = f"{count} layers or nodes stay" if count > 1 else "1 layer or node stays"
        what = what if count else "Nothing has to stay"
        work = "" if part is None else f", {part:.1%} of matmul and convolution work in 16 bit"
        told, end = (
            f"{name} {self.chosen.metrics[name]:.6g}{work}",
            f"; {self.proof}):" if count else ").",
        )
        lines = [head, f"{what} in float32: {told} ({self.runs} runs{end}"]
        lines += [f"  {pattern}" for pattern in self.patterns]
        lines += ["The best trades:", f"  {'16 bit':>7} {name:>12} {'step':>10}  in float32"]
        for trade in self.best_trades:
            value = trade.outcome.metrics.get(name, math.nan)
            share = "?" if trade.outcome.share is None else f"{trade.outcome.share:.1%}"
            step = "?" if trade.outcome.step_ms is None else f"{trade.outcome.step_ms:.1f} ms"
            kept = f"{some(trade.kept, 2) or 'nothing'}{'' if trade.is_good else ' (not good)'}"
            lines.append(f"  {share:>7} {value:>{max(12, len(name))}.6g} {step:>10}  {kept}")
        return "\n".join([*lines, *notes])

    def write(self, path: Path) -> None:
        """Writes the patterns to a file, with comments on what was measured.

        Raises:
            FileError: it cannot be written.
        """
        assert self.patterns is not None
        assert self.chosen is not None
        name, many = self.goal.metric, len(self.patterns)
        float32 = " and ".join(f"{value:.6g}" for value in self.float32)
        mixed = "no value" if self.mixed is None else f"{self.mixed:.6g}"
        value = self.chosen.metrics.get(name)
        tuned = "no value" if value is None else f"{value:.6g}"
        measured = [
            f"amp-tf tune: {self.made}",
            f"{name}: {float32} in float32, {mixed} with nothing in float32, {tuned} with what is "
            "below",
            f"good is {self.goal.bound(self.limit)}; {self.runs} "
            f"runs{f'; {self.proof}' if many else ''}",
        ]
        keeping.write(path, self.patterns, measured, self.why)
