"""Which products and ops are measured, and on what."""

from __future__ import annotations

import itertools
import math

import tensorflow as tf

from amp_tf.oplists.cost_tables import CHANNELS_FIRST, FREE, POINTWISE_FIRST, TRANSPOSED
from amp_tf.oplists.table import CLEAR, CPU, INFER, ROWS, Trait
from amp_tf.tools.calibrating import elements, products

SMALL = (8, 8, 8, 64)


def test_sizes_go_from_what_one_thread_computes_to_what_no_cache_holds():
    counts = [math.prod(shape) for shape in elements.SHAPES]
    assert all(before < after for before, after in itertools.pairwise(counts))
    assert counts[0] < 210_000 / 4
    assert counts[-1] > 8e6


def test_data_lies_between_0_and_1_so_that_every_op_takes_it():
    data = elements.data_of(SMALL)
    assert data.dtype == tf.float32
    assert data.shape == SMALL
    for name, (op, inputs) in elements.ops_on(data).items():
        for output in tf.nest.flatten(tf.function(op)(*inputs)):
            if output.dtype.is_floating:
                assert bool(tf.reduce_all(tf.math.is_finite(output))), name


def test_a_row_of_the_same_kernel_is_that_of_an_op_that_is_measured():
    assert set(elements.SAME_KERNEL.values()) <= elements.ops_on(elements.data_of(SMALL)).keys()


def test_ops_read_or_write_no_tensor_that_is_larger_than_the_shape_that_they_are_measured_for():
    data = elements.data_of(SMALL)
    for name, (op, inputs) in elements.ops_on(data).items():
        outputs = tf.nest.flatten(tf.function(op).get_concrete_function(*inputs).structured_outputs)
        largest = max(tensor.shape.num_elements() or 0 for tensor in (*inputs, *outputs))
        grows = name in {"MirrorPad", "Pad"}
        assert largest == math.prod(SMALL) or (grows and largest < 2 * math.prod(SMALL)), name


def test_every_op_of_the_lists_has_a_row_or_costs_nothing_or_is_named_here():
    """Those that are not measured: second gradients of poolings, and ops that are rare around products."""
    unmeasured = Trait(
        """MaxPoolGradGrad MaxPoolGradGradV2 TensorListConcatLists TensorListGather TensorListScatter
        TensorListScatterIntoExistingList TensorListScatterV2 TensorListSplit Where _FusedBatchNormEx"""
    )
    rows = elements.ops_on(elements.data_of(SMALL)).keys() | elements.SAME_KERNEL.keys()
    listed = {row.op for row in ROWS if row.table == CPU and row.op_list in (INFER, CLEAR)}
    assert listed - rows - FREE == unmeasured


def test_products_that_read_a_matrix_turned_or_have_channels_first_have_rows_of_their_own():
    rows = {product.op: product.what for product in products.all_products() if "," in product.op}
    turned = {"MatMul" + TRANSPOSED, "BatchMatMulV2" + TRANSPOSED}
    convolutions = ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter")
    one_tap = {op + POINTWISE_FIRST for op in convolutions}
    first = {op + CHANNELS_FIRST for op in convolutions} | one_tap
    assert rows.keys() == turned | first
    for product in products.all_products():
        assert ("b transposed" in product.what) == (product.op in turned)
        assert ("channels first" in product.what) == (product.op in first)
        assert (", 1×1" in product.what and product.op in first) == (product.op in one_tap)


def test_operations_count_as_asked_for_and_as_computed():
    few = [product for product in products.all_products() if product.what.startswith("16×32×32×32 → 3")]
    assert {product.op: product.computed / product.operations for product in few} == {
        "Conv2D": 16 / 3,
        "Conv2DBackpropInput": 1,
        "Conv2DBackpropFilter": 16 / 3,
    }
    assert all(product.padding_factor == 1 for product in products.all_products() if "," in product.op)


def test_no_product_is_measured_that_never_pays_anyway():
    for product in products.all_products():
        if product.op == "DepthwiseConv2dNativeBackpropInput":
            assert "stride" not in product.what
        if product.op == "DepthwiseConv2dNativeBackpropFilter":
            assert "3×3" in product.what
