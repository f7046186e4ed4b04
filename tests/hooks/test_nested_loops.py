"""A loop in a loop keeps lists in lists for its gradient."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp_tf


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_the_gradient_of_a_loop_in_a_loop_runs_and_is_near(precision: str) -> None:
    rng = np.random.default_rng(0)
    start = tf.constant(rng.normal(size=(4, 16)).astype("float32"))
    weight = tf.Variable(rng.normal(size=(16, 16)).astype("float32") / 4)

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for _ in tf.range(3):
                for _ in tf.range(4):
                    x = x + 0.1 * tf.tanh(tf.matmul(x, weight))
            loss = tf.reduce_sum(tf.square(x))
        return tape.gradient(loss, weight)

    expected = tf.function(step)(start).numpy()
    with amp_tf.enable(amp_tf.AmpConfig(precision=precision)):
        got = tf.function(step)(start).numpy()
    # twelve products in sequence, each rounded to 8 or 11 significant bits
    assert np.linalg.norm(got - expected) < 0.02 * np.linalg.norm(expected)
    assert (got != expected).any()
