"""40 random training runs with faults: the weights are those of a run that never saw the faulty steps."""

import collections

import pytest

from tests.loss_scaling.test_distribution import finish, start

COUNT = 40


@pytest.fixture(scope="module")
def runs():
    return finish(start("faults.py", str(COUNT)), seconds=570)


@pytest.mark.slow
def test_faults_leave_no_trace_in_40_random_runs(runs):
    assert len(runs) == COUNT
    assert [run for run in runs if not all(run["outcome"].values())] == []


@pytest.mark.slow
def test_the_random_runs_cover_what_they_are_meant_to(runs):
    drawn = collections.Counter()
    names = ("strategy", "precision", "mode", "accumulation", "ema", "clip")
    for run in runs:
        drawn.update((name, str(run[name])) for name in names)
        drawn.update(("fault", kind, value) for kind, value, _ in run["faults"].values())
    values = collections.Counter(name for name, *_ in drawn)
    assert values == {"strategy": 2, "precision": 3, "mode": 3, "accumulation": 3, "ema": 2, "clip": 4, "fault": 9}
    assert min(drawn.values()) >= 2
