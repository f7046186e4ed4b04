"""What kernels depend on and which are slow."""

import tensorflow as tf

from amp_tf.oplists import costs


def test_a_kernel_pair_reads_its_forward_op_by_the_input_that_is_named():
    from tensorflow.python.framework import op_def_registry

    expected = {"MaxPoolGrad": "orig_output", "MaxPool3DGrad": "orig_output", "FusedBatchNormGradV3": "reserve_space_3"}
    for gradient, (forward, position) in costs.KERNEL_PAIRS.items():
        assert op_def_registry.get(gradient).input_arg[position].name == expected[gradient]
        assert op_def_registry.get(forward) is not None


def test_a_slow_kernel_is_told_by_its_strides():
    row = next(row for row in costs.SLOW_KERNELS if row.op.endswith("BackpropInput"))
    node = tf.compat.v1.NodeDef(op=row.op)
    node.attr["strides"].list.i.extend([1, 1, 1, 1])
    assert not row.applies(node, (3, 3, 8, 1))
    node.attr["strides"].list.i[1] = 2
    assert row.applies(node, None)


def test_a_slow_kernel_is_told_by_its_filter():
    row = next(row for row in costs.SLOW_KERNELS if row.op.endswith("BackpropFilter"))
    node = tf.compat.v1.NodeDef(op=row.op)
    assert [row.applies(node, kernel) for kernel in (None, (3, 3, 96, 1), (5, 5, 8, 1), (7, 7, 8, 1))] == [
        False, False, True, True,
    ]  # fmt: skip
