"""Calls of a program count as its steps, until there are enough."""

import json
import os
import types

import pytest

from amp_tf.hooks import step_times
from amp_tf.tools.timing import recording
from amp_tf.tools.timing.recording import Recorder


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only where a test says so."""
    now = types.SimpleNamespace(seconds=0.0)
    fake = types.SimpleNamespace(perf_counter=lambda: now.seconds)
    monkeypatch.setattr(recording, "time", fake)
    return now


@pytest.fixture
def make(clock, monkeypatch, tmp_path):
    """Makes steps: a way, a name, how long each takes, and what passes before it."""
    monkeypatch.setattr(recording, "_SECONDS", 1e9)
    recorder = Recorder(tmp_path, "")

    def steps(number, way, name, seconds, pause=0.0, count=1):
        for _ in range(number):
            clock.seconds += pause + seconds
            recorder.add(way, name, seconds, count)

    return recorder, steps


def answer(folder):
    return json.loads((folder / f"{os.getpid()}.json").read_text())


def test_of_a_program_that_trains_the_step_is_one_of_fit(make, tmp_path):
    recorder, steps = make
    steps(5, step_times.KERAS, "fit", 0.01)
    steps(50, step_times.KERAS, "evaluate", 0.1)
    recorder.write()
    assert (answer(tmp_path)["step"], answer(tmp_path)["calls"]) == ("fit", 5)


def test_else_it_is_what_takes_longest(make, tmp_path):
    recorder, steps = make
    steps(50, step_times.FUNCTION, "prepare", 0.01)
    steps(20, step_times.FUNCTION, "act", 0.1)
    recorder.write()
    assert answer(tmp_path)["step"] == "act"


@pytest.mark.parametrize(("way", "ms"), [(step_times.KERAS, 10.0), (step_times.FUNCTION, 30.0)])
def test_a_call_lasts_from_the_end_of_the_one_before_and_the_first_three_do_not_count(
    make, tmp_path, way, ms
):
    recorder, steps = make
    steps(8, way, "fit", 0.01, pause=0.02)
    recorder.write()
    assert answer(tmp_path)["step_ms"] == pytest.approx([ms] * 5)
    assert answer(tmp_path)["first_end"] == pytest.approx(0.03)


def test_a_call_may_make_several_steps(make, tmp_path):
    recorder, steps = make
    steps(4, step_times.KERAS, "fit", 0.08, count=8)
    recorder.write()
    assert answer(tmp_path)["step_ms"] == pytest.approx([10.0])


def test_enough_steps_end_the_program_once(make, tmp_path, monkeypatch):
    _, steps = make
    monkeypatch.setattr(recording, "_SECONDS", 1.0)
    with pytest.raises(SystemExit):
        steps(200, step_times.KERAS, "fit", 0.01)
    assert answer(tmp_path)["is_enough"]
    assert len(answer(tmp_path)["step_ms"]) == pytest.approx(100, abs=1)
    steps(200, step_times.KERAS, "fit", 0.01)  # of a program that goes on
    assert len(answer(tmp_path)["step_ms"]) == pytest.approx(100, abs=1)


def test_an_evaluation_does_not_end_a_program_that_trains(make, monkeypatch):
    _, steps = make
    monkeypatch.setattr(recording, "_SECONDS", 1.0)
    steps(1, step_times.KERAS, "fit", 0.01)
    steps(200, step_times.KERAS, "evaluate", 0.1)
    with pytest.raises(SystemExit):
        steps(200, step_times.KERAS, "fit", 0.01)
