"""Whole numbers, as TensorFlow writes them."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from amp_tf.graph.attributes import whole_number


def _constant(tensor):
    node = node_def_pb2.NodeDef(name="c", op="Const")
    node.attr["value"].tensor.CopyFrom(tensor)
    return node


@pytest.mark.parametrize("number", [0, 1, -1, 24, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_number_is_read_in_each_of_its_forms(number, dtype):
    written = tf.make_tensor_proto(number, dtype)
    packed = tf.make_tensor_proto(number, dtype)
    packed.ClearField("int_val")
    packed.ClearField("int64_val")
    packed.tensor_content = np.array(number, dtype).tobytes()
    assert whole_number(_constant(written)) == whole_number(_constant(packed)) == number


def test_a_zero_may_be_left_out():
    zero = tf.make_tensor_proto(0, np.int32)
    zero.ClearField("int_val")
    assert tf.make_ndarray(zero) == 0
    assert whole_number(_constant(zero)) == 0


@pytest.mark.parametrize("value", [1.5, True, [1, 2], [3, 3], np.zeros((0,), np.int32)])
def test_what_is_no_single_whole_number_is_none(value):
    assert whole_number(_constant(tf.make_tensor_proto(value))) is None
    assert whole_number(node_def_pb2.NodeDef(name="c", op="Const")) is None
