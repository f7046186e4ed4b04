"""The scalers of this process that scaled a loss, for the line at exit. Imports no TensorFlow.

The ledger keeps a scaler's variables alive: when the line is printed, a program's function with its loop has mostly
returned, and its optimizer is gone. The variables are a few bytes; of very many scalers the oldest are only counted.

Variables on a parameter server are not read at exit, because it may be gone.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from amp_tf.loss_scaling.diagnosis import Status
from amp_tf.reporting.document_types import Curve

_MOST = 64
_POINTS = 512  # of a curve; beyond that, every second one is dropped

_lock = threading.Lock()
_numbers = itertools.count()
_entries: dict[int, _Entry] = {}
_dropped = 0


class _Entry:
    """One scaler.

    Attributes:
        label: names it.
        read: returns its current status, or raises.
        last: the state that was seen last, if any was.
        points: (step, scale, skipped steps) of the looks so far.
    """

    def __init__(self, label: str, read: Callable[[], Status]) -> None:
        self.label = label
        self.read = read
        self.last: Status | None = None
        self.points: list[tuple[int, float, int]] = []

    def note(self, status: Status) -> None:
        """Records a status; of old points, every second one is dropped when there are too many."""
        self.last = status
        self.points.append((status.steps, status.scale, status.skipped))
        if len(self.points) > _POINTS:
            del self.points[1:-1:2]


def enter(label: str, read: Callable[[], Status]) -> int:
    """Adds a scaler that scaled its first loss.

    Args:
        label: names it: the optimizer, until :func:`note_look` knows the model.
        read: returns its status; holds only its variables.

    Returns:
        Its number.
    """
    global _dropped
    with _lock:
        number = next(_numbers)
        _entries[number] = _Entry(label, read)
        oldest = _entries.pop(next(iter(_entries))) if len(_entries) > _MOST else None
        _dropped += oldest is not None
    return number  # the oldest entry is destroyed now, outside of the lock


def note_look(number: int | None, status: Status, label: str = "") -> None:
    """Records what a monitor saw, which makes the scaler the latest.

    Args:
        number: from :func:`enter`; ``None`` for one that scaled nothing.
        status: its state.
        label: of the model that it trains.
    """
    with _lock:
        entry = _entries.pop(number, None) if number is not None else None
        if entry is not None and number is not None:
            entry.note(status)
            entry.label = label or entry.label
            _entries[number] = entry


def statuses() -> tuple[list[tuple[str, Status]], int]:
    """The label and status of each scaler that made a step, the latest last, and the number of scalers left out."""
    return [(entry.label, status) for entry, status in _looks()], _dropped


def curves() -> list[Curve]:
    """The loss scale over time of each scaler that made a step."""
    found = []
    for entry, now in _looks():
        points = sorted({*entry.points, (now.steps, now.scale, now.skipped)})
        found.append(Curve(entry.label, now.scale, now.steps, now.skipped, points))
    return found


def _looks() -> list[tuple[_Entry, Status]]:
    """The scalers that made a step, each with its current status."""
    with _lock:
        entries = list(_entries.values())
    return [(entry, status) for entry in entries if (status := _look(entry)) is not None and status.steps]


def forget() -> None:
    """Empties the ledger. Tests need it."""
    global _dropped
    with _lock:
        _entries.clear()
        _dropped = 0


def _look(entry: _Entry) -> Status | None:
    try:
        return entry.read()
    except Exception:  # its devices are gone, as at the end of a cluster
        return entry.last
