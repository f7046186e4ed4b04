"""Calls of a program's functions as batches, and what its hooks do where a comparison fails."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.hooks.process import notices
from amp_tf.tools.comparing.functions import again, with_elements
from amp_tf.tools.comparing.training import CompareRequest, Training
from amp_tf.tools.train_functions import as_function, kept


@pytest.fixture(autouse=True)
def forgotten():
    notices.forget()
    yield
    notices.forget()


def _fail(folder):
    training = Training(CompareRequest(folder, AmpConfig(), 8))
    with training.surviving():
        raise ValueError("no data")
    return training


def test_a_program_goes_on_where_the_command_has_ended(tmp_path):
    training = _fail(tmp_path / "gone")
    assert not training.is_awaited


def test_the_answer_says_why_there_is_none(tmp_path):
    assert _fail(tmp_path).request.read_answer() == {"error": "ValueError: no data"}


def test_what_another_process_found_stays(tmp_path):
    request = CompareRequest(tmp_path, AmpConfig(), 8)
    request.answer({"comparison": {}, "text": "healthy"})
    _fail(tmp_path)
    assert request.read_answer() == {"comparison": {}, "text": "healthy"}


CONFIG = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
X = np.random.default_rng(0).normal(size=(16, 16)).astype("float32")


def test_a_variable_among_the_arguments_stays_a_variable():
    weight, other = tf.Variable(tf.ones((16, 16))), tf.Variable(tf.ones((16, 16)))

    def step(x, w):
        w.assign_sub(0.1 * tf.matmul(x, x))
        return tf.reduce_sum(tf.matmul(x, w))

    calls = [kept((given, {})) for given in ((X, weight), (X, other), (tf.constant(X), weight))]
    function, batches = as_function("step", step, calls)
    assert len(batches) == 2  # the one with another variable is another step
    found = amp_tf.compare(function, batches, CONFIG)
    assert [(output.kind, output.name) for output in found.outputs if output.kind == "update"] == [
        ("update", "Variable")
    ]
    np.testing.assert_array_equal(weight, np.ones((16, 16)))


def test_what_was_taken_of_an_iterator_is_known_also_where_a_dataset_is_empty():
    data = tf.data.Dataset.range(6)
    iterator, empty, taken = iter(data), data.take(0), {}
    with pytest.raises(amp_tf.GraphError, match="is empty"):
        with_elements(lambda *_: None, ((iterator, empty), {}), 4, taken)
    assert [int(one) for one in taken[id(iterator)]] == [0, 1, 2, 3]
    assert [int(one) for one in itertools.islice(again(taken[id(iterator)], iterator), 9)] == list(range(6))
