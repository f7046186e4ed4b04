"""``amp_tf.time``: a function in this process, in float32 and in 16 bit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.errors import AmpError, ConfigError
from amp_tf.reporting import reports

BF16 = amp_tf.AmpConfig(precision="bfloat16")


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr("amp_tf.tools.timing.calls._SECONDS", 0.0)


X = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)


def check(timed, step):
    assert timed.step == step
    assert len(timed.float32) == len(timed.mixed) == 3
    for run in timed.float32 + timed.mixed:
        assert len(run.step_ms) == 5
        assert run.first_s > 0
    assert "converted to bfloat16" in timed.summary
    assert not amp_tf.is_enabled()


@pytest.mark.parametrize("wrap", [lambda function: function, tf.function])
def test_each_way_runs_in_its_precision(few, wrap):
    results = []

    def product(x):
        y = tf.matmul(x, x)
        tf.py_function(lambda value: results.append(value.numpy()), [y], [])
        return y

    check(amp_tf.time(wrap(product), X, config=BF16, rounds=3), "product")
    exact = sum(np.array_equal(result, results[0]) for result in results)
    assert exact == len(results) / 2
    np.testing.assert_allclose(results[0], X @ X, rtol=1e-5, atol=1e-5)


def test_a_model_is_timed(few):
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16)], name="small")
    check(amp_tf.time(model, X, config=BF16, rounds=3), "small")


def test_a_training_step_is_timed(few):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    data = (tf.ones((8, 4)), tf.ones((8, 4)))
    before = model.get_weights()[0].copy()
    timed = amp_tf.time(model.train_step, data, config=BF16, rounds=3)
    assert timed.step == "train_step"
    assert not np.array_equal(model.get_weights()[0], before)


def test_where_nothing_is_converted_there_is_nothing_to_time(few):
    why = r"there is nothing to time \(.* 0 of \d+ nodes converted.*\. "
    with pytest.raises(AmpError, match=f"{why}Only what computes with float32 is converted; NumPy"):
        amp_tf.time(lambda x: x + 1.0, tf.ones(3), config=BF16)
    auto = amp_tf.AmpConfig(target="cpu")
    with pytest.raises(AmpError, match=f"{why}Name a precision, as in config="):
        amp_tf.time(lambda x: x + 1.0, tf.ones(3), config=auto)


def test_why_nothing_is_timed_names_no_other_function(few):
    other = tf.function(lambda x: tf.matmul(x, x) + 2.0)
    other(tf.ones((4, 4)))
    for function in (tf.negative, lambda x: tf.reduce_sum(tf.tanh(x * 2.0) + 1.0) / 3.0):
        with pytest.raises(AmpError) as error:
            amp_tf.time(function, tf.ones((4, 4)), config=BF16)
        assert "such as" not in str(error.value)
        assert "no product of the traced function" not in str(error.value)


def test_misuse_is_refused():
    with amp_tf.enable(BF16), pytest.raises(ConfigError, match=r"amp_tf\.time: amp_tf is on"):
        amp_tf.time(tf.abs, 1.0)
    with pytest.raises(ConfigError, match=r"amp_tf\.time, rounds: 'many' is not a valid value"):
        amp_tf.time(tf.abs, 1.0, rounds="many")
    for minutes in (None, 0, -1.0, float("nan")):
        with pytest.raises(
            ConfigError, match=rf"amp_tf\.time, minutes: {minutes} is not a valid v"
        ):
            amp_tf.time(tf.abs, 1.0, minutes=minutes)


def test_the_report_of_the_process_stays_as_it_is(few):
    with amp_tf.enable(BF16):
        tf.function(lambda x: tf.nn.relu(tf.matmul(tf.nn.relu(x), x)))(X)
    before = reports.totals()
    assert before.converted
    amp_tf.time(tf.function(lambda x: tf.matmul(x, x)), X, config=BF16, rounds=3)
    assert reports.totals() == before
    reports.reset()
