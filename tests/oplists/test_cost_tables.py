"""Tables of costs: their rows make sense, the functions on them, and their files."""

import ast
import dataclasses
import json
import math
from fractions import Fraction

import pytest

from amp_tf.errors import ConfigError
from amp_tf.oplists.cost_tables import (
    CHANNELS_FIRST,
    COSTS_AS,
    DISPATCH,
    FEW_OPERATIONS,
    FREE,
    POINTWISE_FIRST,
    SHIPPED,
    SHIPPED_FOLDER,
    TRANSPOSED,
    ProductCost,
    padding_factor,
    read_table,
)
from amp_tf.oplists.table import ALLOW, CLEAR, CPU, INFER, ROWS

FILES = sorted(SHIPPED_FOLDER.glob("*.json"))


each_table = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def listed(*op_lists):
    """The ops of these lists for CPUs."""
    found = set()
    for row in ROWS:
        if row.table == CPU and row.op_list in op_lists:
            found.add(row.op)
    return found


def ops_of(rows):
    """The ops of a table's rows, whose names may go on with how inputs are read."""
    found = set()
    for row in rows:
        op, _, _ = row.partition(",")
        found.add(op)
    return found


@each_table
def test_every_row_of_a_shipped_table_is_an_op_that_the_cpu_lists_leave_open(path):
    open_ops = listed(INFER, CLEAR)
    assert ops_of(read_table(path).elements) <= open_ops
    assert open_ops >= FREE


@each_table
def test_every_product_of_the_cpu_lists_costs_as_one_that_was_measured(path):
    measured = ops_of(read_table(path).products)
    products = listed(ALLOW)
    as_a_matmul = {"FusedPadConv2D", "_FusedMatMul"}
    assert products - (measured | COSTS_AS.keys()) == as_a_matmul
    assert COSTS_AS.keys() <= products
    assert set(COSTS_AS.values()) <= measured <= products


PLAIN = ProductCost(100.0, 0.1, 1_000.0)
OTHER = ProductCost(50.0, 0.4, 1_000.0)
TURNED = "MatMul" + TRANSPOSED
FIRST = "Conv2D" + CHANNELS_FIRST
CONVOLUTION = {"Conv2D": (PLAIN, OTHER)}
#: The op, how it reads its inputs, the rows that there are in float32 and in 16 bit, and those that
#: count.
ROWS_OF_PRODUCTS = {
    "as its own row says": ("Einsum", "", {"Einsum": (OTHER, OTHER)}, (OTHER, OTHER)),
    "as that of the kernel that it runs": ("Einsum", "", {}, (PLAIN, OTHER)),
    "turned, as its own row says": (
        "_FusedMatMul",
        TRANSPOSED,
        {TURNED: (OTHER, PLAIN)},
        (OTHER, PLAIN),
    ),
    "turned, of another op": ("Einsum", TRANSPOSED, {}, (PLAIN, OTHER)),
    "channels first where nobody has measured it": (
        "_FusedConv2D",
        CHANNELS_FIRST,
        CONVOLUTION,
        (PLAIN, PLAIN),
    ),
    "so with one tap": ("Conv2D", POINTWISE_FIRST, CONVOLUTION, (PLAIN, PLAIN)),
    "channels first where it was measured": (
        "Conv2D",
        CHANNELS_FIRST,
        {"Conv2D": (OTHER, OTHER), FIRST: (PLAIN, OTHER)},
        (PLAIN, OTHER),
    ),
}


@pytest.mark.parametrize(
    ("op", "variant", "rows", "count"), ROWS_OF_PRODUCTS.values(), ids=ROWS_OF_PRODUCTS
)
def test_a_product_costs(op, variant, rows, count):
    products = {"MatMul": (PLAIN, PLAIN), "BatchMatMulV2": (PLAIN, OTHER), **rows}
    table = dataclasses.replace(SHIPPED, products=products)
    in_float32, in_f16 = count
    wanted = (in_float32.of(1e9, 1e6), in_f16.of(1e9, 1e6))
    assert table.of_product(op, 1e9, 1e6, variant) == wanted


def test_a_small_product_takes_more_for_each_operation():
    cost = ProductCost(100.0, 0.1, 1_000.0, alone=0.01)
    few = FEW_OPERATIONS
    fixed = 5 + 1_000
    fewer = few / 2
    more = 4 * few
    assert cost.of(fewer, 50.0) == pytest.approx(fewer * 0.02 + fixed)
    assert cost.of(more, 50.0) == pytest.approx((more + few) * 0.01 + fixed)


def test_times_of_what_is_between_two_measured_sizes_lie_on_the_line_between_theirs():
    table = dataclasses.replace(
        SHIPPED,
        sizes=(1e4, 1e6, 1e8),
        elements={"Relu": ((1.0, 4.0), (3.0, 2.0), (5.0, 1.0))},
        to_f16=(1.0, 3.0, 5.0),
        to_float32=(4.0, 2.0, 1.0),
    )
    between = (1e4 + 1e6) / 2
    for elements, in_float32, in_f16 in (
        (1e3, 1e3, 4e3),
        (1e4, 1e4, 4e4),
        (between, (1e4 + 3e6) / 2, (4e4 + 2e6) / 2),
        (1e6, 3e6, 2e6),
        (1e8, 5e8, 1e8),
        (1e9, 5e9, 1e9),
    ):
        assert table.of_op("Relu", elements) == pytest.approx((in_float32, in_f16))
        casts = (DISPATCH + in_f16, DISPATCH + in_float32)
        assert table.of_casts(elements) == pytest.approx(casts)
    assert table.of_op("Relu", 0) == (0, 0)


def test_a_table_comes_back_from_its_file(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(SHIPPED.to_json(), encoding="utf-8")
    assert dataclasses.asdict(read_table(path)) == dataclasses.asdict(SHIPPED)


@pytest.mark.parametrize(
    ("what", "place", "wrong"),
    [
        ("another version", ["version"], 2),
        ("not 2 positive times", ["elements", "Mul"], [[0.1, -0.1]] * 7),
        ("not 7 rows of positive times", ["elements", "Mul"], [[0.1, 0.1]]),
        ("not figures of a product", ["products", "Conv2D"], [[0, 1, 1], [1, 1, 1]]),
        ("not figures of a product", ["products", "Conv2D"], [[1, 1, math.nan], [1, 1, 1]]),
        ("no MatMul", ["products"], {}),
        ("to_f16", ["to_f16"], None),
        ("not sizes from small to large", ["sizes"], [2e6, 1e6]),
        ("not 7 positive times", ["to_f16"], [0.1]),
    ],
)
def test_a_file_that_is_no_table_says_so(tmp_path, what, place, wrong):
    path = tmp_path / "costs.json"
    fields = json.loads(SHIPPED.to_json())
    *around, last = place
    of = fields
    for key in around:
        of = of[key]
    of[last] = wrong
    if wrong is None:
        del of[last]
    path.write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(ConfigError, match="not a table of costs") as caught:
        read_table(path)
    assert what in str(caught.value)
    assert "amp-tf calibrate" in caught.value.fix


def test_a_careful_table_halves_the_gain_of_products_and_leaves_the_rest():
    careful = SHIPPED.conservative("for tests")
    gains = []
    for table in (SHIPPED, careful):
        in_float32, in_f16 = table.of_product("MatMul", 1e18, 1)  # so many that nothing else counts
        gains.append(in_float32 / in_f16)
    assert gains[1] == pytest.approx(gains[0] ** 0.5)
    assert careful.of_op("Relu", 1e7) == SHIPPED.of_op("Relu", 1e7)
    assert careful.source == "for tests"


#: A convolution, its kernel's shape, and how often it computes its results.
PADDED = """
    Conv2D (3, 3, 64, 3) 16/3
    _FusedConv2D (3, 3, 3, 64) 1
    _FusedConv3D (3, 3, 3, 64, 24) 32/24
    Conv2DBackpropInput (3, 3, 3, 64) 16/3
    Conv3DBackpropInputV2 (1, 1, 1, 32, 1) 1
    Conv2DBackpropFilter (3, 3, 64, 1) 16
    DepthwiseConv2dNative (3, 3, 64, 1) 1
    MatMul None 1
    Conv2D (3, 3, 64, 0) 1
    Conv2D (3, 3, 64, -1) 1
"""


@pytest.mark.parametrize("row", PADDED.strip().splitlines())
def test_a_convolution_computes_whole_vectors_of_its_results_channels(row):
    op, rest = row.split(maxsplit=1)
    kernel, times = rest.rsplit(maxsplit=1)
    found = padding_factor(op, ast.literal_eval(kernel))
    assert found == pytest.approx(float(Fraction(times)))
