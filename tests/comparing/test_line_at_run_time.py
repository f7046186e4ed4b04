"""The line that is written does at run time, where TensorFlow fuses nodes first, what it did in the comparison."""

import dataclasses

import keras
import numpy as np
import pytest

import amp_tf

CONFIG = amp_tf.AmpConfig(precision="float16", target="cpu")


def _model():
    keras.backend.clear_session()  # as in a process of its own: names start anew
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(16, activation="relu", name="features"),
            layers.Dense(16, activation="tanh", name="hidden"),
            layers.Dense(1, name="price"),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


def _data():
    rng = np.random.default_rng(1)
    income, rooms = rng.lognormal(11, 0.6, (256, 1)), rng.integers(1, 9, (256, 1))
    return np.hstack([income, rooms]).astype(np.float32), (income * 3e-5 + rooms * 0.2).astype(np.float32)


def _losses(x, y, config=None):
    if config is None:
        return _model().fit(x, y, epochs=2, batch_size=64, verbose=0).history["loss"]
    with amp_tf.enable(config):
        return _model().fit(x, y, epochs=2, batch_size=64, verbose=0).history["loss"]


@pytest.fixture(autouse=True)
def _off_again():
    yield
    amp_tf.disable()


def test_layers_that_an_earlier_model_recorded_are_not_those_of_this_one():
    keras.backend.clear_session()
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="other")])
    other.compile("sgd", "mse")
    x, y = _data()
    with amp_tf.enable(CONFIG):
        other.fit(x, y, batch_size=64, verbose=0)
    model = _model()
    assert model.name == other.name
    found = amp_tf.compare(model, [(x[:64], y[:64])], CONFIG)
    assert "features_1" in found.findings[0].layer
    assert found.patterns != (f"layer:{other.name}",)  # all of the model


def test_a_model_that_never_takes_a_step_trains_with_the_line():
    x, y = _data()
    found = amp_tf.compare(_model(), [(x[start : start + 64], y[start : start + 64]) for start in (0, 64)], CONFIG)
    assert [finding.kind for finding in found.findings] == ["overflow"] * len(found.findings)
    assert "features_1" in found.findings[0].node
    assert found.mends

    without = _losses(x, y, CONFIG)
    assert without[0] == pytest.approx(without[1], nan_ok=True)  # every step is skipped
    with_line = _losses(x, y, dataclasses.replace(CONFIG, keep_float32=found.patterns))
    assert amp_tf.report().graphs[-1].unmatched == ()
    assert with_line[1] < with_line[0]
    assert with_line == pytest.approx(_losses(x, y), rel=0.1)  # the scale falls first: two steps are skipped
