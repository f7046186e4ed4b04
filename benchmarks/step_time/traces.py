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
    spans = [(event.start_ps, event.start_ps + round(event.ms * _PS)) for event in events]
    lasting = [(number, start, end) for number, (start, end) in enumerate(spans) if start < end]
    moments = [(start, True, number) for number, start, _ in lasting] + [
        (end, False, number) for number, _, end in lasting
    ]
    own = [0.0] * len(events)
    active: set[int] = set()
    now = 0
    for moment, starts, number in sorted(
        moments
    ):  # what ends at a moment comes before what starts then
        for running in active:
            own[running] += (moment - now) / _PS / len(active)
        now = moment
        (active.add if starts else active.discard)(number)
    return own


def _events(folder: Path) -> Iterator[Event]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for path in folder.rglob("*.xplane.pb"):
        for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
            titles = {key: metadata.name for key, metadata in plane.event_metadata.items()}
            details = {key: metadata.name for key, metadata in plane.stat_metadata.items()}
            for line in plane.lines:
                for event in line.events:
                    start = line.timestamp_ns * 1000 + event.offset_ps
                    stats = dict(_detail(stat, details) for stat in event.stats)
                    yield Event(titles[event.metadata_id], start, event.duration_ps / _PS, stats)


def _detail(stat: Any, names: dict[int, str]) -> tuple[str, Any]:
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind) if kind else None
    return names[stat.metadata_id], names[value] if kind == "ref_value" else value
