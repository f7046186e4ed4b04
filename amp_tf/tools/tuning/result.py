"""The goal of a tuning, and its result.

The goal says by how much a metric may be worse than in float32. The result is the patterns, with
the sets that were tried.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from amp_tf.reporting.figures import percent
from amp_tf.reporting.files import Document
from amp_tf.tools import keeping, some
from amp_tf.tools.keeping import Patterns


@dataclasses.dataclass(frozen=True)
class Goal:
    """How much worse than in float32 a metric may be."""

    metric: str  #: its name
    most: float  #: by how much it may be worse, in its own unit
    is_loss: bool  #: whether a larger value is worse

    def limit(self, float32: Sequence[float]) -> float:
        """Returns the worst value that is good.

        Runs in float32 differ by chance, and the worst counts. Without any, all values are good.
        """
        if self.is_loss:
            return max(float32, default=math.inf) + self.most
        return min(float32, default=-math.inf) - self.most

    def is_good(self, value: float | None, limit: float) -> bool:
        """Judges a value; ``None``, NaN and infinity are never good."""
        if value is None or not math.isfinite(value):
            return False
        if self.is_loss:
            return value <= limit
        return value >= limit

    def bound(self, limit: float) -> str:
        """Tells the limit in words."""
        bound = "at least"
        if self.is_loss:
            bound = "at most"
        return f"{bound} {limit:.6g}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    value: float | None = None  #: of the metric; ``None`` where there is none
    #: of the operations of products that were in 16 bit; ``None`` where it is not known
    share: float | None = None
    step_ms: float | None = None  #: the median time of a step; ``None`` where it is not known
    failure: str = ""  #: why there is no metric; empty where there is one
    #: the report of the process; ``None`` where it is not needed any more
    report: Document | None = None

    @classmethod
    def of(cls, value: float | None, report: Document | None, failure: str = "") -> Outcome:
        """Makes the result of a run from its metric and the report of its process."""
        known = report or {}
        share = (known.get("figures") or {}).get("products_share_f16")
        steps = known.get("steps") or [{}]
        return cls(value, share, steps[0].get("median_ms"), failure, report)


@dataclasses.dataclass(frozen=True)
class Trade:
    """One of the sets that were tried."""

    kept: Patterns  #: the patterns of what stays in float32, those of the settings first
    outcome: Outcome  #: of its run
    is_good: bool  #: whether its metric is good

    def line(self, width: int) -> str:
        """Returns its line of a table; ``width`` is that of the column for the metric."""
        step = "unknown"
        if self.outcome.step_ms is not None:
            step = f"{self.outcome.step_ms:.1f} ms"
        kept = some(self.kept) or "nothing"
        if not self.is_good:
            kept += " (not good)"
        share = percent(self.outcome.share)
        return f"  {share:>7} {_number(self.outcome.value):>{width}} {step:>10}  {kept}"


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The result of a tuning."""

    goal: Goal  #: what a good run is
    #: for ``AmpConfig.keep_float32``; ``None`` where nothing was found that suffices
    patterns: Patterns | None
    float32: tuple[float, ...]  #: the metric's values in float32
    mixed: float | None  #: the metric's value with all in 16 bit that amp_tf converts
    chosen: Outcome | None  #: the outcome with the patterns
    trades: tuple[Trade, ...]  #: all sets that were tried, in their order
    runs: int  #: how many there were
    proof: str  #: whether fewer patterns would suffice, for people
    made: str = ""  #: what was tuned: the precision, the device and TensorFlow's version
    from_settings: Patterns = ()  #: the first of the patterns, which every run has
    #: of some patterns, what a comparison of one step found there, for people
    why: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        name = self.goal.metric
        lines = [f"{name}: {self._float32} in float32, {self._good}"]
        if self.patterns is None or self.chosen is None:
            return f"{lines[0]}\nNo set was found that suffices, in {self.runs} runs."
        count = len(self.patterns)
        stays = f"{count} layers or nodes stay"
        if count == 0:
            stays = "Nothing has to stay"
        elif count == 1:
            stays = "1 layer or node stays"
        work = ""
        if self.chosen.share is not None:
            work = f", {percent(self.chosen.share)} of matmul and convolution work in 16 bit"
        runs = f"{self.runs} runs"
        stop = "."
        if count:  # the patterns follow
            runs += f"; {self.proof}"
            stop = ":"
        value = _number(self.chosen.value)
        lines.append(f"{stays} in float32: {name} {value}{work} ({runs}){stop}")
        lines += [f"  {pattern}" for pattern in self.patterns]
        lines += ["What was tried:", f"  {'16 bit':>7} {name:>12} {'step':>10}  in float32"]
        lines += [trade.line(max(12, len(name))) for trade in self.trades]
        return "\n".join(lines)

    @property
    def _good(self) -> str:
        return f"good is {self.goal.bound(self.goal.limit(self.float32))}"

    @property
    def _float32(self) -> str:
        return " and ".join(map(_number, self.float32))

    def write(self, path: Path) -> None:
        """Writes the patterns to a file, with comments on what was measured.

        Raises:
            FileError: it cannot be written.
        """
        assert self.patterns is not None
        assert self.chosen is not None
        proof = ""
        if self.patterns:
            proof = f"; {self.proof}"
        mixed = f"{_number(self.mixed)} with {nothing_but(self.from_settings)} in float32"
        chosen = f"{_number(self.chosen.value)} with what is below"
        measured = [
            f"amp-tf tune: {self.made}",
            f"{self.goal.metric}: {self._float32} in float32, {mixed}, {chosen}",
            f"{self._good}; {self.runs} runs{proof}",
        ]
        keeping.write(path, self.patterns, measured, self.why)


def nothing_but(patterns: Sequence[str]) -> str:
    """Names what stays in float32 beside the patterns of the settings: nothing."""
    if patterns:
        return "nothing else"
    return "nothing"


def _number(value: float | None) -> str:
    """Formats a value of the metric."""
    if value is None:
        return "no value"
    return f"{value:.6g}"
