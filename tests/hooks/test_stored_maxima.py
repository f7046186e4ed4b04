"""A maximum in a loop or a branch: its gradient, elsewhere in the graph, must find it among its values."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp_tf


def in_a_loop(x: tf.Tensor, weight: tf.Variable) -> tf.Tensor:
    for _ in tf.range(3):
        largest = tf.reduce_max(tf.sin(x), 1, keepdims=True)
        x = x + 0.1 * tf.tanh(tf.matmul(tf.sin(x), weight)) * tf.matmul(largest, weight[:1])
    return x


def in_a_branch(x: tf.Tensor, weight: tf.Variable) -> tf.Tensor:
    def branch() -> tf.Tensor:
        return tf.matmul(tf.reduce_max(x, 1, keepdims=True), weight[:1]) + tf.matmul(x, weight)

    return tf.cond(tf.reduce_sum(x) > -1e9, branch, lambda: x)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", [in_a_loop, in_a_branch])
def test_the_gradient_of_a_maximum_is_near_that_of_float32(model, precision: str) -> None:
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(8, 16)).astype("float32"))
    weight = tf.Variable(rng.normal(size=(16, 16)).astype("float32") / 4)

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_mean(tf.square(model(x, weight)))
        return tape.gradient(loss, [x, weight])

    expected = tf.function(step)(x)
    with amp_tf.enable(amp_tf.AmpConfig(precision=precision)):
        got = tf.function(step)(x)
    for one, other in zip(got, expected, strict=True):
        # NaN before; a few products in sequence, each rounded to 8 or 11 significant bits
        assert np.linalg.norm(one - other) < 0.03 * np.linalg.norm(other)
