"""The losses that a healthy training may have next, by those that it had: the limit above which a step is looked at.

The limit has to be generous: a false alarm costs two more steps, and a loss that is wrong but within it is not seen. A
loss counts as a jump where it is as far above the largest of the last ones as these are apart, several times over.
"""

from __future__ import annotations

import collections
import math

_KEPT = 64  # losses
_LEAST = 16  # losses, before there is a limit
_TIMES = 8.0  # the spread of the last losses
_EVERY = 16  # steps: the limit is a variable, which costs a little to write


class LossBand:
    """The last losses of a training.

    Args:
        no_limit: what the limit is as long as too few losses are known.

    Attributes:
        limit: the largest loss that is no jump.
    """

    def __init__(self, no_limit: float) -> None:
        self._losses: collections.deque[float] = collections.deque(maxlen=_KEPT)
        self._no_limit = no_limit
        self._count = 0
        self.limit = no_limit

    def note(self, loss: float) -> bool:
        """Adds a loss; returns whether the limit moved."""
        if not math.isfinite(loss):
            return False
        self._losses.append(loss)
        self._count += 1
        if len(self._losses) < _LEAST or self._count % _EVERY:
            return False
        return self._move()

    def widen(self, loss: float) -> None:
        """Adds a loss above the limit that is right, so that losses like it are no jump."""
        self._losses.append(loss)
        self._move()

    def _move(self) -> bool:
        highest, lowest = max(self._losses), min(self._losses)
        before, self.limit = self.limit, min(self._no_limit, highest + _TIMES * (highest - lowest) + abs(highest))
        return self.limit != before
