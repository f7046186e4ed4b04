"""Powers of two that keep a sum over replicas from overflowing in float16.

float16 ends at 65504 and loses digits below 2^-14, so gradients are first brought near its upper end. Replica ``w``
holds ``g_w``; the sum over replicas of ``max |g_w|`` bounds every partial sum, in any order of additions. Scaled by the
power of two that brings this bound below 2^15, no sum overflows, and numbers down to 2^-29 of the bound keep all their
digits. Exponents are computed on the bits: logarithms may differ between machines by a digit, and replicas that scale
differently would be silently wrong.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_FRACTION_BITS = 23  # of float32
_BIAS = 127
_TOP = 14  # bounds are brought to [2^14, 2^15)
_LARGEST_FIELD = 253  # so that the inverse is a normal number too: some devices flush others to zero


def scales(bounds: Any) -> tuple[Any, Any]:
    """The powers of two for each tensor of a group.

    Args:
        bounds: float32 vector, one entry for each tensor, the same on all replicas; 0, infinity and NaN may occur.

    Returns:
        Two float32 vectors of the same length: what to multiply by before the sum, and after it. Both are finite powers
        of two, and their product is 1.
    """
    bits = tf.bitcast(bounds, tf.int32)
    exponent = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, _FRACTION_BITS), 255)
    field = tf.clip_by_value(2 * _BIAS + _TOP - exponent, 1, _LARGEST_FIELD)
    return _power(field), _power(2 * _BIAS - field)


def bounds_of(tensors: list[Any]) -> Any:
    """The largest magnitude in each tensor: a float32 vector with an entry for each."""
    return tf.stack([tf.reduce_max(tf.abs(tensor)) for tensor in tensors])


def _power(field: Any) -> Any:
    return tf.bitcast(tf.bitwise.left_shift(field, _FRACTION_BITS), tf.float32)
