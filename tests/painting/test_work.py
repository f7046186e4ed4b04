"""Operations of products, against the textbook formulas; how often loops iterate, and what is in
them runs.
"""

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


def _loop(condition, *, start=0, products=1, limit=None):
    x, w = _placeholder(4, 4), _placeholder(4, 4)

    def body(i, y):
        for _ in range(products):
            y = tf.matmul(y, w)
        return i + 1, y

    return tf.while_loop(condition, body, (start, x), maximum_iterations=limit)[1]


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "expected"),
    [
        ("MatMul", [(3, 5), (5, 7)], [(3, 7)], 2 * 3 * 5 * 7),
        ("MatMul", [(-1, 5), (5, 7)], [(-1, 7)], 2 * NOMINAL_BATCH * 5 * 7),
        ("_FusedMatMul", [(3, 5), (5, 7), (7,)], [(3, 7)], 2 * 3 * 5 * 7),
        ("BatchMatMulV2", [(2, 4, 3, 5), (2, 4, 5, 7)], [(2, 4, 3, 7)], 2 * 8 * 3 * 5 * 7),
        (
            "BatchMatMulV2",
            [(8, 3, 5), (5, 7)],
            [(8, 3, 7)],
            2 * 8 * 3 * 5 * 7,
        ),  # a weight that all examples share
        (
            "BatchMatMulV2",
            [(8, 3, 7), (5, 7)],
            [(8, 3, 5)],
            2 * 8 * 3 * 5 * 7,
        ),  # turned, in its gradient
        ("BatchMatMulV2", [(3, 5), (8, 5, 7)], [(8, 3, 7)], 2 * 8 * 3 * 5 * 7),
        ("BatchMatMulV2", [(2, 1, 3, 5), (1, 4, 5, 7)], [(2, 4, 3, 7)], 2 * 8 * 3 * 5 * 7),
        ("BatchMatMulV2", [(-1, 3, 5), (5, 7)], [(-1, 3, 7)], 2 * NOMINAL_BATCH * 3 * 5 * 7),
        ("BatchMatMulV2", [(8, 3, 5), (-1, -1)], [(8, 3, 7)], 2 * 8 * 3 * 5 * 7),
        ("Conv2D", [(2, 9, 9, 3), (3, 3, 3, 8)], [(2, 7, 7, 8)], 2 * (2 * 7 * 7 * 8) * (3 * 3 * 3)),
        (
            "Conv2DBackpropInput",
            [(4,), (3, 3, 3, 8), (2, 7, 7, 8)],
            [(2, 9, 9, 3)],
            2 * (2 * 7 * 7 * 8) * 27,
        ),
        (
            "Conv2DBackpropFilter",
            [(2, 9, 9, 3), (4,), (2, 7, 7, 8)],
            [(3, 3, 3, 8)],
            2 * (2 * 7 * 7 * 8) * 27,
        ),
        (
            "DepthwiseConv2dNative",
            [(2, 9, 9, 6), (3, 3, 6, 1)],
            [(2, 7, 7, 6)],
            2 * (2 * 7 * 7 * 6) * 9,
        ),
    ],
)
def test_counts_are_those_of_the_formula(op, inputs, outputs, expected):
    assert count_operations(op, inputs, outputs) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("equation", "inputs", "expected"),
    [
        ("ab,bc->ac", [(3, 5), (5, 7)], 3 * 5 * 7),
        (
            "aecd, abcd -> acbe",
            [(32, 64, 12, 8), (32, 60, 12, 8)],
            32 * 64 * 60 * 12 * 8,
        ),  # attention's scores
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
    assert count_operations("Einsum", [(3, 5), (5, 7)], [(3, 7)], "...b,bc->...c") == pytest.approx(
        2 * 3 * 5 * 7
    )


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


def test_a_loop_in_a_loop_runs_that_many_times_more():
    def build():
        def outer(i, y):
            return i + 1, tf.while_loop(
                lambda j, _: j < 3, lambda j, z: (j + 1, tf.matmul(z, z)), (0, y)
            )[1]

        tf.while_loop(lambda i, _: i < 5, outer, (0, _placeholder(4, 4)))

    assert _runs(build) == [15]


def test_what_reads_a_loops_result_runs_once():
    def build():
        x = _placeholder(4, 4)
        done = tf.while_loop(lambda i, _: i < 8, lambda i, y: (i + 1, tf.matmul(y, y)), (0, x))[1]
        tf.matmul(done, x)

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


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_turns_until_its_counter_reaches_its_bound(loop):
    assert _runs(lambda: _loop(LOOPS[loop][0], start=LOOPS[loop][1])) == [LOOPS[loop][2]]


def test_a_long_counter_counts_too():
    assert _runs(
        lambda: _loop(lambda i, _: i < tf.constant(40, tf.int64), start=tf.constant(0, tf.int64))
    ) == [40]
    assert _runs(lambda: _loop(lambda i, _: i < tf.int64.max, start=tf.constant(0, tf.int64))) == [
        float(tf.int64.max)
    ]


def test_a_gradient_turns_as_often_as_its_loop():
    def build():
        x, w = _placeholder(4, 4), _placeholder(4, 4)
        y = tf.while_loop(lambda i, _: i < 24, lambda i, y: (i + 1, tf.matmul(y, w)), (0, x))[1]
        tf.gradients(y, w)

    assert _runs(build) == [24, 24, 24]


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
