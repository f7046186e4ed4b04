"""Loops in loops and in branches, and maxima in them: gradients are near those of float32."""

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
