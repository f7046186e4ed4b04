"""When a run is good: its metric against that of float32."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence


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
            float32: the values of the runs in float32, of which the worst counts: they differ by chance.
        """
        return max(float32) + self.most if self.is_loss else min(float32) - self.most

    def is_good(self, value: float | None, limit: float) -> bool:
        """Whether a value is good; none, and one that is not a number, never is."""
        if value is None or math.isnan(value):
            return False
        return value <= limit if self.is_loss else value >= limit

    def bound(self, limit: float) -> str:
        """The limit in words."""
        return f"at {'most' if self.is_loss else 'least'} {limit:.6g}"
