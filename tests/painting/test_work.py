"""Operations of products, against the textbook formulas."""

import pytest

from amp_tf.graph.sizes import NOMINAL_BATCH
from amp_tf.painting.work import count_operations


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "expected"),
    [
        ("MatMul", [(3, 5), (5, 7)], [(3, 7)], 2 * 3 * 5 * 7),
        ("MatMul", [(-1, 5), (5, 7)], [(-1, 7)], 2 * NOMINAL_BATCH * 5 * 7),
        ("_FusedMatMul", [(3, 5), (5, 7), (7,)], [(3, 7)], 2 * 3 * 5 * 7),
        ("BatchMatMulV2", [(2, 4, 3, 5), (2, 4, 5, 7)], [(2, 4, 3, 7)], 2 * 8 * 3 * 5 * 7),
        ("BatchMatMulV2", [(8, 3, 5), (5, 7)], [(8, 3, 7)], 2 * 8 * 3 * 5 * 7),  # a weight that all examples share
        ("BatchMatMulV2", [(8, 3, 7), (5, 7)], [(8, 3, 5)], 2 * 8 * 3 * 5 * 7),  # turned, in its gradient
        ("BatchMatMulV2", [(3, 5), (8, 5, 7)], [(8, 3, 7)], 2 * 8 * 3 * 5 * 7),
        ("BatchMatMulV2", [(2, 1, 3, 5), (1, 4, 5, 7)], [(2, 4, 3, 7)], 2 * 8 * 3 * 5 * 7),
        ("BatchMatMulV2", [(-1, 3, 5), (5, 7)], [(-1, 3, 7)], 2 * NOMINAL_BATCH * 3 * 5 * 7),
        ("BatchMatMulV2", [(8, 3, 5), (-1, -1)], [(8, 3, 7)], 2 * 8 * 3 * 5 * 7),
        ("Conv2D", [(2, 9, 9, 3), (3, 3, 3, 8)], [(2, 7, 7, 8)], 2 * (2 * 7 * 7 * 8) * (3 * 3 * 3)),
        ("Conv2DBackpropInput", [(4,), (3, 3, 3, 8), (2, 7, 7, 8)], [(2, 9, 9, 3)], 2 * (2 * 7 * 7 * 8) * 27),
        ("Conv2DBackpropFilter", [(2, 9, 9, 3), (4,), (2, 7, 7, 8)], [(3, 3, 3, 8)], 2 * (2 * 7 * 7 * 8) * 27),
        ("DepthwiseConv2dNative", [(2, 9, 9, 6), (3, 3, 6, 1)], [(2, 7, 7, 6)], 2 * (2 * 7 * 7 * 6) * 9),
    ],
)
def test_counts_are_those_of_the_formula(op, inputs, outputs, expected):
    assert count_operations(op, inputs, outputs) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("equation", "inputs", "expected"),
    [
        ("ab,bc->ac", [(3, 5), (5, 7)], 3 * 5 * 7),
        ("aecd, abcd -> acbe", [(32, 64, 12, 8), (32, 60, 12, 8)], 32 * 64 * 60 * 12 * 8),  # attention's scores
        ("ab,bc->ac", [(-1, 5), (5, 7)], NOMINAL_BATCH * 5 * 7),
        ("ab,bc->ac", [(-1, 5), (5, -1)], None),
        ("ab,bc->ac", [None, (5, 7)], None),
        ("ab,bc->ac", [(2, 3, 5), (5, 7)], None),  # not the equation of these inputs
        ("ii->", [(4, 4)], 4),
    ],
)
def test_an_einsum_multiplies_once_for_each_choice_of_indices(equation, inputs, expected):
    found = count_operations("Einsum", inputs, [(1,)], equation)
    assert found == (expected and 2 * expected)


def test_an_ellipsis_counts_as_in_a_matrix_product():
    assert count_operations("Einsum", [(3, 5), (5, 7)], [(3, 7)], "...b,bc->...c") == pytest.approx(2 * 3 * 5 * 7)


@pytest.mark.parametrize(
    ("op", "inputs", "outputs"),
    [
        ("MatMul", [None, (5, 7)], [(3, 7)]),
        ("MatMul", [(-1, -1), (5, 7)], [(-1, 7)]),
        ("MatMul", [], []),
        ("BatchMatMulV2", [(8, -1, 5), None], [(8, -1, 7)]),
        ("BatchMatMulV2", [(8, 3, 5), (5, 7)], [()]),
        ("Conv2D", [(2, 9, 9, 3)], [(2, 7, 7, 8)]),
    ],
)
def test_unknown_shapes_give_no_count(op, inputs, outputs):
    assert count_operations(op, inputs, outputs) is None
