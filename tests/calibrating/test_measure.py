"""Measures ops on this CPU, and makes the table of costs from given times."""

import math
import time

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
        if product.op not in smallest or product.operations < smallest[product.op].operations:
            smallest[product.op] = product
    everything = elements.ops_on
    monkeypatch.setattr(products, "all_products", lambda: iter(smallest.values()))
    monkeypatch.setattr(
        elements, "ops_on", lambda data: {name: everything(data)[name] for name in OPS}
    )
    monkeypatch.setattr(elements, "SAME_KERNEL", {"BiasAddV1": "BiasAdd", "Inv": "Reciprocal"})
    monkeypatch.setattr(elements, "SHAPES", (SMALL, (8, 16, 16, 64)))
    return smallest


@needs_onednn
def test_a_table_has_every_product_and_op_that_was_measured(few, tmp_path):
    said = []
    options = tf.config.optimizer.get_experimental_options
    before = options().get("disable_meta_optimizer", False)
    table = measure.measure(
        SHIPPED, "here", 1.0, lambda number, count, name: said.append((number, count, name))
    )
    assert options().get("disable_meta_optimizer", False) == before
    assert table.products.keys() == few.keys() >= SHIPPED.products.keys()
    assert table.elements.keys() == {*OPS, *elements.SAME_KERNEL}
    assert [number for number, _, _ in said] == list(range(said[0][1]))
    path = tmp_path / "costs.json"
    path.write_text(table.to_json(), encoding="utf-8")
    assert read_table(path).source == "here"  # which refuses what is no time


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
    measured = elements.ops_on(elements.data_of(SMALL)).keys()
    assert set(elements.SAME_KERNEL.values()) <= measured
    named = measured | elements.SAME_KERNEL.keys()
    rows = {product.op for product in products.all_products()}
    tables = [read_table(path) for path in SHIPPED_FOLDER.glob("*.json")]
    assert all(table.elements.keys() <= named and table.products.keys() <= rows for table in tables)
    assert any(table.elements.keys() == named and table.products.keys() == rows for table in tables)


def _times(**special):
    """Returns times from which the table is made: 5 ns an element, 1 a call and 1 more a stack."""
    of_ops = {}
    for shape in elements.SHAPES:
        of_ops.update(
            ((name, shape), (5.0, 4.0)) for name in elements.ops_on(elements.data_of(SMALL))
        )
        of_ops.update(
            ((f"Nothing of {stacks}", shape), (1.0 + stacks, 1.0 + stacks)) for stacks in (0, 1)
        )
        of_ops.update(((f"Cast to {kind}", shape), (5.0, 5.0)) for kind in ("float32", "bfloat16"))
        of_ops.update(((name, shape), value(shape)) for name, value in special.items())
    return of_ops


def _table(few, of_ops):
    return measure._table(SHIPPED, "here", dict.fromkeys(few.values(), (1e5, 1e5)), of_ops)


def test_what_calls_and_stacks_take_is_no_part_of_an_op_or_a_cast(few):
    to_f16 = 2.0
    to_float32 = 1.0
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
    assert _table(few, _times(AddV2=lambda shape: (7.0, 6.5))).elements["AddV2"] == (
        (1, 1.5),
        (1, 1.5),
    )


def test_data_lies_between_0_and_1_so_that_every_op_takes_it():
    data = elements.data_of(SMALL)
    assert data.dtype == tf.float32
    assert data.shape == SMALL
    for name, (op, inputs) in elements.ops_on(data).items():
        for output in tf.nest.flatten(tf.function(op)(*inputs)):
            if output.dtype.is_floating:
                assert bool(tf.reduce_all(tf.math.is_finite(output))), name


def test_ops_read_or_write_no_tensor_that_is_larger_than_the_shape_that_they_are_measured_for():
    data = elements.data_of(SMALL)
    for name, (op, inputs) in elements.ops_on(data).items():
        outputs = tf.nest.flatten(tf.function(op).get_concrete_function(*inputs).structured_outputs)
        largest = max(tensor.shape.num_elements() or 0 for tensor in (*inputs, *outputs))
        grows = name in {"MirrorPad", "Pad"}
        assert largest == math.prod(SMALL) or (grows and largest < 2 * math.prod(SMALL)), name


def test_every_op_of_the_lists_has_a_row_or_costs_nothing_or_is_named_here():
    """Second gradients of poolings and ops that are rare around products are not measured."""
    unmeasured = Trait(
        """MaxPoolGradGrad MaxPoolGradGradV2 TensorListConcatLists TensorListGather
        TensorListScatter TensorListScatterIntoExistingList TensorListScatterV2 TensorListSplit
        Where _FusedBatchNormEx"""
    )
    rows = elements.ops_on(elements.data_of(SMALL)).keys() | elements.SAME_KERNEL.keys()
    listed = {row.op for row in ROWS if row.table == CPU and row.op_list in (INFER, CLEAR)}
    assert listed - rows - FREE == unmeasured


TRUE = ProductCost(rate=400.0, ns=0.12, start=9_000.0)
AS_SHIPPED = ProductCost(rate=220.0, ns=0.08, start=20_000.0)
WORK = [
    (operations, elements, elements / 4)
    for operations in (1e5, 1e7, 1e9)
    for elements in (1e3, 1e5, 1e6)
]


def off(found, work=WORK):
    return [abs(found.of(*pair) / TRUE.of(*pair) - 1) for pair in work]


def test_exact_times_give_their_figures_but_for_the_little_that_the_shipped_ones_count():
    found = fit(WORK, [TRUE.of(*pair) for pair in WORK], AS_SHIPPED)
    assert max(off(found)) < 0.03


def test_small_products_may_take_more_for_each_operation():
    """As on one thread: the times of products of all sizes are met, which the other three figures
    alone cannot.
    """
    work = [(operations, 1e5, 1e4) for operations in (1e6, 4e6, 8e6, 3e7, 1e8, 1e9)]
    true = ProductCost(rate=180.0, ns=0.05, start=4_000.0, alone=0.005)
    found = fit(work, [true.of(*pair) for pair in work], AS_SHIPPED)
    assert found.alone == pytest.approx(true.alone, rel=0.2)
    assert max(abs(found.of(*pair) / true.of(*pair) - 1) for pair in work) < 0.05
    again = fit(work, [true.of(*pair) for pair in work], found)
    assert max(abs(again.of(*pair) / true.of(*pair) - 1) for pair in work) < 0.02


def test_results_may_take_more_than_inputs():
    """A filter gradient of a small image adds up its result in float32 and then rounds it."""
    work = [
        (operations, elements, share * elements)
        for operations in (1e7, 1e8, 1e9)
        for elements in (1e5, 1e6, 3e6)
        for share in (0.01, 0.3, 0.9)
    ]
    true = ProductCost(rate=400.0, ns=0.1, start=9_000.0, written=1.2)
    found = fit(work, [true.of(*one) for one in work], AS_SHIPPED)
    assert found.written == pytest.approx(true.written, rel=0.2)
    assert max(abs(found.of(*one) / true.of(*one) - 1) for one in work) < 0.1


def test_noisy_times_give_figures_that_are_off_by_less_than_the_noise():
    noise = np.random.default_rng(0).uniform(0.9, 1.1, len(WORK))
    found = fit(
        WORK,
        [TRUE.of(*pair) * factor for pair, factor in zip(WORK, noise, strict=True)],
        AS_SHIPPED,
    )
    assert np.median(off(found)) < 0.1


def test_what_the_times_do_not_tell_is_as_shipped_and_as_much_slower():
    """Nothing here is bound by its tensors or its start, and both are three times what is shipped,
    as the rate is.
    """
    work = [(1e9, 10.0, 1.0), (2e9, 10.0, 1.0), (4e9, 20.0, 1.0)]
    found = fit(work, [3 * AS_SHIPPED.of(*pair) for pair in work], AS_SHIPPED)
    assert (found.rate, found.ns, found.start) == pytest.approx(
        (220 / 3, 3 * 0.08, 3 * 20_000), rel=1e-3
    )


def test_no_figure_is_negative():
    """A small product that takes longer than its share of a large one would ask for a negative cost
    of elements.
    """
    times = [50_000.0, 51_000.0, 1e5, 1e5, 1.1e5, 2e5, 3e6, 2.9e6, 2.8e6]
    found = fit(WORK, times, AS_SHIPPED)
    assert found.rate > 0
    assert min(found.ns, found.start) >= 0


DATA = tf.ones((4, 4))


def test_every_call_of_both_types_has_a_figure():
    before = time.monotonic()
    taken = measure.take_times(measure.run_many(tf.abs, 2), [DATA], 2, until=before + 0.2)
    assert time.monotonic() >= before + 0.2
    assert len(taken[0]) == len(taken[1]) > 3
    assert all(0 < seconds < 0.2 and math.isfinite(seconds) for times in taken for seconds in times)
    late = measure.take_times(tf.abs, [DATA], 1, until=0.0, repeats=4)
    assert [len(times) for times in late] == [4, 4]


STACKS = pytest.mark.parametrize("stacks", [0, 1])


@STACKS
def test_the_op_runs_in_both_types(stacks):
    seen = []

    def op(x):
        seen.append(x.dtype)
        return tf.abs(x)

    measure.take_times(measure.run_many(op, 4, stacks), [DATA], 4, until=0.0, repeats=1)
    assert seen == [tf.float32] * 4 + [tf.bfloat16] * 4


@STACKS
def test_runs_follow_each_other(stacks):
    """Four times the op, of which each waits for the one before."""
    concrete = tf.function(measure.run_many(tf.math.softplus, 4, stacks)).get_concrete_function(
        DATA
    )
    runs = [op for op in concrete.graph.get_operations() if op.type == "Softplus"]
    waited_for = [
        [before.name for before in op.control_inputs if before.type == "Softplus"] for op in runs
    ]
    assert waited_for == [[], *([run.name] for run in runs[:-1])]


def test_each_run_takes_the_next_of_a_stack_and_the_same_of_other_inputs():
    seen = []
    run = measure.run_many(lambda x, y: seen.append((float(x), float(y))), 3, 1)
    run(tf.constant(1.0), tf.constant([10.0, 20.0, 30.0]))
    assert seen == [(1, 10), (1, 20), (1, 30)]
