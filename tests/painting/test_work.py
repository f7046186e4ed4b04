"""Operations of products, against the textbook formulas; how often loops iterate, and what is in
them runs.
"""

import math
import re

import pytest
import tensorflow as tf

from amp_tf.graph.reader import read_graph
from amp_tf.graph.sizes import NOMINAL_BATCH
from amp_tf.graph.templates import Templates
from amp_tf.painting.work import TYPICAL, count_operations, count_runs
from tests.small_graphs import graph
from tests.strategies import lowered_control_flow


def _runs(build):
    """How often the products of a graph run, by name without what gradients put around it."""
    with tf.Graph().as_default() as built, lowered_control_flow():
        build()
    return _runs_of(built.as_graph_def())


def _runs_of(graph_def):
    view = read_graph(graph_def, Templates(graph_def.library))
    runs = count_runs(view).of_nodes
    return [runs[node] for node in view.nodes_with(("MatMul",))]


def _placeholder(*shape):
    return tf.compat.v1.placeholder(tf.float32, shape)


def _loop(condition, start=0):
    """A loop of a counter and of a product."""
    w = _placeholder(4, 4)

    def turn(i, y):
        return i + 1, tf.matmul(y, w)

    _, done = tf.while_loop(condition, turn, (start, w))
    return done


# An op, its inputs' shapes, its output's, and the factors of what is counted; n is any size.
COUNTS = """
    MatMul: 3x5 5x7: 3x7: 2 3 5 7
    MatMul: nx5 5x7: nx7: 2 n 5 7
    _FusedMatMul: 3x5 5x7 7: 3x7: 2 3 5 7
    BatchMatMulV2: 2x4x3x5 2x4x5x7: 2x4x3x7: 2 8 3 5 7
    # A weight that all examples share, and turned, in its gradient.
    BatchMatMulV2: 8x3x5 5x7: 8x3x7: 2 8 3 5 7
    BatchMatMulV2: 8x3x7 5x7: 8x3x5: 2 8 3 5 7
    BatchMatMulV2: 3x5 8x5x7: 8x3x7: 2 8 3 5 7
    BatchMatMulV2: 2x1x3x5 1x4x5x7: 2x4x3x7: 2 8 3 5 7
    BatchMatMulV2: nx3x5 5x7: nx3x7: 2 n 3 5 7
    BatchMatMulV2: 8x3x5 nxn: 8x3x7: 2 8 3 5 7
    Conv2D: 2x9x9x3 3x3x3x8: 2x7x7x8: 2 2 7 7 8 3 3 3
    Conv2DBackpropInput: 4 3x3x3x8 2x7x7x8: 2x9x9x3: 2 2 7 7 8 3 3 3
    Conv2DBackpropFilter: 2x9x9x3 4 2x7x7x8: 3x3x3x8: 2 2 7 7 8 3 3 3
    DepthwiseConv2dNative: 2x9x9x6 3x3x6x1: 2x7x7x6: 2 2 7 7 6 3 3
    # An einsum multiplies once for each choice of indices; the second one is attention's scores.
    Einsum ab,bc->ac: 3x5 5x7: 1: 2 3 5 7
    Einsum aecd, abcd -> acbe: 32x64x12x8 32x60x12x8: 1: 2 32 64 60 12 8
    Einsum ab,bc->ac: nx5 5x7: 1: 2 n 5 7
    Einsum ii->: 4x4: 1: 2 4
    Einsum ...b,bc->...c: 3x5 5x7: 3x7: 2 3 5 7
    # The last one's equation is not of these inputs.
    Einsum ab,bc->ac: nx5 5xn: 1: unknown
    Einsum ab,bc->ac: unknown 5x7: 1: unknown
    Einsum ab,bc->ac: 2x3x5 5x7: 1: unknown
    MatMul: unknown 5x7: 3x7: unknown
    MatMul: nxn 5x7: nx7: unknown
    MatMul: : : unknown
    BatchMatMulV2: 8xnx5 unknown: 8xnx7: unknown
    BatchMatMulV2: 8x3x5 5x7: scalar: unknown
    Conv2D: 2x9x9x3 unknown: 2x7x7x8: unknown
"""


def _shapes(text):
    known = {"unknown": None, "scalar": ()}
    for shape in text.split():
        sizes = shape.replace("n", "-1").split("x")
        yield known[shape] if shape in known else tuple(map(int, sizes))


@pytest.mark.parametrize("row", re.findall("[A-Z_].*: .*: .*", COUNTS))
def test_counts_are_those_of_the_formula(row):
    op, inputs, outputs, factors = row.split(": ")
    op, _, equation = op.partition(" ")
    of_inputs = list(_shapes(inputs))
    of_outputs = list(_shapes(outputs))
    found = count_operations(op, of_inputs, next(iter(of_outputs), None), equation)
    if factors == "unknown":
        assert found is None
    else:
        factors = factors.replace("n", str(NOMINAL_BATCH)).split()
        count = math.prod(map(int, factors))
        assert found == pytest.approx(count, rel=1e-12)


def test_a_loop_in_a_loop_runs_that_many_times_more():
    def build():
        def square(j, z):
            return j + 1, tf.matmul(z, z)

        def outer(i, y):
            _, squared = tf.while_loop(lambda j, _: j < 3, square, (0, y))
            return i + 1, squared

        tf.while_loop(lambda i, _: i < 5, outer, (0, _placeholder(4, 4)))

    assert _runs(build) == [15]


def test_what_reads_a_loops_result_runs_once():
    def build():
        done = _loop(lambda i, _: i < 8)
        tf.matmul(done, done)

    assert _runs(build) == [8, 1]


LOOPS = {  # while what holds, from where on, and how often it is expected to turn
    "less": (lambda i, _: i < 24, 0, 24),
    "unequal, and another": (
        lambda i, y: tf.logical_and(tf.not_equal(i, 24), tf.reduce_sum(y) < 1),
        0,
        TYPICAL,
    ),
    "few, and another": (lambda i, y: tf.logical_and(i < 3, tf.reduce_sum(y) < 1), 0, 3),
    "the lesser": (lambda i, y: tf.logical_and(i <= 24, tf.greater(6, i)), 4, 6),
    "downwards": (lambda i, _: i > 1, 30, 30),
    "by an unknown size": (
        lambda i, _: i < tf.cast(tf.shape(_placeholder(None, 2))[0], tf.int32),
        0,
        TYPICAL,
    ),
}


@pytest.mark.parametrize(("condition", "start", "turns"), LOOPS.values(), ids=LOOPS)
def test_a_loop_turns_until_its_counter_reaches_its_bound(condition, start, turns):
    assert _runs(lambda: _loop(condition, start)) == [turns]


@pytest.mark.parametrize("bound", [40, tf.int64.max])
def test_a_long_counter_counts_too(bound):
    def condition(i, _):
        return i < tf.constant(bound, tf.int64)

    def build():
        _loop(condition, tf.constant(0, tf.int64))

    assert _runs(build) == [float(bound)]


def test_a_gradient_turns_as_often_as_its_loop():
    def build():
        done = _loop(lambda i, _: i < 24)
        operations = done.graph.get_operations()
        (w,) = (op for op in operations if op.type == "Placeholder")
        tf.gradients(done, w.outputs[0])

    assert set(_runs(build)) == {24}


def test_loops_that_nest_without_end_are_counted():
    broken = graph("start = Enter(next) frame_name='f'\nnext = NextIteration(start)")
    assert _runs_of(broken) == []


def test_a_condition_that_leads_back_to_itself_says_nothing():
    broken = graph("""
        x = Placeholder()
        start = Enter(x) frame_name='f'
        state = Merge(start, next)
        first = LogicalAnd(second, first)
        second = LogicalAnd(first, second)
        again = LoopCond(first)
        switch = Switch(state, again)
        product = MatMul(switch:1, switch:1)
        next = NextIteration(product)
        done = Exit(switch)
    """)
    assert _runs_of(broken) == [TYPICAL]
