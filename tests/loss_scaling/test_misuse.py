"""Cases 27 to 30: what is refused, and what is noticed."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import is_loss_scaled
from tests import absl_log
from tests.loss_scaling.steps import variables


@pytest.fixture
def log(caplog):
    with absl_log.listening(caplog) as messages:
        yield messages


@pytest.mark.parametrize("wrap", [amp_tf.LossScaleOptimizer, keras.optimizers.LossScaleOptimizer])
def test_case_27_and_k06_an_optimizer_that_is_wrapped_is_not_wrapped_again(wrap):
    with pytest.raises(ConfigError, match="is a LossScaleOptimizer already"):
        amp_tf.LossScaleOptimizer(wrap(keras.optimizers.SGD()))


def test_case_27_an_optimizer_with_its_own_factor_is_refused_and_told_how():
    with pytest.raises(ConfigError, match=r"loss_scale_factor=8\.0.*initial_scale=…, dynamic=False"):
        amp_tf.LossScaleOptimizer(keras.optimizers.SGD(loss_scale_factor=8.0))


def test_case_27_keras_takes_the_wrapper_for_its_own_and_does_not_wrap_it():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD())
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.dtype_policy = keras.DTypePolicy("mixed_float16")
    model.compile(optimizer, "mse")
    assert model.optimizer is optimizer


def test_something_that_is_no_optimizer_is_refused():
    with pytest.raises(
        TypeError, match=r"expected an optimizer of keras, tf_keras or tf\.compat\.v1\.train, got 'sgd'"
    ):
        amp_tf.LossScaleOptimizer("sgd")


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (lambda: keras.optimizers.SGD(), False),
        (lambda: keras.optimizers.SGD(loss_scale_factor=2.0), True),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), True),
        (lambda: amp_tf.LossScaleOptimizer(keras.optimizers.SGD()), True),
        (lambda: amp_tf.LossScaleOptimizer(tf.compat.v1.train.AdamOptimizer()), True),
        (lambda: tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer(
            tf.compat.v1.train.AdamOptimizer(), "dynamic"), True),
    ],
    ids=["bare", "factor", "keras", "ours", "ours_v1", "tf_v1"],
)  # fmt: skip
def test_what_counts_as_scaled_already(optimizer, expected):
    assert is_loss_scaled(optimizer()) is expected


@pytest.mark.parametrize("traced", [False, True])
def test_case_28_and_k05_gradients_of_a_loss_that_was_never_scaled_are_not_divided(traced, log):
    weights = variables()
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build(weights)
    before = weights[1].numpy()

    def step():
        optimizer.apply([tf.zeros(3), tf.ones((2, 2)), tf.zeros(())], weights)

    step = tf.function(step) if traced else step
    step()
    step()
    np.testing.assert_allclose(weights[1].numpy(), before - 1.0, rtol=1e-6)
    warnings = log("never scaled")
    assert len(warnings) == 1
    assert "scaled_loss = optimizer.scale_loss(loss)" in warnings[0]
    assert "gradients = tape.gradient(scaled_loss, variables)" in warnings[0]


def test_case_28_a_loop_that_multiplies_by_the_scale_itself_is_understood():
    weights = variables()
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0)
    optimizer.build(weights)
    before = weights[1].numpy()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights[1].value) * optimizer.dynamic_scale.value
        optimizer.apply_gradients([(tape.gradient(loss, weights[1].value), weights[1])])

    step()
    np.testing.assert_allclose(weights[1].numpy(), before - 0.5, rtol=1e-6)


@pytest.mark.parametrize("built", [False, True])
def test_case_29_and_k11_a_float16_loss_is_scaled_in_float32(built):
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD())
    if built:
        optimizer.build(variables())
    loss = optimizer.scale_loss(tf.constant(3.0, tf.float16))
    assert (loss.dtype, float(loss)) == (tf.float32, 3.0 * 2**15)


def test_losses_in_a_nest_are_scaled_each_and_float64_stays():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(), 2.0)
    loss = optimizer.scale_loss({"a": tf.constant([1.0, 2.0], tf.bfloat16), "b": tf.constant(0.1, tf.float64)})
    assert loss["a"].numpy().tolist() == [2.0, 4.0]
    assert (loss["b"].dtype, float(loss["b"])) == (tf.float64, 0.2)


def test_importing_loss_scaling_and_the_callbacks_imports_no_tensorflow():
    code = (
        "import sys, amp_tf, amp_tf.callbacks, amp_tf.loss_scaling.schedule; amp_tf.LossScaleOptimizer;"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'tensorflow', 'keras', 'tf_keras'}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "[]"
