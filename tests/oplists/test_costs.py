"""The cost table: its rows make sense, and the functions on it."""

import pytest
import tensorflow as tf

from amp_tf.oplists import costs
from amp_tf.oplists.table import ALLOW, CLEAR, CPU, INFER, ROWS

SMALL, LARGE = 1_000_000, 10_000_000


def test_every_row_is_an_op_that_the_cpu_lists_leave_open():
    open_ops = {row.op for row in ROWS if row.table == CPU and row.op_list in (INFER, CLEAR)}
    assert costs.ELEMENT_COSTS.keys() <= open_ops
    assert open_ops >= costs.FREE


def test_every_cost_is_positive():
    figures = [figure for row in costs.ELEMENT_COSTS.values() for pair in row for figure in pair]
    assert min(figures) > 0
    for pair in costs.PRODUCT_COSTS.values():
        assert min(figure for cost in pair for figure in (cost.rate, cost.ns)) > 0
        assert min(cost.start for cost in pair) >= 0


def test_every_product_of_the_cpu_lists_costs_as_one_that_was_measured():
    known = costs.PRODUCT_COSTS.keys() | costs.COSTS_AS.keys()
    products = {row.op for row in ROWS if row.table == CPU and row.op_list == ALLOW}
    assert products - known == {"FusedPadConv2D", "_FusedMatMul"}  # as a MatMul
    assert costs.COSTS_AS.keys() <= products
    assert set(costs.COSTS_AS.values()) <= costs.PRODUCT_COSTS.keys() <= products


def test_a_product_costs_by_its_operations_and_by_its_tensors():
    in_float32, in_f16 = costs.PRODUCT_COSTS["Conv2D"]
    found = costs.product_costs("_FusedConv2D", 1e9, 1e6)
    assert found[0] == pytest.approx(1e9 / in_float32.rate + 1e6 * in_float32.ns + in_float32.start)
    assert found[1] == pytest.approx(1e9 / in_f16.rate + 1e6 * in_f16.ns + in_f16.start)


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
