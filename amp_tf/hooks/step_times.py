"""Measures how long the program's own steps take, if a report or ``amp-tf time`` asks for it.

A step of Keras lasts from the end of the one before to its own end, so it includes waiting for data
and callbacks; the first step of an epoch begins with the epoch. A call of a ``tf.function`` or a
session's run lasts until it returns, which on a GPU may be before the work is done, unless the
program reads a result. Functions called by another one, and those of Keras' own steps, are not
counted again. If there are very many kinds of steps, the shortest are dropped.
"""

from __future__ import annotations

import collections
import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

from amp_tf.hooks import internals, state
from amp_tf.hooks.patches import Patches

KERAS = "Keras"
FUNCTION = "tf.function"
SESSION = "session"
_KERAS_LIBRARIES = ("keras", "tf_keras")
# The names in callbacks, and the users' names.
_KINDS = {"train": "fit", "test": "evaluate", "predict": "predict"}
_KEPT = 1000  # last steps of each kind
_REPORTED = 20  # kinds in a report
_NAMED = 3  # fetches that name a run
_MOST_KINDS = 200  # a program may create functions without end
# For instance a step whose batch number is not a number.
_unmeasured = contextlib.suppress(Exception)


class _Steps:
    """The times of one kind of steps, in seconds. Not thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.first: float | None = None  #: which traces
        self.later: collections.deque[float] = collections.deque(maxlen=_KEPT)

    def add(self, seconds: float, count: int) -> None:
        self.count += count
        self.total += seconds
        if self.first is None:
            self.first = seconds / count
        else:
            self.later.append(seconds / count)

    def row(self, way: str, name: str) -> dict[str, Any]:
        known = self.later or [self.first or 0.0]
        return {
            "way": way,
            "what": name,
            "steps": self.count,
            "seconds": round(self.total, 6),
            "first_ms": round(1e3 * (self.first or 0.0), 6),
            "median_ms": round(1e3 * statistics.median(known), 6),
            "fastest_ms": round(1e3 * min(known), 6),
        }


class _Table(dict[tuple[str, str], _Steps]):
    """The times of the process' steps, by way and name. The runtime's lock guards it."""


# An attribute of a list of callbacks: for each kind the next step, and when the last one ended.
_MARKS = "_amp_tf_marks"


def install(patches: Patches) -> None:
    """Measures from now on, in the libraries that are imported; the times stay for the report.

    Idempotent.
    """
    state.watch_collections()
    internals.STEP_BEGINS.surround(patches, _begin)
    internals.STEP_ENDS.surround(patches, _end)
    internals.STEPS_ALONE.surround(patches, _call_model)
    internals.TRAIN_ALONE.surround(patches, _call_model)
    internals.CALL_TF_FUNCTION.surround(patches, _call_function)
    internals.RUN_SESSION.surround(patches, _run_session)


def rows() -> list[dict[str, Any]]:
    """The times so far, the kind that took longest first."""
    with state.current().lock:
        found = [steps.row(way, name) for (way, name), steps in state.record(_Table).items()]
    return sorted(found, key=lambda row: -row["seconds"])[:_REPORTED]


def reset() -> None:
    """Forgets the times."""
    with state.current().lock:
        state.record(_Table).clear()


def _add(way: str, name: str, seconds: float, count: int, subject: Any = None) -> None:
    with state.current().lock:
        table = state.record(_Table)
        table.setdefault((way, name), _Steps()).add(seconds, count)
        if len(table) > _MOST_KINDS:
            del table[min(table, key=lambda kind: table[kind].total)]
    on_step = state.current().on_step
    if on_step is not None:
        on_step(way, name, seconds, count, subject)


def _begin(call: Any) -> Any:
    with _unmeasured:
        kind, marks, batch = _place_of(call)
        if not batch or kind not in marks:
            marks[kind] = (batch, time.perf_counter())
    return call()


def _end(call: Any) -> Any:
    result = call()
    with _unmeasured:
        now = time.perf_counter()
        kind, marks, batch = _place_of(call)
        first, since = marks.get(kind, (batch, now))
        _add(KERAS, _KINDS[kind], now - since, max(1, batch - first + 1))
        marks[kind] = (batch + 1, now)
    return result


def _place_of(call: Any) -> tuple[str, dict[str, tuple[int, float]], int]:
    """The kind of steps that a list of callbacks is called for, its marks, and the batch."""
    callbacks, batch = call.args[:2]
    kind = call.func.__name__.split("_")[1]  # of on_train_batch_end
    return kind, vars(callbacks).setdefault(_MARKS, {}), batch


def _call_model(call: Any) -> Any:
    with _timing(KERAS, call.func.__name__):
        return call()


def _call_function(call: Any) -> Any:
    function = call.args[0]
    if not _is_a_step(function):
        return call()
    with _timing(FUNCTION, str(getattr(function, "__name__", "a function")), function):
        return call()


def _run_session(call: Any) -> Any:
    session, *others = call.args
    fetches = call.keywords.get("fetches", others and others[0])
    with _timing(SESSION, _name_of(fetches), (session, fetches)):
        return call()


@contextlib.contextmanager
def _timing(way: str, name: str, subject: Any = None) -> Iterator[None]:
    """Measures a call. Calls inside it are not counted, and neither is a call that raises."""
    if getattr(state.current().here, "is_timed", False) or state.is_collecting():
        yield
        return
    begin = time.perf_counter()
    with state.within(is_timed=True):
        yield
    with _unmeasured:
        _add(way, name, time.perf_counter() - begin, 1, subject)


def _is_a_step(function: Any) -> bool:
    """Tells whether the program itself calls a function.

    A trace may also call it, and Keras, whose steps are counted.
    """
    import tensorflow as tf

    home = str(getattr(function.python_function, "__module__", "")).partition(".")[0]
    return home not in _KERAS_LIBRARIES and tf.executing_eagerly()


def _name_of(fetches: Any) -> str:
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if not isinstance(fetches, (list, tuple)):
        fetches = [fetches]
    names = [str(getattr(each, "name", type(each).__name__)) for each in fetches[:_NAMED]]
    if len(fetches) > _NAMED:
        names.append("…")
    return ", ".join(names)
