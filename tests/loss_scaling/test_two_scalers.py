"""A loop that has two scalers, as where its optimizer was wrapped by itself: either is enough, and both are refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf

V1 = tf.compat.v1.train
OPTIMIZERS = {
    "keras": lambda: keras.optimizers.SGD(0.5),
    "tf_keras": lambda: tf_keras.optimizers.SGD(0.5),
    "legacy": lambda: tf_keras.optimizers.legacy.SGD(0.5),
    "v1": lambda: V1.GradientDescentOptimizer(0.5),
}


@pytest.fixture(params=OPTIMIZERS)
def optimizer(request):
    return amp_tf.LossScaleOptimizer(OPTIMIZERS[request.param]())


def make_step(optimizer, weight, scaler, scale):
    def apply(gradients):
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))

    def step(poison):
        with tf.GradientTape() as tape:
            loss = scale(tf.reduce_sum(weight) * poison)
        scaler.step(apply, scaler.unscale(tape.gradient(loss, [weight])))

    return step


@pytest.mark.parametrize("traced", [False, True])
def test_a_loss_scaler_decides_for_the_wrapped_optimizer_that_it_calls(optimizer, traced, log):
    weight, scaler = tf.Variable([1.0]), amp_tf.LossScaler(8.0)
    step = make_step(optimizer, weight, scaler, scaler.scale)
    step = tf.function(step) if traced else step
    step(tf.constant(1.0))
    step(tf.constant(np.inf))
    step(tf.constant(1.0))
    assert weight.numpy().tolist() == [0.0]
    assert (scaler.status().skipped, scaler.status().steps) == (1, 3)
    assert optimizer.status().steps == 0
    assert not log("amp_tf")


@pytest.mark.parametrize("order", ["optimizer first", "scaler first"])
def test_a_loss_that_both_scale_is_refused(optimizer, order):
    weight, scaler = tf.Variable([1.0]), amp_tf.LossScaler()
    by_optimizer = getattr(optimizer, "scale_loss", optimizer.get_scaled_loss)

    def both(loss):
        return scaler.scale(by_optimizer(loss)) if order == "optimizer first" else by_optimizer(scaler.scale(loss))

    with pytest.raises(amp_tf.CallOrderError, match=r"the loss is scaled twice.*Leave out one of them"):
        tf.function(make_step(optimizer, weight, scaler, both), autograph=False)(tf.constant(1.0))
    with pytest.raises(amp_tf.CallOrderError, match="the loss is scaled twice"):
        make_step(optimizer, weight, scaler, both)(tf.constant(1.0))
    assert weight.numpy().tolist() == [1.0]


def test_two_losses_of_one_step_may_have_a_scaler_each(log):
    weights = [tf.Variable([1.0]), tf.Variable([1.0])]
    optimizers = [amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5)) for _ in weights]
    for optimizer, weight in zip(optimizers, weights, strict=True):
        optimizer.build([weight])

    @tf.function
    def step():
        with tf.GradientTape(persistent=True) as tape:
            first = optimizers[0].scale_loss(tf.reduce_sum(weights[0]))
            second = optimizers[1].scale_loss(tf.reduce_sum(weights[1]) * tf.reduce_sum(weights[0]))
        for optimizer, loss, weight in zip(optimizers, [first, second], weights, strict=True):
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    step()
    assert [weight.numpy().tolist() for weight in weights] == [[0.5], [0.5]]
    assert not log("amp_tf")


def test_gradients_that_the_program_scales_by_a_variable_of_its_own_are_not_warned_of(optimizer, log):
    weight, scale = tf.Variable([1.0]), tf.Variable(8.0, trainable=False)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight) * scale
        optimizer.apply_gradients([(tape.gradient(loss, weight) / scale, weight)])

    step()
    assert weight.numpy().tolist() == [0.5]
    assert not log("never scaled")


def test_the_warning_names_the_users_optimizer_and_what_to_do_where_the_loop_is_a_librarys(log):
    weight, optimizer = tf.Variable([1.0]), amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5, name="mine"))
    optimizer.build([weight])
    tf.function(lambda: optimizer.apply_gradients([(tf.gradients(weight**2, weight)[0], weight)]))()
    (warning,) = log("never scaled")
    assert "optimizer 'mine'" in warning
    assert "Where the loop is a library's" in warning
    assert "AMP_TF_PRECISION=bfloat16" in warning
