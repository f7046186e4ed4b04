"""Loops that do not scale their loss although the process runs in float16: never divided silently, told once."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

import amp_tf
from tests.hooks.loss_scaling_setup import X, Y, installed, make_model


class ForgetsToScale(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def test_case_28_and_k05_a_train_step_that_does_not_scale_is_not_divided_but_told(log):
    weights = []
    for context in (installed(), contextlib.nullcontext()):
        with context:
            model = make_model(keras, ForgetsToScale)
            model.compile(keras.optimizers.SGD(0.0625), "mse")
            model.fit(X, Y, epochs=3, verbose=0, shuffle=False)
            weights.append(model.get_weights())
    for actual, expected in zip(*weights, strict=True):
        np.testing.assert_array_equal(actual, expected)
    warnings = log("never scaled")
    assert len(warnings) == 1
    assert "optimizer.scale_loss(loss)" in warnings[0]


def custom_loop(optimizer, weight):
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight**2)
            loss = optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    step()


def test_a_custom_loop_in_float16_without_scaling_is_warned_once_with_what_to_write(library, log):
    with installed():
        for _ in range(2):
            custom_loop(library.optimizers.SGD(0.5), tf.Variable([1.0]))
    warnings = log("custom training loop runs in float16 without loss scaling")
    assert len(warnings) == 1
    assert "optimizer = amp_tf.LossScaleOptimizer(optimizer)" in warnings[0]
    assert "optimizer.scale_loss(loss)" in warnings[0]


def test_a_custom_loop_that_scales_or_does_not_run_in_float16_is_not_warned(library, log):
    with installed():
        custom_loop(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5)), tf.Variable([1.0]))
        if library is keras:
            custom_loop(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5)), tf.Variable([1.0]))
    with installed(in_float16=False):
        custom_loop(library.optimizers.SGD(0.5), tf.Variable([1.0]))
    assert not log("custom training loop")
