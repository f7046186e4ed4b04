from __future__ import annotations

import numpy as np
import pytest

from amp_tf.precision import Precision


def test_names_and_numbers_are_those_of_tensorflow():
    import tensorflow as tf

    for precision in Precision:
        dtype = tf.as_dtype(precision.value)
        assert dtype.as_datatype_enum == precision.data_type


def test_limits_are_those_of_the_formats():
    import ml_dtypes

    for precision, info in (
        (Precision.FLOAT32, np.finfo(np.float32)),
        (Precision.FLOAT16, np.finfo(np.float16)),
        (Precision.BFLOAT16, ml_dtypes.finfo(ml_dtypes.bfloat16)),
    ):
        assert precision.max_finite == float(info.max)
        assert precision.smallest_normal == float(info.smallest_normal)


def test_the_next_float16_after_the_largest_is_infinity():
    bits = np.float16(Precision.FLOAT16.max_finite).view(np.uint16)
    assert np.isinf((bits + np.uint16(1)).view(np.float16))


@pytest.mark.parametrize(
    ("precision", "is_f16", "needs_loss_scaling"),
    [
        (Precision.FLOAT32, False, False),
        (Precision.FLOAT16, True, True),
        (Precision.BFLOAT16, True, False),
    ],
)
def test_only_float16_needs_loss_scaling(precision, is_f16, needs_loss_scaling):
    assert precision.is_f16 == is_f16
    assert precision.needs_loss_scaling == needs_loss_scaling
