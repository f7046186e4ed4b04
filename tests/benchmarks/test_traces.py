"""What is read from a profile."""

from __future__ import annotations

from benchmarks.step_time.traces import Event, shares


def _event(start_ms: float, ms: float) -> Event:
    return Event("node:MatMul", int(start_ms * 1e9), ms, {})


def test_kernels_side_by_side_share_the_time_by_the_clock():
    events = [_event(0, 4), _event(2, 4), _event(2, 0), _event(7, 1), _event(3, 1)]
    assert shares(events) == [
        2 + 1 / 2 + 1 / 3,  # alone for two, beside one for one, beside two for one
        1 / 2 + 1 / 3 + 2,
        0,
        1,
        1 / 3,
    ]
