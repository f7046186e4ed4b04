"""Measuring, on a few products and ops."""

import math

import pytest
import tensorflow as tf

from amp_tf.oplists.cost_tables import DISPATCH, SHIPPED, SHIPPED_FOLDER, read_table
from amp_tf.tools import calibrating as measure
from amp_tf.tools.calibrating import elements, products
from tests.as_cpu import onednn

SMALL = (8, 8, 8, 64)
OPS = ("Mul", "Tanh", "Reciprocal", "BiasAdd", "AddV2")

needs_onednn = pytest.mark.skipif(
    not onednn.is_on(), reason="TensorFlow has kernels for convolutions with channels first in oneDNN alone, off here"
)


@pytest.fixture
def few(monkeypatch):
    """Only small products, one of each op, and few ops."""
    smallest = {}
    for product in products.all_products():
        if product.op not in smallest or product.operations < smallest[product.op].operations:
            smallest[product.op] = product
    everything = elements.ops_on
    monkeypatch.setattr(products, "all_products", lambda: iter(smallest.values()))
    monkeypatch.setattr(elements, "ops_on", lambda data: {name: everything(data)[name] for name in OPS})
    monkeypatch.setattr(elements, "SAME_KERNEL", {"BiasAddV1": "BiasAdd", "Inv": "Reciprocal"})
    monkeypatch.setattr(elements, "SHAPES", (SMALL, (8, 16, 16, 64)))
    return smallest


@needs_onednn
def test_a_table_has_every_product_and_op_that_was_measured(few, tmp_path):
    said = []
    found = measure.measure(SHIPPED, "here", 1.0, lambda number, count, name: said.append((number, count, name)))
    table = found.table
    assert table.products.keys() == few.keys() >= SHIPPED.products.keys()
    assert table.elements.keys() == {*OPS, *elements.SAME_KERNEL}
    assert {product.op for product in found.times} == few.keys()
    assert all(0 < time < math.inf for pair in found.times.values() for time in pair)
    assert [number for number, _, _ in said] == list(range(said[0][1]))
    path = tmp_path / "costs.json"
    path.write_text(table.to_json(), encoding="utf-8")
    assert read_table(path).source == "here"  # which refuses what is no time


def test_how_far_the_table_is_off_is_told_of_times_and_of_gains():
    cases = [product for product in products.all_products() if product.op == "MatMul"]
    exact = {
        case: tuple(cost.of(case.computed, case.elements) for cost in SHIPPED.products["MatMul"]) for case in cases
    }
    assert measure.Measured(SHIPPED, exact).misfit("MatMul") == pytest.approx((0, 0, 0))
    slower = {case: (1.1 * in_float32, 1.1 * 1.1 * in_f16) for case, (in_float32, in_f16) in exact.items()}
    once = math.log(1.1)
    assert measure.Measured(SHIPPED, slower).misfit("MatMul") == pytest.approx((once, 2 * once, once))


@needs_onednn
def test_the_graph_optimizers_are_as_before(few):
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    measure.measure(SHIPPED, "here", 0.0)
    assert tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False) == before


def test_what_is_measured_runs_in_both_types_and_is_the_op_that_it_is_called():
    """Each product and op as it is traced, without running it."""
    cases = dict(elements.ops_on(elements.data_of(SMALL)))
    for product in products.all_products():
        cases.setdefault(product.op, (product.run, [tf.zeros(shape) for shape in product.shapes]))
    for name, (op, inputs) in cases.items():
        for dtype in (tf.float32, tf.bfloat16):
            specs = [tf.TensorSpec(tensor.shape, dtype) for tensor in inputs]
            graph = tf.function(op).get_concrete_function(*specs).graph
            assert name.partition(",")[0] in {node.type for node in graph.get_operations()}


def test_all_ops_of_the_shipped_tables_are_measured():
    named = elements.ops_on(elements.data_of(SMALL)).keys() | elements.SAME_KERNEL.keys()
    rows = {product.op for product in products.all_products()}
    tables = [read_table(path) for path in SHIPPED_FOLDER.glob("*.json")]
    assert all(table.elements.keys() <= named and table.products.keys() <= rows for table in tables)
    assert any(table.elements.keys() == named and table.products.keys() == rows for table in tables)


def _times(**special):
    """What was timed, as the table is made from it: 5 ns for an element, 1 for a call and 1 more for a stack."""
    of_ops = {}
    for shape in elements.SHAPES:
        of_ops.update(((name, shape), (5.0, 4.0)) for name in elements.ops_on(elements.data_of(SMALL)))
        of_ops.update(((f"Nothing of {stacks}", shape), (1.0 + stacks, 1.0 + stacks)) for stacks in (0, 1))
        of_ops.update(((f"Cast to {kind}", shape), (5.0, 5.0)) for kind in ("float32", "bfloat16"))
        of_ops.update(((name, shape), value(shape)) for name, value in special.items())
    return of_ops


def _table(few, of_ops):
    return measure._table(SHIPPED, "here", dict.fromkeys(few.values(), (1e5, 1e5)), of_ops)


def test_what_calls_and_stacks_take_is_no_part_of_an_op_or_a_cast(few):
    to_f16, to_float32 = 2.0, 1.0
    casts = {
        "Cast to bfloat16": lambda shape: (2 + DISPATCH / math.prod(shape) + to_f16, 2.0),
        "Cast to float32": lambda shape: (2.0, 2 + DISPATCH / math.prod(shape) + to_float32),
    }
    table = _table(few, _times(**casts))
    assert table.to_f16 == pytest.approx((to_f16, to_f16))
    assert table.to_float32 == pytest.approx((to_float32, to_float32))
    assert table.elements["Tanh"] == ((4, 3), (4, 3))
    assert table.elements["Mul"] == ((3, 2), (3, 2))


def test_what_a_gradient_is_measured_with_is_no_part_of_it(few, monkeypatch):
    monkeypatch.setattr(elements, "MEASURED_WITH", {"AddV2": "Tanh"})
    assert _table(few, _times(AddV2=lambda shape: (7.0, 6.5))).elements["AddV2"] == ((1, 1.5), (1, 1.5))


def test_times_at_sizes_that_were_left_out_lie_on_a_line(few, monkeypatch):
    """Of 100, 200 and 300 elements, the first and the last were measured."""
    monkeypatch.setattr(elements, "SHAPES", ((100,), (200,), (300,)))
    monkeypatch.setattr(elements, "data_of", lambda shape: tf.zeros(SMALL))
    of_ops = _times(Tanh=lambda shape: (1 + 2.0, 1 + 1.0) if shape == (100,) else (1 + 4.0, 1 + 1.0))
    del of_ops["Tanh", (200,)]
    first, second, third = _table(few, of_ops).elements["Tanh"]
    assert (first, third) == ((2, 1), (4, 1))
    assert second == ((100 * 2 + 300 * 4) / 2 / 200, 1)
