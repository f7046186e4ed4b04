"""Rounds float32 to bfloat16 at random, up or down with the odds that leave the mean where it is.

A second moment changes by a thousandth of itself in a step (Adam's ``beta_2``), and half the distance between two
bfloat16 numbers is two to four thousandths: rounded to nearest it never changes again. Rounded at random it changes now
and then, by the right amount in the mean (Gupta et al., "Deep Learning with Limited Numerical Precision", 2015). What
is added are 16 random bits below the 16 that stay, and what is below is then cut off.

The bits of a matrix are those of its row and its column, one XOR the other: each is uniform, any two are independent,
and few have to be made. They are a hash, because TensorFlow's generator takes as long as ten additions, and XLA would
call it for each element. They follow from the step and the variable's number alone, so that replicas get the same. All
integers are unsigned, because TensorFlow keeps int32 in the CPU's memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

_STEP, _NUMBER, _MIX = 0x85EBCA6B, 0xC2B2AE35, 0x2C1B3C6D  # odd, and far from each other's small multiples
_SAFE = 3e38  # far enough below the largest bfloat16
_GOLDEN = 0x9E3779B9  # 2³² / the golden ratio: neighbours are far from each other


def round_stochastically(value: Any, step: Any, number: int) -> Any:
    """The value in bfloat16, each element one of its two neighbours there.

    Args:
        value: a float32 tensor whose shape is known.
        step: a scalar integer of any type, and
        number: another for what is rounded in the same step: the same for the same bits.

    Returns:
        A bfloat16 tensor of the same shape, the value in the mean. What is exact in bfloat16 stays, zeros with their
        sign. Elements that are infinite, NaN or beyond 3e38 are rounded towards zero, which keeps infinities and NaNs
        (quiet ones, as arithmetic gives them) and makes none; outside of XLA so are all beside them, and all where the
        sum of squares is beyond float32 (one element of 1e19 is enough).
    """
    shape = value.shape.as_list()
    split = _split(shape)
    rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
    words = _words(rows + columns, step, number)
    row, column, none = words[:rows, tf.newaxis], words[rows:], _uint32(0)
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        is_safe = tf.reshape(
            tf.abs(value) < _SAFE, (rows, columns)
        )  # costs nothing in XLA's loop, which a sum would end
        noise = tf.where(is_safe, tf.bitwise.bitwise_xor(row, column), none)
    else:
        is_safe = tf.math.is_finite(tf.nn.l2_loss(value))  # a pass that writes nothing
        noise = tf.bitwise.bitwise_xor(tf.where(is_safe, row, none), tf.where(is_safe, column, none))
    bits = tf.bitcast(tf.reshape(value, (rows, columns)), tf.uint32)
    high = tf.bitcast(bits + noise, tf.uint16)[..., 1]  # the last dimension is the low half and the high one
    return tf.reshape(tf.bitcast(high, tf.bfloat16), shape)


def _split(shape: Sequence[int]) -> int:
    """Where a shape is cut into the dimensions of rows and of columns, so that their sum is least."""
    return min(range(len(shape) + 1), key=lambda cut: math.prod(shape[:cut]) + math.prod(shape[cut:]))


def _uint32(number: int) -> Any:
    return tf.constant(number, tf.uint32)


def _words(count: int, step: Any, number: int) -> Any:
    """As many integers of 16 bits: a hash of their position, which TensorFlow folds, the step and the number."""
    start = tf.cast(step, tf.uint32) * _uint32(_STEP) + _uint32(number * _NUMBER % 2**32)
    words = tf.cast(tf.range(count), tf.uint32) * _uint32(_GOLDEN) + start
    words = tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, _uint32(15))) * _uint32(_MIX)
    return tf.bitwise.right_shift(words, _uint32(16))
