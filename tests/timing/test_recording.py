"""Calls of a program count as its steps, until there are enough."""

import json
import os
import types

import pytest
import tensorflow as tf

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

    def steps(number, way, name, seconds, pause=0.0, count=1, subject=None):
        for _ in range(number):
            clock.seconds += pause + seconds
            recorder.add(way, name, seconds, count, subject)

    return recorder, steps


def answer(folder):
    return json.loads((folder / f"{os.getpid()}.json").read_text())


def test_of_a_program_that_trains_the_step_is_one_of_fit(make, tmp_path):
    recorder, steps = make
    steps(5, step_times.KERAS, "fit", 0.01)
    steps(50, step_times.KERAS, "evaluate", 0.1)
    recorder.write()
    assert (answer(tmp_path)["step"], answer(tmp_path)["calls"]) == ("fit", 5)


@tf.function
def prepare(x):
    return tf.abs(x) + 1.0


@tf.function
def train(x):
    return prepare(tf.matmul(x, x))


@pytest.fixture(params=[step_times.FUNCTION, step_times.SESSION])
def subjects(request):
    """A step that prepares and a step that trains, of each way."""
    if request.param == step_times.FUNCTION:
        for function in (prepare, train):
            function(tf.ones((2, 2)))
        yield step_times.FUNCTION, prepare, train
        return
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.abs(tf.ones((2, 2)), name="x")
        product = tf.matmul(x, x)
        yield step_times.SESSION, (session, "x:0"), (session, {"loss": [product, product.op]})


def test_what_has_no_products_is_not_the_step_of_a_program_that_computes_some(
    make, subjects, tmp_path, monkeypatch
):
    _, steps = make
    way, preparing, training = subjects
    monkeypatch.setattr(recording, "_SECONDS", 1.0)
    steps(200, way, "prepare", 0.1, subject=preparing)
    steps(5, way, "train", 0.1, subject=training)
    steps(100, way, "prepare", 0.1, subject=preparing)
    with pytest.raises(SystemExit):
        steps(200, way, "train", 0.1, subject=training)
    assert (answer(tmp_path)["step"], answer(tmp_path)["calls"]) == ("train", 8)


def test_a_program_that_computes_no_products_ends_after_a_longer_time(
    make, subjects, tmp_path, monkeypatch
):
    _, steps = make
    way, preparing, _ = subjects
    monkeypatch.setattr(recording, "_SECONDS", 1.0)
    steps(8, way, "prepare", 10.0, subject=preparing)
    with pytest.raises(SystemExit):
        steps(9, way, "prepare", 10.0, subject=preparing)
    assert answer(tmp_path)["step"] == "prepare"


def test_a_step_that_is_named_is_timed_whatever_it_is(clock, subjects, tmp_path, monkeypatch):
    way, preparing, training = subjects
    recorder = Recorder(tmp_path, "prepare")
    monkeypatch.setattr(recording, "_SECONDS", 0.0)
    for _ in range(7):
        recorder.add(way, "train", 1.0, 1, training)
        recorder.add(way, "prepare", 1.0, 1, preparing)
    with pytest.raises(SystemExit):
        recorder.add(way, "prepare", 1.0, 1, preparing)
    assert answer(tmp_path)["step"] == "prepare"


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


def test_an_evaluation_does_not_end_a_program_that_trains(make, monkeypatch):
    _, steps = make
    monkeypatch.setattr(recording, "_SECONDS", 1.0)
    steps(1, step_times.KERAS, "fit", 0.01)
    steps(200, step_times.KERAS, "evaluate", 0.1)
    with pytest.raises(SystemExit):
        steps(200, step_times.KERAS, "fit", 0.01)
