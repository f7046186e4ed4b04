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


def variables(dtype="float32"):
    rng = np.random.RandomState(7)
    return [keras.Variable(rng.randn(*shape), dtype=dtype) for shape in ((3,), (2, 2), ())]


def gradients(seed, dtype="float32"):
    rng = np.random.RandomState(seed)
    return [np.asarray(rng.randn(*shape)).astype(dtype) for shape in ((3,), (2, 2), ())]


def poisoned(grads, position, value):
    grads = [np.array(g) for g in grads]
    grads[position].flat[-1] = value
    return grads


def scaled(optimizer, grads):
    """Returns the gradients that a tape gives for a loss that was scaled by this optimizer."""
    scale = np.float32(optimizer.scale_loss(tf.constant(1.0)))
    return [g * scale.astype(g.dtype) for g in grads]


def make_step(optimizer, weights, mode="function"):
    """A step on a loss whose gradients are the arguments, scaled as a training step scales it."""

    def step(*grads):
        with tf.GradientTape() as tape:
            tape.watch([w.value for w in weights])
            loss = tf.add_n(
                [
                    tf.reduce_sum(w.value * tf.cast(g, w.dtype))
                    for w, g in zip(weights, grads, strict=True)
                ]
            )
            loss = optimizer.scale_loss(loss)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, [w.value for w in weights]), weights, strict=True)
        )

    return step if mode == "eager" else tf.function(step, jit_compile=mode == "xla")


def values(optimizer, weights):
    """Weights and all variables of the (inner) optimizer, as copies."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return [w.numpy().copy() for w in weights] + [v.numpy().copy() for v in inner.variables]


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def run(make_optimizer, trace, mode="function", dtype="float32", wrapped=True, **settings):
    """Trains on the gradients of a trace; returns the optimizer and its values."""
    weights = variables(dtype)
    optimizer = make_optimizer()
    if wrapped:
        optimizer = amp_tf.LossScaleOptimizer(optimizer, **settings)
    optimizer.build(weights)
    step = make_step(optimizer, weights, mode)
    for grads in trace:
        step(*[tf.constant(g) for g in grads])
    return optimizer, values(optimizer, weights)
