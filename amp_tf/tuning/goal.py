"""What is asked for: by how much a metric may be worse than in float32, in how many runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from amp_tf.errors import ConfigError

_LEAST_RUNS = 5  # float32 twice, amp_tf with nothing in 16 bit, all in 16 bit, and one more


@dataclasses.dataclass(frozen=True)
class Goal:
    """How much worse than in float32 a metric may be.

    Attributes:
        metric: its name.
        most: by how much it may be worse, in its own unit.
        is_loss: whether a larger value is worse.
    """

    metric: str
    most: float
    is_loss: bool

    def limit(self, float32: Sequence[float]) -> float:
        """The worst value that is good.

        Args:
            float32: the values of the runs in float32, of which the worst counts: they differ by chance. Without any,
                every number is good.
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


def read_goal(metric: str, *, max_drop: Any, max_rise: Any, max_runs: Any, name: Callable[[str], str] = str) -> Goal:
    """The goal that a user asks for.

    Args:
        metric: the metric's name.
        max_drop, max_rise: by how much it may be smaller or larger; one of them is ``None``.
        max_runs: how many runs may be made.
        name: how the user writes one of these arguments.

    Raises:
        ConfigError: one of them means nothing.
    """
    is_loss = max_rise is not None
    most, where = (max_rise, "max_rise") if is_loss else (max_drop, "max_drop")
    if not isinstance(most, (int, float)) or not 0 <= most < math.inf:
        raise ConfigError(f"{most!r} is not a change", where=name(where), fix="Write 0 or more")
    if not isinstance(max_runs, int) or max_runs < _LEAST_RUNS:
        fix = f"Write {_LEAST_RUNS} or more: float32 twice, amp_tf with nothing in 16 bit, and all in 16 bit come first"
        raise ConfigError(f"{max_runs!r} runs are too few", where=name("max_runs"), fix=fix)
    return Goal(metric, float(most), is_loss)
