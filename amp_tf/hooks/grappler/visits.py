"""Tells the second visit of a graph from the first visit of another.

TensorFlow runs its optimizers over each graph twice, one visit right after the other on the same thread, and does not
say which visit it is. In between, its other optimizers change the graph a little, but never the nodes to preserve.

No model of the suite changed at the second visit, which took half of a first step's extra time. So a graph that was
just rewritten is recognized, once, by the name of one of our casts and the same nodes to preserve. Graphs in which
nothing changed are painted twice: nothing distinguishes such a graph from a retrace with other shapes.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import string
import threading

from amp_tf.rewriting.planning import CAST_SUFFIX

_LANDMARKS = 16
_SUFFIX = re.compile(re.escape(CAST_SUFFIX.encode()))
_IN_NAMES = f"{string.ascii_letters}{string.digits}_./>\\-".encode()
_THREADS = 1024  #: how many threads' first visits are remembered: far more than visit at once
_LONGEST = 512  #: bytes; of a longer name its end is enough


@dataclasses.dataclass(frozen=True)
class _First:
    """A first visit that no second visit has followed yet.

    Attributes:
        preserve: the nodes to preserve.
        nodes: how many nodes the graph had.
        casts: names of some casts that the rewrite inserted; empty where nothing changed.
    """

    preserve: frozenset[str]
    nodes: int
    casts: tuple[bytes, ...]


class Waiting(threading.local):
    """The thread of TensorFlow's that this thread works for.

    Attributes:
        thread: the ``threading.get_native_id()`` of TensorFlow's thread that waits for it; its own where none does. The
            kernel counts on and uses a number again only when all were used, Python's own ``get_ident()`` at once.
    """

    def __init__(self) -> None:
        self.thread = threading.get_native_id()


waiting = Waiting()


class Visits:
    """The last first visits, by TensorFlow's threads."""

    def __init__(self) -> None:
        self._firsts: dict[int, _First] = {}

    def is_rewritten(self, serialized: bytes, preserve: frozenset[str]) -> bool:
        """Whether this is the graph that this thread rewrote last, so that nothing is left to do.

        The names of the casts show it: a graph that has one of them and the same nodes to preserve went through the
        same rewrite.
        """
        first = self._firsts.get(waiting.thread)
        if first is None or preserve != first.preserve or not any(cast in serialized for cast in first.casts):
            return False
        self._forget_first()
        return True

    def is_second(self, preserve: frozenset[str], nodes: int) -> bool:
        """Whether a graph that stays as it is was most likely visited before; only counts depend on it."""
        first = self._firsts.get(waiting.thread)
        if first is None or preserve != first.preserve or abs(nodes - first.nodes) > first.nodes // 2:
            return False
        self._forget_first()
        return True

    def note_first(self, preserve: frozenset[str], nodes: int, rewritten: bytes | None) -> None:
        """Remembers a first visit.

        Args:
            preserve: the nodes to preserve.
            nodes: how many nodes the graph had.
            rewritten: the serialized result, ``None`` where nothing changed.
        """
        self._forget_first()  # so that the last one stands at the end
        while len(self._firsts) >= _THREADS:  # threads that ended never come again
            self._firsts.pop(next(iter(self._firsts)), None)
        self._firsts[waiting.thread] = _First(preserve, nodes, () if rewritten is None else _some_casts(rewritten))

    def _forget_first(self) -> None:
        """Forgets the first visit: a third one would be the first of another graph."""
        self._firsts.pop(waiting.thread, None)


def _some_casts(serialized: bytes) -> tuple[bytes, ...]:
    """The names of the first casts in a serialized graph; bytes in front of a name may be included."""
    found = []
    for match in itertools.islice(_SUFFIX.finditer(serialized), _LANDMARKS):
        before = serialized[max(0, match.start() - _LONGEST) : match.start()]
        found.append(before[len(before.rstrip(_IN_NAMES)) :] + match[0])
    return tuple(dict.fromkeys(found))
