"""Ops without 16-bit kernels in XLA."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import kernels, op_def_registry

from amp_tf.hooks import xla
from amp_tf.oplists.table import DENY, FLOAT32_ONLY_IN_XLA, ROWS
from tests.hooks.xla.small_functions import BF16, BFLOAT16, assert_rounded, definition, jitted, tensor


@pytest.mark.usefixtures("xla_hook_off_afterwards")
def test_second_gradients_of_max_pooling_compile():
    images, filters = tensor(3, 1, 8, 8, 1), tensor(4, 3, 3, 1, 1)
    ranks = tf.reshape(tf.range(64.0), [1, 8, 8, 1])  # the pooled input: which value is the largest is certain
    pool = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}

    def convolve(image):
        return tf.nn.conv2d(image, filters, 1, "SAME")

    def second_gradient(image):
        pooled = tf.raw_ops.MaxPool(input=ranks, **pool)
        chosen = tf.raw_ops.MaxPoolGradGrad(orig_input=ranks, orig_output=pooled, grad=convolve(image), **pool)
        return convolve(chosen)

    expected = jitted(second_gradient)(images)
    xla.install(BFLOAT16)
    function = jitted(second_gradient)
    types = {node.op: node.attr["T"].type for node in definition(function, images).node_def}
    assert (types["Conv2D"], types["MaxPoolGradGrad"]) == (BF16, types_pb2.DT_FLOAT)
    assert_rounded(function(images), expected, products=2)


def test_the_ops_are_those_that_xla_has_only_float32_kernels_for():
    jitted(lambda x: x + 1)(1.0)  # XLA registers its kernels now
    assert {row.op for row in ROWS if row.op_list != DENY and _is_float32_only(row.op)} == FLOAT32_ONLY_IN_XLA


def _is_float32_only(op: str) -> bool:
    """Whether some type of an op may be float32 in XLA's kernels and may not be 16 bit, although the op allows it."""
    found = op_def_registry.get(op)
    registered = kernels.get_registered_kernels_for_op(op).kernel
    compiled = [kernel for kernel in registered if kernel.device_type == "XLA_CPU_JIT"]
    attrs = [attr for attr in found.attr if attr.type in ("type", "list(type)")] if found else []

    def accepts(kernel, name, data_type):
        of_name = [c.allowed_values.list.type for c in kernel.constraint if c.name == name]
        return all(not types or data_type in types for types in of_name)

    def some(name, data_type):
        return any(accepts(kernel, name, data_type) for kernel in compiled)

    return any(
        some(attr.name, types_pb2.DT_FLOAT)
        and not some(attr.name, data_type)
        and (not attr.allowed_values.list.type or data_type in attr.allowed_values.list.type)
        for attr in attrs
        for data_type in (types_pb2.DT_BFLOAT16, types_pb2.DT_HALF)
    )
