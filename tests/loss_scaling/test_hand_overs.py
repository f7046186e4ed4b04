"""Cases 15 and 28: gradients of a scaled loss that another function applies, and traces that failed."""

import gc
import pickle
import weakref

import keras
import pytest
import tensorflow as tf
import tf_keras

import amp_tf
from tests.loss_scaling.steps import since_keras_3_1


def pickled(optimizer):
    return pickle.loads(pickle.dumps(optimizer))


HAND_OVERS = {
    "traced to eager": (tf.function, lambda apply: apply),
    "eager to traced": (lambda compute: compute, tf.function),
    "traced to traced": (tf.function, tf.function),
}


@pytest.mark.parametrize("hand_over", HAND_OVERS)
def test_case_15_gradients_of_a_scaled_loss_may_be_applied_by_another_function_after_fit(hand_over, log):
    around_compute, around_apply = HAND_OVERS[hand_over]
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0)
    weight = tf.Variable([1.0])
    optimizer.build([weight])

    def compute():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight))
        return tape.gradient(loss, weight)

    def apply(gradient):
        optimizer.apply_gradients([(gradient, weight)])

    tf.function(lambda: apply(compute()))()  # as fit does: both in one graph
    compute, apply = around_compute(compute), around_apply(apply)
    for _ in range(2):
        apply(compute())
    assert weight.numpy().tolist() == [-0.5]
    assert not log("never scaled")


def no_gradients(tape, loss, weight):
    return [(tape.gradient(tf.constant(1.0), weight), weight)]


def wrong_shape(tape, loss, weight):
    return [(tf.matmul(tape.gradient(loss, [weight]), tf.ones((4, 5))), weight)]


@pytest.mark.parametrize("trouble", [no_gradients, wrong_shape])
@pytest.mark.parametrize("library", [keras, tf_keras])
def test_case_28_a_trace_that_failed_after_it_scaled_its_loss_hands_nothing_over(library, trouble, log):
    optimizer = amp_tf.LossScaleOptimizer(library.optimizers.SGD(0.5), 4.0)
    weight = tf.Variable([1.0])
    optimizer.build([weight])

    @tf.function
    def failing():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight))
        optimizer.apply_gradients(trouble(tape, loss, weight))

    @tf.function
    def bare():
        optimizer.apply_gradients([(tf.ones([1]), weight)])

    with pytest.raises(ValueError, match=r"No gradients provided|Dimensions must be equal"):
        failing()
    bare()
    assert weight.numpy().tolist() == [0.5]
    assert len(log("never scaled")) == 1


def test_case_28_the_graph_of_a_trace_that_failed_is_let_go():
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0)
    weight, graphs = tf.Variable([1.0]), []
    optimizer.build([weight])

    @tf.function
    def step(fails):
        graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight))
        if fails:
            raise ValueError("made to")
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    with pytest.raises(ValueError, match="made to"):
        step(True)
    step(False)
    gc.collect()
    assert graphs[0]() is None
    assert weight.numpy().tolist() == [0.5]


@pytest.mark.parametrize(
    "copy", [lambda optimizer: optimizer, pytest.param(pickled, marks=since_keras_3_1)], ids=["new", "pickled"]
)
def test_case_15_sums_of_scaled_gradients_in_variables_are_unscaled(copy, log):
    optimizer = copy(amp_tf.LossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0))
    weight, kept = tf.Variable([1.0]), tf.Variable([0.0])
    optimizer.build([weight])

    @tf.function
    def accumulate():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight))
        kept.assign_add(tape.gradient(loss, weight))

    accumulate()
    accumulate()
    tf.function(lambda: optimizer.apply([kept / 2.0], [weight]))()
    assert weight.numpy().tolist() == [0.5]
    assert not log("never scaled")
