"""Stochastic rounding: unbiased, exact where it can be, and what nearest rounding loses."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.hooks.optimizer_state import round_stochastically

COPIES = 1 << 16


def rounded(values: Any, seed: tuple[int, int] = (1, 2)) -> Any:
    tensor = tf.constant(np.asarray(values, np.float32))
    return tf.cast(round_stochastically(tensor, *seed), tf.float32).numpy()


@pytest.mark.parametrize("value", [1.001, -1.001, 1.0078, 3e-20, -2.7e15, 1e-39, 0.9999])
def test_the_mean_is_the_value(value: float) -> None:
    """Each result is one of two neighbours, ``ulp`` apart; the mean of n of them has a deviation of ulp / 2 / √n."""
    exact = np.float32(value)
    found = rounded(np.full((256, COPIES // 256), exact))
    below, above = np.unique(np.abs(found))
    assert below < abs(exact) < above
    ulp = float(above) - float(below)
    assert above.view(np.int32) - below.view(np.int32) == 1 << 16
    assert abs(found.astype(np.float64).mean() - float(exact)) < 5 * ulp / 2 / COPIES**0.5


def test_any_two_elements_and_steps_are_rounded_independently() -> None:
    """4,096 pairs of coins agree by luck in half of them; five deviations are five times √n / 2 = 160."""
    half = tf.fill((2, 3), 1 + 2**-8)
    steps = tf.function(lambda: tf.map_fn(lambda n: round_stochastically(half, n, 7) > 1, tf.range(4096),
                                          tf.bool))().numpy().reshape(4096, 6)  # fmt: skip
    coins = [*steps.T, np.roll(steps[:, 0], 1)]
    for first, second in itertools.combinations(coins, 2):
        assert abs((first == second).sum() - 2048) < 160


def test_what_is_exact_stays() -> None:
    patterns = np.arange(1 << 16, dtype=np.uint32) << 16
    values = patterns.view(np.float32)
    small = np.isfinite(values) & (np.abs(values) < 1e17)  # the sum of their squares is finite
    for chosen in (values[small], values[~small]):  # the others with their infinities, the NaNs as such
        np.testing.assert_array_equal(rounded(chosen), chosen)
    np.testing.assert_array_equal(np.signbit(rounded([0.0, -0.0])), [False, True])


@pytest.mark.parametrize("jit", [False, True])
def test_finite_values_stay_finite_and_others_stay_what_they_are(jit: bool) -> None:
    rounded = tf.function(lambda x: tf.cast(round_stochastically(x, 0, 0), tf.float32), jit_compile=jit)
    largest = np.finfo(np.float32).max
    found = rounded(tf.constant([largest, -largest, np.inf, -np.inf, np.nan, 1.003])).numpy()
    assert np.isfinite(found[[0, 1]]).all()
    np.testing.assert_array_equal(found[2:5], [np.inf, -np.inf, np.nan])
    assert found[5] == 1.0 or jit  # an infinity beside it: towards zero
    cuda = np.array([0x7FFFFFFF], np.uint32).view(np.float32)  # the NaN of CUDA's arithmetic
    assert np.isnan(rounded(tf.constant(cuda))).all()


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 1, 5), (0, 4)])
def test_any_shape_is_rounded(shape: tuple[int, ...]) -> None:
    assert rounded(np.ones(shape)).shape == shape


def test_xla_rounds_to_the_same_bits() -> None:
    values = tf.random.stateless_normal((50, 70), (1, 2))
    functions = (tf.function(round_stochastically, jit_compile=jit) for jit in (False, True))
    ours, xlas = (tf.bitcast(function(values, 3, 4), tf.uint16).numpy() for function in functions)
    np.testing.assert_array_equal(ours, xlas)


def test_a_second_moment_stalls_where_it_is_rounded_to_nearest() -> None:
    """From 1 towards 0.5 by a thousandth of the difference, 3,000 times: 0.525 in float32, 1 to nearest."""

    def last(narrow: Any) -> Any:
        def step(moment: Any, number: Any) -> Any:
            wide = tf.cast(moment, tf.float32)
            return narrow(wide + (0.5 - wide) * 0.001, number)

        return tf.foldl(step, tf.range(3000), tf.ones((32, 32), tf.bfloat16))

    nearest = tf.function(lambda: last(lambda value, number: tf.cast(value, tf.bfloat16)))()
    stochastic = tf.function(lambda: last(lambda value, number: round_stochastically(value, number, 0)))()
    assert np.all(tf.cast(nearest, tf.float32) == 1.0)
    exact = 0.5 + 0.5 * 0.999**3000
    # One element varies by some ulps of 2⁻⁹; 1,024 of them together by a thirtieth of that.
    assert abs(tf.reduce_mean(tf.cast(stochastic, tf.float64)).numpy() - exact) < 2e-3
