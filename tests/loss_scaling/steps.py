"""Small training steps whose gradients are chosen: shared by the tests of the wrappers."""

import inspect

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
MODES = ("eager", "function", "xla")
KERAS = tuple(map(int, keras.__version__.split(".")[:2]))
since_keras_3_1 = pytest.mark.skipif(
    KERAS < (3, 1),
    reason="Keras 3.0 itself neither copies optimizers nor puts them into checkpoints",
)
accumulates_gradients = pytest.mark.skipif(
    "gradient_accumulation_steps" not in inspect.signature(keras.optimizers.SGD).parameters,
    reason="this Keras does not accumulate gradients",
)


FAMILIES = {
    "keras": keras.optimizers,
    "tf_keras": tf_keras.optimizers,
    "legacy": tf_keras.optimizers.legacy,
}
by_families = pytest.mark.parametrize("family", FAMILIES)
eager_and_traced = pytest.mark.parametrize("mode", MODES[:2])


def in_mode(step, mode):
    """Returns the step as it runs in one of the modes."""
    if mode == "eager":
        return step
    return tf.function(step, jit_compile=mode == "xla")


def gradients(seed):
    rng = np.random.RandomState(seed)
    return [np.asarray(rng.randn(*shape), "float32") for shape in ((3,), (2, 2), ())]


def variables(dtype="float32"):
    return [keras.Variable(value, dtype=dtype) for value in gradients(7)]


def sgd_of(weights, *scale, rate=0.5, **settings):
    """Returns a wrapped SGD of Keras 3 that knows its weights."""
    optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.SGD(rate), *scale, **settings)
    optimizer.build(weights)
    return optimizer


def poisoned(grads, position, value):
    grads = [np.array(g) for g in grads]
    grads[position].flat[-1] = value
    return grads


def make_step(optimizer, weights, mode="function"):
    """A step on a loss whose gradients are the arguments, scaled as a training step scales it."""
    tensors = [weight.value for weight in weights]

    def step(*grads):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            terms = []
            for tensor, grad in zip(tensors, grads, strict=True):
                terms.append(tf.reduce_sum(tensor * tf.cast(grad, tensor.dtype)))
            loss = optimizer.scale_loss(tf.add_n(terms))
        optimizer.apply_gradients(zip(tape.gradient(loss, tensors), weights, strict=True))

    return in_mode(step, mode)


def values(optimizer, weights):
    """Weights and all variables of the (inner) optimizer, as copies."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return [variable.numpy().copy() for variable in (*weights, *inner.variables)]


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def run(make_optimizer, trace, mode="function", wrapped=True, **settings):
    """Trains on the gradients of a trace; returns the optimizer and its values."""
    weights = variables()
    optimizer = make_optimizer()
    if wrapped:
        optimizer = amp_tf.LossScaleOptimizer(optimizer, **settings)
    optimizer.build(weights)
    step = make_step(optimizer, weights, mode)
    for grads in trace:
        step(*grads)
    return optimizer, values(optimizer, weights)
