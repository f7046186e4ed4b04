"""Which products are measured, and under which rows."""

from amp_tf.oplists.cost_tables import CHANNELS_FIRST, POINTWISE_FIRST, TRANSPOSED
from amp_tf.tools.calibrating import products


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
