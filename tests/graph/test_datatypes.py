from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from amp_tf.graph import datatypes


def test_quantized_types_are_those_of_tensorflow():
    numbers = {number for number in types_pb2.DataType.values() if number and number < 100}
    quantized = {number for number in numbers if tf.as_dtype(number).is_quantized}
    assert quantized == datatypes.QUANTIZED


def test_names_are_those_that_python_users_know():
    known = [number for number in types_pb2.DataType.values() if 0 < number <= 25]
    assert {number: datatypes.type_name(number) for number in known} == {
        number: tf.as_dtype(number).name for number in known
    }


@pytest.mark.parametrize(
    ("number", "base", "name"),
    [
        (1, 1, "float32"),
        (101, 1, "float32_ref"),
        (119, 19, "float16_ref"),
        (0, 0, "invalid"),
        (77, 77, "DataType 77"),
    ],
)
def test_a_reference_type_is_named_after_its_base(number, base, name):
    assert datatypes.base_type(number) == base
    assert datatypes.type_name(number) == name
