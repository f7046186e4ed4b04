"""Measuring, on a few products and ops."""

import math

import pytest
import tensorflow as tf

from amp_tf.calibrating import elements, measure, products
from amp_tf.oplists.cost_tables import DISPATCH, SHIPPED, SHIPPED_FOLDER, read_table

SMALL = (8, 8, 8, 64)
OPS = ("Mul", "Tanh", "Reciprocal", "BiasAdd", "AddV2")


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
    monkeypatch.setattr(elements, "SHAPES", (SMALL, (8, 16, 16, 64)))
    return smallest


def test_a_table_has_every_product_and_op_that_was_measured(few, tmp_path):
    said = []
    found = measure.measure(SHIPPED, "here", 1.0, lambda number, count, name: said.append((number, count, name)))
    table = found.table
    assert table.products.keys() == few.keys() >= SHIPPED.products.keys()
    assert table.elements.keys() == {*OPS, "BiasAddV1", "Inv"}
    assert {product.op for product in found.times} == few.keys()
    assert all(0 < time < math.inf for pair in found.times.values() for time in pair)
    assert [number for number, _, _ in said] == list(range(said[0][1]))
    path = tmp_path / "costs.json"
    path.write_text(table.to_json(), encoding="utf-8")
    assert read_table(path).source == "here"  # which refuses what is no time


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


def test_what_calling_a_function_of_many_tensors_takes_is_no_part_of_a_cast(few):
    """A cast to the type that a tensor has is no op: what it takes is the call's."""
    call, to_f16, to_float32 = 5.0, 2.0, 1.0
    of_ops = {
        (name, shape): (1.0, 1.0) for name in elements.ops_on(elements.data_of(SMALL)) for shape in elements.SHAPES
    }
    for shape in elements.SHAPES:
        start = DISPATCH / math.prod(shape)
        of_ops["Cast to bfloat16", shape] = call + start + to_f16, call
        of_ops["Cast to float32", shape] = call, call + start + to_float32
    table = measure._table(SHIPPED, "here", dict.fromkeys(few.values(), (1e5, 1e5)), of_ops)
    assert table.to_f16 == pytest.approx((to_f16, to_f16))
    assert table.to_float32 == pytest.approx((to_float32, to_float32))
