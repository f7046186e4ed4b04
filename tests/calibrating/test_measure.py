"""Measures ops on this CPU, and makes the table of costs from given times."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.oplists.cost_tables import (
    DISPATCH,
    FREE,
    SHIPPED,
    SHIPPED_FOLDER,
    ProductCost,
    read_table,
)
from amp_tf.oplists.table import CLEAR, CPU, INFER, ROWS, Trait
from amp_tf.tools import calibrating as measure
from amp_tf.tools.calibrating import elements, fit, products
from tests.as_cpu import onednn

pytestmark = pytest.mark.cpu_dependent

SMALL = (8, 8, 8, 64)
OPS = ("Mul", "Tanh", "Reciprocal", "BiasAdd", "AddV2")
needs_onednn = pytest.mark.skipif(
    not onednn.is_on(),
    reason="TensorFlow has kernels for convolutions with channels first in oneDNN alone, off here",
)


@pytest.fixture
def few(monkeypatch):
    """Only small products, one of each op, and few ops."""
    smallest = {}
    for product in products.all_products():
        known = smallest.setdefault(product.op, product)
        if product.operations < known.operations:
            smallest[product.op] = product
    everything = elements.ops_on

    def few_ops(data):
        found = everything(data)
        return {name: found[name] for name in OPS}

    monkeypatch.setattr(products, "all_products", lambda: iter(smallest.values()))
    monkeypatch.setattr(elements, "ops_on", few_ops)
    monkeypatch.setattr(elements, "SAME_KERNEL", {"BiasAddV1": "BiasAdd", "Inv": "Reciprocal"})
    monkeypatch.setattr(elements, "SHAPES", (SMALL, (8, 16, 16, 64)))
    return smallest


@needs_onednn
def test_a_table_has_every_product_and_op_that_was_measured(few, tmp_path):
    told = []
    options = tf.config.optimizer.get_experimental_options
    before = options().get("disable_meta_optimizer", False)
    table = measure.measure(SHIPPED, "here", 1.0, told.append)
    assert options().get("disable_meta_optimizer", False) == before
    assert table.products.keys() == few.keys() >= SHIPPED.products.keys()
    assert table.elements.keys() == {*OPS, *elements.SAME_KERNEL}
    shares = [int(line.partition("%")[0]) for line in told]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert len(told) > len(few)
    path = tmp_path / "costs.json"
    path.write_text(table.to_json(), encoding="utf-8")
    assert read_table(path).source == "here"  # which refuses what is no time


@pytest.fixture(scope="module")
def all_ops():
    """Each elementwise op that is measured, with its inputs."""
    return elements.ops_on(elements.data_of(SMALL))


def test_what_is_measured_runs_in_both_types_and_is_the_op_that_it_is_called(all_ops):
    """Each product and op as it is traced, without running it."""
    cases = dict(all_ops)
    for product in products.all_products():
        cases.setdefault(product.op, (product.run, [tf.zeros(shape) for shape in product.shapes]))
    for name, (op, inputs) in cases.items():
        for dtype in (tf.float32, tf.bfloat16):
            specs = [tf.TensorSpec(tensor.shape, dtype) for tensor in inputs]
            graph = tf.function(op).get_concrete_function(*specs).graph
            assert name.partition(",")[0] in {node.type for node in graph.get_operations()}


def test_all_ops_of_the_shipped_tables_are_measured(all_ops):
    assert set(elements.SAME_KERNEL.values()) <= all_ops.keys()
    measured_ops = all_ops.keys() | elements.SAME_KERNEL.keys()
    measured_products = {product.op for product in products.all_products()}
    missing = []
    for path in SHIPPED_FOLDER.glob("*.json"):
        table = read_table(path)
        assert table.elements.keys() <= measured_ops
        assert table.products.keys() <= measured_products
        unmeasured = (measured_ops - table.elements.keys()) | (
            measured_products - table.products.keys()
        )
        missing.append(unmeasured)
    assert set() in missing, "no table has all"


def _table(few, **special):
    """Makes a table from times: 5 and 4 ns an element, 1 a call and 1 more a stack, 1e5 a
    product.
    """
    of_ops = {}
    for shape in elements.SHAPES:
        for name in OPS:
            of_ops[name, shape] = (5.0, 4.0)
        for stacks in (0, 1):
            of_ops[f"Nothing of {stacks}", shape] = (1.0 + stacks, 1.0 + stacks)
        for kind in ("float32", "bfloat16"):
            of_ops[f"Cast to {kind}", shape] = (5.0, 5.0)
        for name, times in special.items():
            of_ops[name, shape] = times(shape)
    of_products = dict.fromkeys(few.items(), (1e5, 1e5))
    return measure._table(SHIPPED, "here", {**of_products, **of_ops})


def test_what_calls_and_stacks_take_is_no_part_of_an_op_or_a_cast(few):
    def of_stack(shape):
        return 2.0 + DISPATCH / math.prod(shape)

    casts = {
        "Cast to bfloat16": lambda shape: (of_stack(shape) + 2.0, 2.0),
        "Cast to float32": lambda shape: (2.0, of_stack(shape) + 1.0),
    }
    table = _table(few, **casts)
    assert table.to_f16 == pytest.approx((2.0, 2.0))
    assert table.to_float32 == pytest.approx((1.0, 1.0))
    assert table.elements["Tanh"] == ((4, 3), (4, 3))
    assert table.elements["Mul"] == ((3, 2), (3, 2))


def test_what_a_gradient_is_measured_with_is_no_part_of_it(few, monkeypatch):
    monkeypatch.setattr(elements, "MEASURED_WITH", {"AddV2": "Tanh"})
    table = _table(few, AddV2=lambda shape: (7.0, 6.5))
    assert table.elements["AddV2"] == ((1, 1.5), (1, 1.5))


def test_data_lies_between_0_and_1_so_that_every_op_takes_it_and_gives_no_more(all_ops):
    """Ops read or write no tensor that is larger than the shape that they are measured for."""
    data = elements.data_of(SMALL)
    assert (data.dtype, data.shape) == (tf.float32, SMALL)
    for name, (op, inputs) in all_ops.items():
        outputs = tf.nest.flatten(tf.function(op)(*inputs))
        for output in outputs:
            if output.dtype.is_floating:
                assert bool(tf.reduce_all(tf.math.is_finite(output))), name
        largest = max(int(tf.size(tensor)) for tensor in (*inputs, *outputs))
        if name in ("MirrorPad", "Pad"):
            assert math.prod(SMALL) < largest < 2 * math.prod(SMALL)
        else:
            assert largest == math.prod(SMALL), name


def test_every_op_of_the_lists_has_a_row_or_costs_nothing_or_is_named_here(all_ops):
    """Second gradients of poolings and ops that are rare around products are not measured."""
    unmeasured = Trait(
        """MaxPoolGradGrad MaxPoolGradGradV2 TensorListConcatLists TensorListGather
        TensorListScatter TensorListScatterIntoExistingList TensorListScatterV2 TensorListSplit
        Where _FusedBatchNormEx"""
    )
    listed = {row.op for row in ROWS if row.table == CPU and row.op_list in (INFER, CLEAR)}
    assert listed - all_ops.keys() - elements.SAME_KERNEL.keys() - FREE == unmeasured


AS_SHIPPED = ProductCost(rate=220.0, ns=0.08, start=20_000.0)
TRUE = ProductCost(rate=400.0, ns=0.12, start=9_000.0)
GRID = list(itertools.product((1e5, 1e7, 1e9), (1e3, 1e5, 1e6)))
WORK = [(operations, elements, elements / 4) for operations, elements in GRID]


def largest_error(found, true, work):
    return max(abs(found.of(*one) / true.of(*one) - 1) for one in work)


@pytest.mark.parametrize(
    ("true", "figures", "work", "off"),
    [
        # The shipped figures count a little.
        (TRUE, [], WORK, 0.03),
        # Small products may take more for each operation, as on one thread.
        (
            ProductCost(rate=180.0, ns=0.05, start=4_000.0, alone=0.005),
            ["alone"],
            [(operations, 1e5, 1e4) for operations in (1e6, 4e6, 8e6, 3e7, 1e8, 1e9)],
            0.05,
        ),
        # Results may take more than inputs, as a filter gradient's, which is added up in float32.
        (
            ProductCost(rate=400.0, ns=0.1, start=9_000.0, written=1.2),
            ["written"],
            [
                (operations, elements, share * elements)
                for operations, elements in itertools.product((1e7, 1e8, 1e9), (1e5, 1e6, 3e6))
                for share in (0.01, 0.3, 0.9)
            ],
            0.1,
        ),
    ],
    ids=["exact", "alone", "written"],
)
def test_times_give_the_figures_that_they_were_made_of(true, figures, work, off):
    found = fit(work, [true.of(*one) for one in work], AS_SHIPPED)
    for figure in figures:
        assert getattr(found, figure) == pytest.approx(getattr(true, figure), rel=0.2)
    assert largest_error(found, true, work) < off
    again = fit(work, [true.of(*one) for one in work], found)
    assert largest_error(again, true, work) < off


def test_noisy_times_give_figures_that_are_off_by_less_than_the_noise():
    noise = np.random.default_rng(0).uniform(0.9, 1.1, len(WORK))
    times = np.array([TRUE.of(*one) for one in WORK])
    found = fit(WORK, list(times * noise), AS_SHIPPED)
    assert np.median(np.abs([found.of(*one) for one in WORK] / times - 1)) < 0.1


def test_no_figure_is_negative():
    """A small product that takes longer than its share of a large one would ask for a negative cost
    of elements.
    """
    times = [50_000.0, 51_000.0, 1e5, 1e5, 1.1e5, 2e5, 3e6, 2.9e6, 2.8e6]
    found = fit(WORK, times, AS_SHIPPED)
    assert found.rate > 0
    assert min(found.ns, found.start) >= 0


DATA = tf.ones((4, 4))


def test_each_run_takes_the_next_of_a_stack_and_the_same_of_other_inputs():
    seen = []
    run = measure.run_many(lambda x, y: seen.append((float(x), float(y))), 3, 1)
    run(tf.constant(1.0), tf.constant([10.0, 20.0, 30.0]))
    assert seen == [(1, 10), (1, 20), (1, 30)]


@pytest.mark.parametrize("stacks", [0, 1])
def test_each_of_four_runs_waits_for_the_one_before_in_both_types(stacks):
    seen = []

    def op(x):
        seen.append(x.dtype)
        return tf.math.softplus(x)

    run = measure.run_many(op, 4, stacks)
    graph = tf.function(run).get_concrete_function(DATA).graph
    before = None
    for each in graph.get_operations():
        if each.type == "Softplus":
            assert before is None or before in each.control_inputs
            before = each
    assert before is not None
    seen.clear()
    measure.take_times(run, [DATA], 4, until=0.0)
    assert seen == [tf.float32] * 4 + [tf.bfloat16] * 4
