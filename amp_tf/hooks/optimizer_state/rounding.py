"""Rounds float32 to bfloat16 at random, up or down with the odds that leave the mean where it is.

A second moment changes by a thousandth of itself in a step (Adam's ``beta_2``), and half the distance between two
bfloat16 numbers is two to four thousandths: rounded to nearest it never changes again. Rounded at random it changes now
and then, by the right amount in the mean (Gupta et al., "Deep Learning with Limited Numerical Precision", 2015). What
is added are 16 random bits below the 16 that stay, and what is below is then cut off.

The bits of a matrix are those of its row and its column, one XOR the other: each is uniform, any two are independent,
and TensorFlow's generator, which takes ten times as long as an addition, makes far fewer. They follow from the seed
alone, so that replicas get the same. All integers are unsigned, because TensorFlow keeps int32 in the CPU's memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_LOW_BITS = 0xFFFF
_OF_COLUMNS = (0, 1 << 30)  # added to the seed


def round_stochastically(value: Any, seed: Any) -> Any:
    """The value in bfloat16, each element one of its two neighbours there.

    Args:
        value: a float32 tensor whose shape is known.
        seed: two integers, the same for the same bits.

    Returns:
        A bfloat16 tensor of the same shape, the value in the mean. What is exact in bfloat16 stays, zeros with their
        sign. Where an element is infinite or NaN, or the sum of all squares is beyond float32 (one of 1e19 is enough),
        all are rounded towards zero instead, which keeps infinities and NaNs (quiet ones, as arithmetic gives them)
        and makes none.
    """
    shape = value.shape.as_list()
    split = _split(shape)
    rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
    # The sum of squares is finite only where each element is, and far from what a carry would make infinite.
    low, none = tf.constant(_LOW_BITS, tf.uint32), tf.constant(0, tf.uint32)
    mask = tf.where(tf.math.is_finite(tf.nn.l2_loss(value)), low, none)
    noise = tf.bitwise.bitwise_xor(_words((rows, 1), seed) & mask, _words((1, columns), seed + _OF_COLUMNS) & mask)
    bits = tf.bitcast(tf.reshape(value, (rows, columns)), tf.uint32)
    high = tf.bitcast(bits + noise, tf.uint16)[..., 1]  # the last dimension is the low half and the high one
    return tf.reshape(tf.bitcast(high, tf.bfloat16), shape)


def _split(shape: Sequence[int]) -> int:
    """Where a shape is cut into the dimensions of rows and of columns, so that their sum is least."""
    return min(range(len(shape) + 1), key=lambda cut: math.prod(shape[:cut]) + math.prod(shape[cut:]))


def _words(shape: tuple[int, int], seed: Any) -> Any:
    return tf.random.stateless_uniform(shape, seed, None, None, tf.uint32, alg="philox")
