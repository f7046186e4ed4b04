"""compare says where inf or nan first appears and where it is hidden again."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from amp_tf.config import AmpConfig
from amp_tf.tools.comparing.pipeline import compare

FLOAT16 = AmpConfig(precision="float16", target="cpu")


def batches() -> list[tuple[np.ndarray]]:
    return [(np.full((4, 8), 100.0, np.float32),)]


def test_an_infinity_that_a_minimum_hides_is_named_with_it_though_all_is_healthy():
    first, second = tf.fill((8, 16), 1.0), tf.fill((16, 4), 10.0)

    def step(x):
        large = tf.matmul(tf.matmul(x, first), second, name="large")  # 128,000
        return tf.minimum(large, 1000.0, name="bounded") * 0.5

    found = compare(step, batches(), FLOAT16)
    assert found.is_healthy
    assert found.notes[0] == (
        "inf or nan that float32 does not have first appears in float16 at large (MatMul), 100% of its numbers; "
        "hidden again behind bounded (Minimum)"
    )


def test_a_first_one_that_reaches_an_output_has_no_end():
    weights = tf.fill((8, 4), 100.0)
    found = compare(lambda x: tf.reshape(tf.matmul(x, weights, name="large"), (16,)), batches(), FLOAT16)
    assert not found.is_healthy
    assert found.notes[0].endswith("first appears in float16 at large (MatMul), 100% of its numbers")


def test_nothing_is_said_where_float32_has_the_same_infinities():
    weights = tf.fill((8, 4), 1e38)
    found = compare(lambda x: tf.minimum(tf.matmul(x, weights), 1.0) * 0.5, batches(), AmpConfig(precision="bfloat16"))
    assert not any("first appears" in note for note in found.notes)
