"""AutoGraph, which rewrites what a tf.function calls, leaves the wrapper's own code as it is written."""

from __future__ import annotations

from collections.abc import Callable

import keras
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.autograph.impl import api

import amp_tf


def scaled(optimizer, variable, x):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(variable * x))
    optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])


def scaled_and_applied(optimizer, variable, x):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(variable * x))
    optimizer.apply([tape.gradient(loss, variable)], [variable])


def unscaled_by_the_loop(optimizer, variable, x):
    with tf.GradientTape() as tape:
        loss = optimizer.get_scaled_loss(tf.reduce_sum(variable * x))
    gradients = optimizer.get_unscaled_gradients([tape.gradient(loss, variable)])
    optimizer.apply_gradients(zip(gradients, [variable], strict=True))


OPTIMIZERS = {
    "keras": lambda: keras.optimizers.SGD(0.5),
    "tf_keras": lambda: tf_keras.optimizers.SGD(0.5),
    "legacy": lambda: tf_keras.optimizers.legacy.SGD(0.5),
}
STEPS = [
    *((name, step) for name in OPTIMIZERS for step in (scaled, unscaled_by_the_loop)),
    ("keras", scaled_and_applied),
]


@pytest.mark.parametrize(("name", "step"), STEPS)
def test_none_of_its_functions_is_converted(name: str, step: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = amp_tf.LossScaleOptimizer(OPTIMIZERS[name]())
    variable = (keras if name == "keras" else tf).Variable([1.0, 2.0])
    converted = []
    convert = api._convert_actual

    def note(entity, context):
        converted.append(entity.__module__)
        return convert(entity, context)

    monkeypatch.setattr(api, "_convert_actual", note)
    tf.function(lambda x: step(optimizer, variable, x))(tf.constant([4.0, 8.0]))
    assert __name__ in converted  # AutoGraph is at work
    assert [module for module in converted if module.startswith("amp_tf")] == []
    assert variable.numpy().tolist() == [-1.0, -2.0]
