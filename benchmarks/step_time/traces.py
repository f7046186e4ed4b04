"""Reads what TensorFlow's profiler wrote."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_PS = 1e9  # in a millisecond


@dataclasses.dataclass(frozen=True)
class Event:
    """One event of the host.

    Attributes:
        name: for a kernel, ``node:op``.
        start_ps, ms: when it began, and how long it took.
        details: what the profiler knows of it, by name.
    """

    name: str
    start_ps: int
    ms: float
    details: dict[str, Any]


def record(run: Callable[[], object]) -> list[Event]:
    """Runs something under the profiler and returns the events, in order of time."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        with contextlib.ExitStack() as stack:
            stack.callback(tf.profiler.experimental.stop)
            run()
        return sorted(_events(Path(folder)), key=lambda event: event.start_ps)


def kernels(events: Iterable[Event]) -> Iterator[tuple[str, Event]]:
    """The kernels among the events, each with its op."""
    from tensorflow.python.framework import op_def_registry

    for event in events:
        node, separator, op = event.name.rpartition(":")
        if node and separator and op_def_registry.get(op) is not None:
            yield op, event


def shares(events: Sequence[Event]) -> list[float]:
    """The milliseconds by the clock that are each event's own: what several share counts in equal
    parts.

    So the figures of events that run side by side, each slowed by the others, add up to the time in
    which any ran.
    """
    moments = []
    for number, event in enumerate(events):
        lasts_ps = round(event.ms * _PS)
        if lasts_ps > 0:
            moments.append((event.start_ps, True, number))
            moments.append((event.start_ps + lasts_ps, False, number))
    moments.sort()  # by which what ends at a moment comes before what starts then
    own = [0.0] * len(events)
    active: set[int] = set()
    now = 0
    for moment, starts, number in moments:
        for running in active:
            own[running] += (moment - now) / _PS / len(active)
        now = moment
        if starts:
            active.add(number)
        else:
            active.discard(number)
    return own


def _events(folder: Path) -> Iterator[Event]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for path in folder.rglob("*.xplane.pb"):
        for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
            for line in plane.lines:
                for event in line.events:
                    title = plane.event_metadata[event.metadata_id].name
                    start = line.timestamp_ns * 1000 + event.offset_ps
                    details = _details(event.stats, plane.stat_metadata)
                    yield Event(title, start, event.duration_ps / _PS, details)


def _details(stats: Iterable[Any], metadata: Any) -> dict[str, Any]:
    """The details of an event by name; a reference is to the name of another detail."""
    found = {}
    for stat in stats:
        kind = stat.WhichOneof("value")
        value = None
        if kind == "ref_value":
            value = metadata[stat.ref_value].name
        elif kind:
            value = getattr(stat, kind)
        found[metadata[stat.metadata_id].name] = value
    return found
