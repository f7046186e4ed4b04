"""Loops in branches that are not taken: TensorFlow must still see that they do not run."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp_tf


@pytest.mark.parametrize("is_taken", [False, True])
def test_what_waits_for_the_loop_gets_its_value(is_taken: bool) -> None:
    counter = tf.Variable(0.0)
    weights = tf.constant(np.random.default_rng(0).normal(size=(64, 64)) / 64, tf.float32)

    def turn(number: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        counter.assign_add(1.0)
        return number + 1, tf.exp(value)

    def step(inputs: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
        product = inputs @ weights
        looped = lambda: tf.while_loop(lambda number, _: number < 3, turn, (0, product))[1]  # noqa: E731
        return tf.cond(wanted, looped, lambda: product * 2.0) + counter

    inputs, wanted = tf.ones((64, 64)), tf.constant(is_taken)
    expected = tf.function(step)(inputs, wanted).numpy()
    counter.assign(0.0)
    with amp_tf.enable(amp_tf.AmpConfig(precision="bfloat16", target="cpu")):
        found = tf.function(step)(inputs, wanted).numpy()
    assert amp_tf.report().converted > 0
    assert found.shape == expected.shape
    # One product in bfloat16, then at most three exponentials of values around one.
    np.testing.assert_allclose(found, expected, rtol=0.05)
