"""The cost table: its rows make sense, and the functions on it."""

import pytest
import tensorflow as tf

from amp_tf.oplists import costs
from amp_tf.oplists.table import CLEAR, CPU, INFER, ROWS

SMALL, LARGE = 1_000_000, 10_000_000


def test_every_row_is_an_op_that_the_cpu_lists_leave_open():
    open_ops = {row.op for row in ROWS if row.table == CPU and row.op_list in (INFER, CLEAR)}
    assert costs.ELEMENT_COSTS.keys() <= open_ops
    assert open_ops >= costs.FREE


def test_every_cost_is_positive():
    figures = [figure for row in costs.ELEMENT_COSTS.values() for pair in row for figure in pair]
    assert min(figures) > 0
    assert costs.PRODUCT_F16 < costs.PRODUCT_FLOAT32


def test_large_tensors_are_charged_as_tensors_in_memory():
    (in_caches, in_caches_f16), (in_memory, in_memory_f16) = costs.ELEMENT_COSTS["Relu"]
    assert costs.element_costs("Relu", SMALL) == pytest.approx((in_caches * SMALL, in_caches_f16 * SMALL))
    assert costs.element_costs("Relu", LARGE) == pytest.approx((in_memory * LARGE, in_memory_f16 * LARGE))


def test_ops_that_move_nothing_save_nothing_and_a_cast_costs_its_start():
    assert costs.element_costs("Reshape", LARGE) == (0, 0)
    assert costs.cast_to_f16(0) == costs.cast_to_float32(0) == costs.DISPATCH


def test_a_kernel_pair_reads_its_forward_op_by_the_input_that_is_named():
    from tensorflow.python.framework import op_def_registry

    expected = {"MaxPoolGrad": "orig_output", "MaxPool3DGrad": "orig_output", "FusedBatchNormGradV3": "reserve_space_3"}
    for gradient, (forward, position) in costs.KERNEL_PAIRS.items():
        assert op_def_registry.get(gradient).input_arg[position].name == expected[gradient]
        assert op_def_registry.get(forward) is not None


def test_a_slow_kernel_is_told_by_its_strides():
    (row,) = costs.SLOW_KERNELS
    node = tf.compat.v1.NodeDef(op=row.op)
    node.attr["strides"].list.i.extend([1, 1, 1, 1])
    assert not row.applies(node)
    node.attr["strides"].list.i[1] = 2
    assert row.applies(node)
