"""Loops that do not scale their loss although the process runs in float16: never divided silently, told once."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from tests.hooks.loss_scaling.setup import X, Y, installed, make_model


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
    (warning,) = log("amp_tf")
    assert "optimizer 'sgd" in warning.lower()
    assert "optimizer.scale_loss(loss)" in warning


STEPS = {
    "apply_gradients": lambda optimizer, gradient, weight: optimizer.apply_gradients([(gradient, weight)]),
    "apply": lambda optimizer, gradient, weight: optimizer.apply([gradient], [weight]),
}


def custom_loop(optimizer, weight, step="apply_gradients"):
    @tf.function
    def train():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight**2)
            loss = optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
        STEPS[step](optimizer, tape.gradient(loss, weight), weight)

    tf.distribute.get_strategy().run(train)


def variable():
    return tf.Variable([1.0])


def test_a_custom_loop_in_float16_without_scaling_is_warned_once_with_what_to_write(library, log):
    with installed():
        for _ in range(2):
            custom_loop(library.optimizers.SGD(0.5), variable())
    warnings = log("custom training loop runs in float16 without loss scaling")
    assert len(warnings) == 1
    assert "optimizer = amp_tf.LossScaleOptimizer(optimizer)" in warnings[0]
    assert "optimizer.scale_loss(loss)" in warnings[0]


@pytest.mark.parametrize("step", STEPS)
def test_each_method_of_keras_3_that_makes_a_step_is_named_in_the_warning(step, log):
    with installed():
        custom_loop(keras.optimizers.SGD(0.5), variable(), step)
    (warning,) = log("custom training loop")
    assert f"SGD.{step}:" in warning


def test_a_custom_loop_that_scales_or_does_not_run_in_float16_is_not_warned(library, log):
    with installed():
        custom_loop(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5)), variable())
    with installed(in_float16=False):
        custom_loop(library.optimizers.SGD(0.5), variable())
    assert not log("custom training loop")


@pytest.mark.parametrize("wrap", [amp_tf.LossScaleOptimizer, keras.optimizers.LossScaleOptimizer])
@pytest.mark.parametrize("replicated", [False, True])  # a strategy calls the inner optimizer on another thread
@pytest.mark.parametrize("step", STEPS)
def test_the_optimizers_inside_a_wrapper_are_not_warned_of(wrap, replicated, step, log):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"]) if replicated else tf.distribute.get_strategy()
    with installed(), strategy.scope() if replicated else contextlib.nullcontext():
        optimizer, weight = wrap(keras.optimizers.SGD(0.5)), variable()
        optimizer.build([weight])
        custom_loop(optimizer, weight, step)
        assert not log("custom training loop")
        custom_loop(keras.optimizers.SGD(0.5), weight, step)
        assert len(log("custom training loop")) == 1


@pytest.mark.parametrize("settings", [{"dynamic": False}, {"enabled": False}])
def test_a_wrapper_with_a_fixed_scale_or_none_is_not_warned_of(settings, log):
    with installed():
        custom_loop(amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5), **settings), variable())
        custom_loop(keras.optimizers.SGD(0.5, loss_scale_factor=8.0), variable(), "apply")
    assert not log("custom training loop")
