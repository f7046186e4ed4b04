"""How often loops turn: by their bounds, by the loops that they are the gradients of, or by nothing that is said."""

import pytest
import tensorflow as tf

from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.painting.prices import count_runs
from amp_tf.painting.trip_counts import TYPICAL
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
    ("condition", "start", "turns"),
    [
        (lambda i, _: i < 24, 0, 24),
        (lambda i, _: tf.greater(24, i), 4, 20),
        (lambda i, _: tf.not_equal(i, 7), 0, 7),
        (lambda i, y: tf.logical_and(i < 24, tf.reduce_sum(y) < 1), 0, TYPICAL),
        (lambda i, y: tf.logical_and(i < 3, tf.reduce_sum(y) < 1), 0, 3),
        (lambda i, y: tf.logical_and(i < 24, i < 6), 0, 6),
        (lambda i, _: i <= 24, 0, 25),
        (lambda i, _: i < tf.constant(5, tf.int32), 5, 1),
        (lambda i, y: tf.reduce_sum(y) < 1, 0, TYPICAL),
        (lambda i, _: i < tf.cast(tf.shape(_placeholder(None, 2))[0], tf.int32), 0, TYPICAL),
    ],
    ids=[
        "less",
        "greater",
        "unequal",
        "and another",
        "few, and another",
        "the lesser",
        "less or equal",
        "not at all",
        "by a value",
        "by an unknown size",
    ],
)
def test_a_loop_turns_until_its_counter_reaches_its_bound(condition, start, turns):
    assert _runs(lambda: _loop(condition, start=start)) == [turns]


def test_a_long_counter_counts_too():
    many = tf.int64.max
    assert _runs(lambda: _loop(lambda i, _: i < tf.constant(40, tf.int64), start=tf.constant(0, tf.int64))) == [40]
    assert _runs(lambda: _loop(lambda i, _: i < tf.constant(many), start=tf.constant(0, tf.int64))) == [float(many)]


def test_a_gradient_turns_as_often_as_its_loop():
    def build():
        x, w = _placeholder(4, 4), _placeholder(4, 4)
        y = tf.while_loop(lambda i, _: i < 24, lambda i, y: (i + 1, tf.matmul(y, w)), (0, x))[1]
        tf.gradients(y, w)

    assert _runs(build) == [24, 24, 24]


def test_a_condition_that_leads_back_to_itself_says_nothing():
    """Such a graph is broken; TensorFlow would not run it, and nothing hangs on it."""
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
