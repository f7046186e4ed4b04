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
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from amp_tf.hooks import state
from amp_tf.hooks.patches import Patches

KERAS, FUNCTION, SESSION = "Keras", "tf.function", "session"
_CALLBACKS = {"keras": "keras.src.callbacks.callback_list", "tf_keras": "tf_keras.src.callbacks"}
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
    for library, home in _CALLBACKS.items():
        if hasattr(sys.modules.get(library), "Model"):
            model = sys.modules[library].Model
            callbacks = importlib.import_module(home).CallbackList
            for kind in _KINDS:
                patches.put(callbacks, f"on_{kind}_batch_begin", _begin, kind)
                patches.put(callbacks, f"on_{kind}_batch_end", _end, kind)
                name = f"{kind}_on_batch"
                patches.put(model, name, _call, KERAS, lambda *_, name=name, **__: name)
    if hasattr(sys.modules.get("tensorflow"), "compat"):
        from tensorflow.python.client import session
        from tensorflow.python.eager.polymorphic_function import polymorphic_function

        patches.put(polymorphic_function.Function, "__call__", _call, FUNCTION, _name_of_function)
        patches.put(session.BaseSession, "run", _call, SESSION, _name_of_fetches)


def rows() -> list[dict[str, Any]]:
    """The times so far, the kind that took longest first."""
    with state.current().lock:
        found = [steps.row(way, name) for (way, name), steps in state.record(_Table).items()]
    return sorted(found, key=lambda row: -row["seconds"])[:_REPORTED]


def reset() -> None:
    """Forgets the times."""
    with state.current().lock:
        state.record(_Table).clear()


def _add(way: str, name: str, seconds: float, count: int) -> None:
    with state.current().lock:
        table = state.record(_Table)
        table.setdefault((way, name), _Steps()).add(seconds, count)
        if len(table) > _MOST_KINDS:
            del table[min(table, key=lambda kind: table[kind].total)]
    on_step = state.current().on_step
    if on_step is not None:
        on_step(way, name, seconds, count)


def _begin(kind: str, original: Any, self: Any, /, batch: Any, *args: Any, **kwargs: Any) -> Any:
    with _unmeasured:
        marks = vars(self).setdefault(_MARKS, {})
        if not batch or kind not in marks:
            marks[kind] = (batch, time.perf_counter())
    return original(self, batch, *args, **kwargs)


def _end(kind: str, original: Any, self: Any, /, batch: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(self, batch, *args, **kwargs)
    with _unmeasured:
        now = time.perf_counter()
        marks = vars(self).setdefault(_MARKS, {})
        first, since = marks.get(kind, (batch, now))
        _add(KERAS, _KINDS[kind], now - since, max(1, batch - first + 1))
        marks[kind] = (batch + 1, now)
    return result


def _call(
    way: str, name_of: Callable[..., str], original: Any, self: Any, /, *args: Any, **kwargs: Any
) -> Any:
    here = state.current().here
    is_inside = getattr(here, "is_timed", False) or state.is_collecting()
    if is_inside or (way == FUNCTION and not _is_a_step(self)):
        return original(self, *args, **kwargs)
    here.is_timed = True  # and calls inside are not counted
    begin = time.perf_counter()
    try:
        result = original(self, *args, **kwargs)
    finally:
        here.is_timed = False
    seconds = time.perf_counter() - begin
    with _unmeasured:
        _add(way, name_of(self, *args, **kwargs), seconds, 1)
    return result


def _is_a_step(function: Any) -> bool:
    """Tells whether the program itself calls a function.

    A trace may also call it, and Keras, whose steps are counted.
    """
    import tensorflow as tf

    home = str(getattr(function.python_function, "__module__", "")).partition(".")[0]
    return home not in _CALLBACKS and tf.executing_eagerly()


def _name_of_function(function: Any, /, *_: Any, **__: Any) -> str:
    return str(getattr(function, "__name__", "a function"))


def _name_of_fetches(_: Any, /, fetches: Any = None, *__: Any, **___: Any) -> str:
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if not isinstance(fetches, (list, tuple)):
        fetches = [fetches]
    names = [str(getattr(each, "name", type(each).__name__)) for each in fetches[:_NAMED]]
    if len(fetches) > _NAMED:
        names.append("…")
    return ", ".join(names)
