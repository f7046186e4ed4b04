"""What is known of a skipped step is told: data that is not finite, values beyond float16, norms that overflow."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from amp_tf.callbacks import LossScaleMonitor
from amp_tf.loss_scaling.ledger import Cause, LossScaleError

X = np.random.RandomState(0).randn(40, 4).astype("float32")
Y = X.sum(1, keepdims=True)


@pytest.fixture(params=[keras, tf_keras], ids=["keras", "tf_keras"])
def library(request):
    return request.param


def make_model(library, **settings):
    model = library.Sequential([library.layers.Input((4,)), library.layers.Dense(1)])
    model.compile(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.01, **settings)), "mse")
    return model


def fit_until_it_is_told(model, x, y):
    with pytest.raises(LossScaleError) as error:
        model.fit(x, y, batch_size=8, epochs=5, verbose=0, callbacks=[LossScaleMonitor(max_skips=3, every=1)])
    return str(error.value)


@pytest.mark.parametrize("spoil", ["x", "y"])
def test_data_that_is_not_finite_is_named_as_the_cause(library, spoil):
    x, y = (X * np.nan, Y) if spoil == "x" else (X, Y * np.inf)
    text = fit_until_it_is_told(make_model(library), x, y)
    assert "the input data or the labels hold NaN or infinities" in text
    assert "Check the input data" in text


def test_labels_beyond_float16_are_named_where_the_loss_is_infinite(library):
    text = fit_until_it_is_told(make_model(library), X, np.full_like(Y, 1e37))
    assert "hold values beyond float16's 65504" in text
    assert "Scale the data and labels down" in text


def test_data_that_is_finite_is_not_suspected(library):
    x = library.layers.Input((4,))
    y = library.layers.Lambda(lambda t: tf.math.log(t - t))(library.layers.Dense(1)(x))
    model = library.Model(x, y)
    model.compile(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.01)), "mse")
    text = fit_until_it_is_told(model, X, Y)
    assert "the loss itself is NaN or infinite before it is scaled" in text
    assert "The input data of that step is finite. Look for log(0)" in text
    assert "Look for NaN in the input data" not in text


def test_a_norm_that_overflows_is_told_from_gradients_that_do():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=1.0), 1.0)
    weight = keras.Variable([1.0, 1.0])
    optimizer.build([weight])
    step = tf.function(lambda g: (optimizer.scale_loss(weight.value), optimizer.apply([g], [weight])))
    step(tf.constant([3e30, 3e30]))
    assert optimizer.status().cause is Cause.SUM
    step(tf.constant([np.inf, 1.0]))
    assert optimizer.status().cause is Cause.OVERFLOW


@pytest.mark.parametrize("jit", [False, True])
def test_a_loop_of_its_own_is_told_the_same(jit):
    scaler, weight = amp_tf.LossScaler(8.0), tf.Variable(1.0)

    @tf.function(jit_compile=jit)
    def step(x):
        loss = scaler.scale(tf.reduce_sum(weight * x))
        scaler.step(weight.assign_sub, scaler.unscale(tf.gradients(loss, weight)[0]))

    causes = []
    for value in (np.nan, np.inf, 1.0):
        step(tf.constant([value, 1.0]))
        causes.append(scaler.status().last_cause)
    assert causes == [Cause.DATA] * 3  # the last one remembers why the step before it was skipped


def test_the_data_of_a_traced_loop_over_a_dataset_is_what_the_iterator_gives():
    scaler, weight = amp_tf.LossScaler(8.0), tf.Variable(1.0)
    data = tf.data.Dataset.from_tensors(tf.constant([np.nan, 1.0])).repeat(3)

    @tf.function
    def train():
        for x in data:
            loss = scaler.scale(tf.reduce_sum(weight * x))
            scaler.step(weight.assign_sub, scaler.unscale(tf.gradients(loss, weight)[0]))

    train()
    assert (scaler.status().skipped, scaler.status().cause) == (3, Cause.DATA)
