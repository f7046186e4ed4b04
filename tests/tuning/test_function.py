"""``amp_tf.tune`` on a real model, in this process."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import amp_tf
from amp_tf.hooks import state as process_state

BF16 = amp_tf.AmpConfig(precision="bfloat16")
rng = np.random.default_rng(0)
SIGNAL = rng.normal(size=(64, 16)).astype("float32")
X = (SIGNAL + 300.0).astype("float32")
EXPECTED = (SIGNAL - SIGNAL.mean(1, keepdims=True)) / SIGNAL.std(1, keepdims=True)


class Normalized(keras.layers.Layer):
    """Loses everything in 16 bit: the square of the mean is 90,000, and the variance is one."""

    def call(self, values):
        with amp_tf.scope("f16"):
            mean = ops.mean(values, -1, keepdims=True)
            square = ops.mean(values * values, -1, keepdims=True)
            return (values - mean) / ops.sqrt(ops.abs(square - mean * mean) + 1e-3)


def error_of_trained() -> float:
    """How far the result of a model that normalizes is off; one step of training changes nothing."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((16,))
    hidden = Normalized(name="normalized")(inputs)
    outputs = keras.layers.Dense(16, kernel_initializer="identity", name="out")(hidden)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(X, EXPECTED, batch_size=32, verbose=0)
    return float(np.abs(model.predict(X, verbose=0) - EXPECTED).mean())


def test_the_layer_that_loses_accuracy_is_found_and_written(tmp_path: Path) -> None:
    lines: list[str] = []
    lock = tmp_path / "amp.lock"
    before = process_state.current().config
    tuned = amp_tf.tune(error_of_trained, max_rise=0.05, config=BF16, lock=str(lock), tell=lines.append)
    assert tuned.lock is not None
    (decision,) = tuned.lock.decisions
    assert (decision.layer.keras or decision.layer.path).endswith("normalized")
    assert tuned.lock.found["mixed"] > 0.1 > tuned.limit > tuned.lock.found["tuned"]
    assert tuned.runs == sum(line.startswith("run ") for line in lines) <= 15
    assert "comparing one step in float32 and in 16 bit" in lines
    assert not amp_tf.is_enabled()
    assert process_state.current().config == before
    with amp_tf.enable(BF16, lock=lock):
        assert error_of_trained() == pytest.approx(tuned.lock.found["tuned"], rel=1e-3)


def test_one_bound_is_wanted() -> None:
    for bounds in ({}, {"max_drop": 1.0, "max_rise": 1.0}):
        with pytest.raises(amp_tf.ConfigError, match="expected max_drop or max_rise"):
            amp_tf.tune(lambda: 1.0, **bounds)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_rise": float("nan")}, "max_rise: nan is not a change. Write 0 or more"),
        ({"max_rise": -1}, "max_rise: -1 is not a change"),
        ({"max_drop": float("inf")}, "max_drop: inf is not a change"),
        ({"max_drop": "0.1"}, "max_drop: '0.1' is not a change"),
        ({"max_drop": 0.1, "max_runs": 2}, "max_runs: 2 runs are too few. Write 5 or more"),
        ({"max_drop": 0.1, "lock": "missing/amp.lock"}, r"missing/amp.lock: cannot be written \(No such file"),
    ],
)
def test_what_cannot_be_is_said_before_any_run(tmp_path, monkeypatch, settings, message) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(amp_tf.AmpError, match=message):
        amp_tf.tune(lambda: pytest.fail("it was run"), config=BF16, **settings)


def test_amp_tf_must_be_off() -> None:
    with amp_tf.enable(BF16), pytest.raises(amp_tf.ConfigError, match="amp_tf is on"):
        amp_tf.tune(lambda: 1.0, max_drop=0.1)


def test_an_error_of_the_function_is_told(tmp_path: Path) -> None:
    def train() -> float:
        raise ValueError("no data")

    with pytest.raises(amp_tf.AmpError, match=r"there is no metric in float32 \(ValueError: no data\)"):
        amp_tf.tune(train, max_drop=0.1, config=BF16, lock=str(tmp_path / "amp.lock"), tell=lambda line: None)
