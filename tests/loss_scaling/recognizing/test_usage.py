"""Cases 28 and 29: whether a loop scaled its loss, and who divides its gradients."""

import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from amp_tf.loss_scaling.recognizing import usage
from tests.loss_scaling.steps import variables


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


def one_step(optimizer, weight, scale_loss, *, around=lambda step: step):
    """Trains on the sum of a variable, whose gradient is 1: it moves by the learning rate, over or times the scale."""
    before = weight.numpy()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = scale_loss(optimizer, tf.reduce_sum(weight))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    around(step)()
    return (before - weight.numpy()).tolist()


WAYS = re.findall(r"^    (.+?) {2,}(.+?) {2,}([A-Z_]+)$", usage.__doc__, re.MULTILINE)


@pytest.mark.parametrize(("loss", "applied", "kind"), WAYS)
def test_the_table_of_usage_says_what_apply_gradients_is_given(loss, applied, kind, monkeypatch):
    told = []
    judge = usage.Usage.judge
    monkeypatch.setattr(usage.Usage, "judge", lambda *given, **named: told.append(judge(*given, **named)) or told[-1])
    optimizer, weight = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0), tf.Variable([1.0])

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            value = eval(loss, {"optimizer": optimizer, "loss": tf.reduce_sum(weight)})
        gradient = tape.gradient(value, weight)
        optimizer.apply_gradients([(eval(applied, {"optimizer": optimizer, "gradient": gradient}), weight)])

    step()
    assert {given.name for given in told} == {kind}


def test_the_table_of_usage_has_every_kind():
    assert {kind for _, _, kind in WAYS} == {kind.name for kind in usage.Gradients}


def multiply(optimizer, loss):
    return loss * optimizer.loss_scale


def only_log(optimizer, loss):
    tf.print("loss scale", optimizer.loss_scale, output_stream="file:///dev/null")
    return loss


def only_return(optimizer, loss):
    return tf.tuple([loss, optimizer.loss_scale + 0.0])[0]


@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize("use", [only_log, only_return])
def test_case_28_a_loop_that_only_reads_the_scale_has_not_scaled_its_loss(use, library, log):
    optimizer = amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5), 4.0)
    assert one_step(optimizer, tf.Variable([1.0]), use) == [0.5]
    assert len(log("never scaled")) == 1


@pytest.mark.parametrize("looped", [False, True])
def test_case_28_a_loop_that_multiplies_by_the_scale_itself_is_understood(looped, log):
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0)
    weight = tf.Variable([1.0])
    optimizer.build([weight])

    def once_in_a_loop(step):
        def run():
            for _ in tf.range(1):
                step()

        return tf.function(run)

    around = once_in_a_loop if looped else lambda step: step
    assert one_step(optimizer, weight, multiply, around=around) == [0.5]
    assert not log("never scaled")


def test_case_28_a_tf_keras_loop_that_multiplies_and_divides_itself_is_understood(log):
    optimizer = amp_tf.LossScaleOptimizer(tf_keras.optimizers.SGD(0.5), 4.0)
    weight = tf.Variable([1.0])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = multiply(optimizer, tf.reduce_sum(weight))
        gradient = tape.gradient(loss, weight) / optimizer.loss_scale
        optimizer.apply_gradients([(gradient, weight)])

    step()
    assert weight.numpy().tolist() == [0.5]
    assert not log("never scaled")


def test_case_28_a_tf1_graph_that_multiplies_and_divides_itself_is_understood(log):
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("w", initializer=[1.0])
        optimizer = amp_tf.LossScaleOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5), 4.0)
        (gradient,) = tf.gradients(multiply(optimizer, tf.reduce_sum(weight)), [weight])
        step = optimizer.apply_gradients([(gradient / optimizer.loss_scale, weight)])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(step)
            assert session.run(weight).tolist() == [0.5]
    assert not log("never scaled")


def test_case_28_gradients_that_another_function_left_in_variables_count_as_never_scaled(log):
    """The graph cannot tell; a step that is too large is seen, one that is too small is not."""
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0)
    weight, kept = tf.Variable([1.0]), tf.Variable([0.0])

    @tf.function
    def accumulate():
        with tf.GradientTape() as tape:
            loss = multiply(optimizer, tf.reduce_sum(weight))
        kept.assign_add(tape.gradient(loss, weight))

    accumulate()
    tf.function(lambda: optimizer.apply([tf.identity(kept)], [weight]))()
    assert weight.numpy().tolist() == [1.0 - 0.5 * 4.0]
    assert len(log("never scaled")) == 1


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


def divide_by_hand(optimizer, gradient):
    return gradient / optimizer.loss_scale


def log_unscaled(optimizer, gradient):
    tf.print(optimizer.get_unscaled_gradients([gradient]), output_stream="file:///dev/null")
    return gradient


def clip_undivided(optimizer, gradient):
    return tf.clip_by_global_norm([gradient], 1e9)[0][0]


BY_HAND = {
    "multiply and divide": (multiply, divide_by_hand),
    "multiply and clip": (multiply, clip_undivided),
    "scale_loss and divide": (lambda optimizer, loss: optimizer.scale_loss(loss), divide_by_hand),
    "scale_loss and log unscaled": (lambda optimizer, loss: optimizer.scale_loss(loss), log_unscaled),
    "unscale and log the scale": (
        lambda optimizer, loss: only_log(optimizer, optimizer.get_scaled_loss(loss)),
        lambda optimizer, gradient: optimizer.get_unscaled_gradients([gradient])[0],
    ),
}


@pytest.mark.parametrize("way", BY_HAND)
@pytest.mark.parametrize("library", [keras, tf_keras])
def test_case_28_what_a_loop_divided_by_hand_is_not_divided_again(way, library, log):
    scale, finish = BY_HAND[way]
    if library is tf_keras and way == "multiply and clip":
        pytest.skip("tf_keras' own wrapper, too, leaves the division to a loop that multiplies")
    optimizer = amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5), 4.0)
    weight = tf.Variable([1.0])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = scale(optimizer, tf.reduce_sum(weight))
        optimizer.apply_gradients([(finish(optimizer, tape.gradient(loss, weight)), weight)])

    step()
    assert weight.numpy().tolist() == [0.5]
    assert not log("never scaled")


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("library", [keras, tf_keras])
def test_case_28_and_k05_a_bare_loop_after_fit_is_not_divided_but_told(library, traced, log):
    model = library.Sequential([library.layers.Input((2,)), library.layers.Dense(1, use_bias=False)])
    model.compile(amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5), 4.0), "mse")
    model.fit(np.zeros((4, 2), "float32"), np.zeros((4, 1), "float32"), verbose=0)
    (weight,) = model.trainable_variables
    before = weight.numpy()

    def step():
        model.optimizer.apply_gradients([(tf.ones((2, 1)), weight)])

    (tf.function(step) if traced else step)()
    np.testing.assert_allclose(weight.numpy(), before - 0.5, rtol=1e-6)
    assert len(log("never scaled")) == 1


@pytest.mark.parametrize("scaled", [False, True])
def test_a_gradient_that_is_clipped_inside_the_network_is_clipped_alike_by_the_pattern_of_the_limits(scaled, log):
    weight, optimizer = tf.Variable(tf.ones((4, 4))), keras.optimizers.SGD(1.0)
    optimizer = amp_tf.LossScaleOptimizer(optimizer) if scaled else optimizer
    optimizer.build([weight])

    @tf.custom_gradient
    def clipped(x):
        def gradient(d):
            s = optimizer.loss_scale if scaled else 1.0
            return tf.clip_by_norm(d / s, 0.125) * s

        return tf.identity(x), gradient

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(clipped(tf.ones((2, 4)) @ weight) ** 2))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    step()
    # Eight gradients of one size have the norm 0.125, and each weight gets two of them.
    np.testing.assert_allclose(weight.numpy(), 1 - 2 * 0.125 / 8**0.5, rtol=1e-6)
    assert not log("amp_tf")


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_gradient_that_is_clipped_inside_the_network_without_the_pattern_is_told_once(library, log):
    weight = tf.Variable(tf.ones((4, 4)))
    optimizer = amp_tf.LossScaleOptimizer(library.optimizers.SGD(1.0))
    optimizer.build([weight])

    @tf.custom_gradient
    def clipped(x):
        return tf.identity(x), lambda d: tf.clip_by_norm(d, 0.125, name="clipped_here")

    @tf.function
    def step(count):  # traced anew for each number
        with tf.GradientTape() as tape:
            loss = count * optimizer.scale_loss(tf.reduce_sum(clipped(tf.ones((2, 4)) @ weight) ** 2))
        gradients = tape.gradient(loss, [weight])
        gradients = optimizer.get_unscaled_gradients(gradients) if library is tf_keras else gradients
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))

    step(1)
    step(2)
    (line,) = log("meet a constant inside the network")
    assert "clipped_here" in line
    assert "AMP_TF_PRECISION=bfloat16" in line
