"""Tables of costs: their rows make sense, the functions on them, and their files."""

import dataclasses
import json

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

SMALL = 10_000
LARGE = 10_000_000
FILES = sorted(SHIPPED_FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_row_of_a_shipped_table_is_an_op_that_the_cpu_lists_leave_open(path):
    open_ops = {row.op for row in ROWS if row.table == CPU and row.op_list in (INFER, CLEAR)}
    assert {row.partition(",")[0] for row in read_table(path).elements} <= open_ops
    assert open_ops >= FREE


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_product_of_the_cpu_lists_costs_as_one_that_was_measured(path):
    measured = {row.partition(",")[0] for row in read_table(path).products}
    products = {row.op for row in ROWS if row.table == CPU and row.op_list == ALLOW}
    assert products - (measured | COSTS_AS.keys()) == {
        "FusedPadConv2D",
        "_FusedMatMul",
    }  # as a MatMul
    assert COSTS_AS.keys() <= products
    assert set(COSTS_AS.values()) <= measured <= products


PLAIN = ProductCost(100.0, 0.1, 1_000.0)
OTHER = ProductCost(50.0, 0.4, 1_000.0)
#: The op, how it reads its inputs, the rows that there are in float32 and in 16 bit, and those that
#: count.
ROWS_OF_PRODUCTS = {
    "as its own row says": (
        "Einsum",
        "",
        {"BatchMatMulV2": (PLAIN, PLAIN), "Einsum": (OTHER, OTHER)},
        (OTHER, OTHER),
    ),
    "as that of the kernel that it runs": (
        "Einsum",
        "",
        {"BatchMatMulV2": (PLAIN, OTHER)},
        (PLAIN, OTHER),
    ),
    "turned, as its own row says": (
        "_FusedMatMul",
        TRANSPOSED,
        {"MatMul" + TRANSPOSED: (OTHER, PLAIN)},
        (OTHER, PLAIN),
    ),
    "turned, of another op": (
        "Einsum",
        TRANSPOSED,
        {"BatchMatMulV2": (OTHER, PLAIN)},
        (OTHER, PLAIN),
    ),
    "channels first where nobody has measured it": (
        *("_FusedConv2D", CHANNELS_FIRST, {"Conv2D": (PLAIN, OTHER)}, (PLAIN, PLAIN)),
    ),
    "so with one tap": ("Conv2D", POINTWISE_FIRST, {"Conv2D": (PLAIN, OTHER)}, (PLAIN, PLAIN)),
    "channels first where it was measured": (
        *(
            "Conv2D",
            CHANNELS_FIRST,
            {"Conv2D": (OTHER, OTHER), "Conv2D" + CHANNELS_FIRST: (PLAIN, OTHER)},
        ),
        (PLAIN, OTHER),
    ),
}


@pytest.mark.parametrize(
    ("op", "variant", "rows", "count"), ROWS_OF_PRODUCTS.values(), ids=ROWS_OF_PRODUCTS
)
def test_a_product_costs(op, variant, rows, count):
    table = dataclasses.replace(SHIPPED, products={"MatMul": (PLAIN, PLAIN), **rows})
    assert table.of_product(op, 1e9, 1e6, variant) == tuple(cost.of(1e9, 1e6) for cost in count)


def test_a_small_product_takes_more_for_each_operation():
    cost = ProductCost(100.0, 0.1, 1_000.0, alone=0.01)
    assert cost.of(FEW_OPERATIONS / 2, 0.0) == FEW_OPERATIONS / 2 * 0.02 + 1_000
    assert (
        cost.of(4 * FEW_OPERATIONS, 0.0)
        == 4 * FEW_OPERATIONS * 0.01 + FEW_OPERATIONS * 0.01 + 1_000
    )


def test_times_of_what_is_between_two_measured_sizes_lie_on_the_line_between_theirs():
    sizes = (1e4, 1e6, 1e8)
    table = dataclasses.replace(
        SHIPPED,
        sizes=sizes,
        elements={"Relu": ((1.0, 4.0), (3.0, 2.0), (5.0, 1.0))},
        to_f16=(1.0, 3.0, 5.0),
        to_float32=(4.0, 2.0, 1.0),
    )
    between = (1e4 + 1e6) / 2
    each = {
        1e3: (1e3, 4e3),
        1e4: (1e4, 4e4),
        between: ((1e4 + 3e6) / 2, (4e4 + 2e6) / 2),
        1e6: (3e6, 2e6),
        1e8: (5e8, 1e8),
        1e9: (5e9, 1e9),
    }
    for elements, pair in each.items():
        assert table.of_op("Relu", elements) == pytest.approx(pair)
        assert table.of_casts(elements)[::-1] == pytest.approx([DISPATCH + time for time in pair])
    assert table.of_op("Relu", 0) == (0, 0)


def test_a_table_comes_back_from_its_file(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(SHIPPED.to_json(), encoding="utf-8")
    assert dataclasses.asdict(read_table(path)) == dataclasses.asdict(SHIPPED)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("another version", lambda fields: fields.update(version=2)),
        ("not 2 positive times", lambda fields: fields["elements"].update(Mul=[[0.1, -0.1]] * 7)),
        (
            "not figures of a product",
            lambda fields: fields["products"].update(Conv2D=[[0, 1, 1], [1, 1, 1]]),
        ),
        ("no MatMul", lambda fields: fields["products"].pop("MatMul")),
        ("to_f16", lambda fields: fields.pop("to_f16")),
        (
            "not 7 rows of positive times",
            lambda fields: fields["elements"].update(Mul=[[0.1, 0.1]]),
        ),
        ("not sizes from small to large", lambda fields: fields.update(sizes=[2e6, 1e6])),
        ("not 7 positive times", lambda fields: fields.update(to_f16=[0.1])),
        (
            "not figures of a product",
            lambda fields: fields["products"].update(Conv2D=[[1, 1, float("nan")], [1, 1, 1]]),
        ),
    ],
)
def test_a_file_that_is_no_table_says_so(tmp_path, what, change):
    path = tmp_path / "costs.json"
    fields = json.loads(SHIPPED.to_json())
    change(fields)
    path.write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(ConfigError, match="not a table of costs") as caught:
        read_table(path)
    assert what in str(caught.value)
    assert "amp-tf calibrate" in caught.value.fix


def test_a_careful_table_halves_the_gain_of_products_and_leaves_the_rest():
    careful = SHIPPED.conservative("for tests")
    large = 1e18  # operations: nothing else counts
    gain, careful_gain = (
        pair[0] / pair[1] for pair in (t.of_product("MatMul", large, 1) for t in (SHIPPED, careful))
    )
    assert careful_gain == pytest.approx(gain**0.5)
    assert careful.of_op("Relu", LARGE) == SHIPPED.of_op("Relu", LARGE)
    assert careful.source == "for tests"


@pytest.mark.parametrize(
    ("op", "kernel", "times"),
    [
        ("Conv2D", (3, 3, 64, 3), 16 / 3),
        ("_FusedConv2D", (3, 3, 3, 64), 1),
        ("_FusedConv3D", (3, 3, 3, 64, 24), 32 / 24),
        ("Conv2DBackpropInput", (3, 3, 3, 64), 16 / 3),
        ("Conv3DBackpropInputV2", (1, 1, 1, 32, 1), 1),
        ("Conv2DBackpropFilter", (3, 3, 64, 1), 16),
        ("DepthwiseConv2dNative", (3, 3, 64, 1), 1),
        ("MatMul", None, 1),
        ("Conv2D", (3, 3, 64, 0), 1),
        ("Conv2D", (3, 3, 64, -1), 1),
    ],
)
def test_a_convolution_computes_whole_vectors_of_its_results_channels(op, kernel, times):
    assert padding_factor(op, kernel) == pytest.approx(times)


def test_a_product_costs_by_its_operations_and_by_its_tensors():
    in_float32, in_f16 = SHIPPED.products["Conv2D"]
    found = SHIPPED.of_product("_FusedConv2D", 1e9, 1e6)
    for time, cost in zip(found, (in_float32, in_f16), strict=True):
        few = FEW_OPERATIONS * cost.alone
        assert time == pytest.approx(1e9 / cost.rate + 1e6 * cost.ns + cost.start + few)
