"""A converted SavedModel computes batch normalization in the convolutions before it.

Keras' models compute in functions, so it is the functions that are folded.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.offline.saved_model import convert_saved_model
from amp_tf.oplists.hardware import Hardware

AUTO = amp_tf.AmpConfig()
BF16_CPU = Hardware(cpu_has_bf16=True)
TOLERANCE = 0.03  # of the largest value: three products in bfloat16, which has 8 bits
IMAGES = np.random.default_rng(1).normal(size=(4, 40, 40, 32)).astype(np.float32)


def _model():
    """A convolution with a bias, one without, and a depthwise one with a bias, each normalized."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((40, 40, 32), name="images"),
            layers.Conv2D(64, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(64, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.DepthwiseConv2D(3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(6.0),
            layers.Conv2D(64, 1),
        ]
    )
    random = np.random.default_rng(0)
    for variable in model.variables:
        if variable.ndim == 1:  # biases, and what normalizes
            variable.assign(random.uniform(0.5, 1.5, variable.shape))
    return model


def _save(model, folder):
    tf.saved_model.save(model, str(folder))


def _export(model, folder):
    model.export(str(folder), verbose=False)


@pytest.fixture(scope="module", params=[_export, _save], ids=["export", "save"])
def converted(request, tmp_path_factory):
    """The folder of a model, that of its copy, and the report."""
    base = tmp_path_factory.mktemp("folded")
    request.param(_model(), base / "f32")
    report = convert_saved_model(base / "f32", base / "amp", AUTO, hardware=BF16_CPU)
    return base / "f32", base / "amp", report


def _answer(model):
    (answer,) = model.signatures["serving_default"](tf.constant(IMAGES)).values()
    return answer.numpy()


def _check_close(found, exact):
    np.testing.assert_allclose(found, exact, rtol=0, atol=TOLERANCE * np.abs(exact).max())


def test_the_functions_of_a_keras_model_are_folded_and_their_answers_are_those_of_float32(
    converted,
):
    f32, amp, report = converted
    folded = {graph.function: graph.folded for graph in report.graphs if graph.folded}
    assert set(folded.values()) == {3}
    exact = tf.saved_model.load(f32)
    copy = tf.saved_model.load(amp)
    found = _answer(copy)
    assert not np.array_equal(found, _answer(exact))  # it did compute in 16 bit
    _check_close(found, _answer(exact))


def test_values_that_are_assigned_to_the_copys_variables_count(converted):
    answers = []
    for folder in converted[:2]:
        model = tf.saved_model.load(folder)
        before = _answer(model)
        for variable in model.signatures["serving_default"].variables:
            if variable.shape.rank == 1:
                steps = tf.range(variable.shape[0], dtype=tf.float32) / 50.0
                variable.assign_add(0.5 + steps)
        answers.append(_answer(model))
        assert np.abs(answers[-1] - before).max() > 0.5 * np.abs(before).max()
    _check_close(answers[1], answers[0])


def test_filters_that_are_stored_in_16_bit_are_read_as_they_are(converted, tmp_path):
    report = convert_saved_model(
        converted[0], tmp_path / "stored", AUTO, hardware=BF16_CPU, weights="f16"
    )
    assert report.folded == 0 < converted[2].folded
    assert {variable.shape for variable in report.weights.stored} >= {
        (3, 3, 32, 64),
        (3, 3, 64, 64),
    }
    exact = tf.saved_model.load(converted[0])
    copy = tf.saved_model.load(tmp_path / "stored")
    _check_close(_answer(copy), _answer(exact))
