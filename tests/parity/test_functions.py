"""Bodies of functions, loops and branches that are not inlined: each gets the types that TensorFlow's pass gives it.

Grappler hands each body to the pass as a graph of its own, whose arguments and results keep their types.
"""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.oracle import MODES, Mode, run_original, type_attributes
from tests.parity.case import can_run, run
from tests.parity.comparison import differences, run_ours

pytestmark = pytest.mark.usefixtures("local_rules")


def graph_with_bodies() -> tuple[graph_pb2.GraphDef, str]:
    @tf.function
    def inner(x, w):
        y = tf.sqrt(tf.nn.relu(tf.matmul(x, w)) + 1.0)
        return tf.tanh(tf.matmul(y, w)), tf.nn.softmax(y)

    @tf.function
    def outer(x, w):
        a, b = inner(x, w)
        for _ in tf.range(3):
            a = tf.nn.relu(tf.matmul(a, w))
        a = tf.matmul(a, b) if tf.reduce_sum(a) > 0 else tf.nn.tanh(tf.matmul(a, w))
        which = tf.cast(tf.reduce_sum(b) > 0, tf.int32)
        a = tf.switch_case(which, [lambda: tf.nn.relu(tf.matmul(a, w)), lambda: tf.exp(tf.matmul(a, b))])
        return tf.matmul(a, b)

    concrete = outer.get_concrete_function(tf.TensorSpec([8, 8], name="x"), tf.TensorSpec([8, 8], name="w"))
    return concrete.graph.as_graph_def(), concrete.outputs[0].op.name


def bodies(graph: graph_pb2.GraphDef, names: dict[str, set[str]]) -> dict[str, tuple]:
    """By function: the number of its nodes, and the types of those of its nodes that were there before."""
    return {
        function.signature.name: (
            len(function.node_def),
            {
                node.name: dict(type_attributes(node))
                for node in function.node_def
                if node.name in names[function.signature.name]
            },
        )
        for function in graph.library.function
    }


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_bodies_get_the_types_and_casts_that_tensorflow_gives_them(mode: Mode) -> None:
    graph_def, fetch = graph_with_bodies()
    names = {f.signature.name: {node.name for node in f.node_def} for f in graph_def.library.function}
    assert len(names) == 7, "a function, a loop's condition and body, two branches of an If and two of a Case"
    original, ours = run_original(graph_def, mode, (fetch,)), run_ours(graph_def, mode, (fetch,))
    assert differences(ours, original) == []
    theirs = bodies(original.graph, names)
    assert bodies(ours.graph, names) == theirs
    converted = {
        name for name, (_, nodes) in theirs.items() for types in nodes.values() if mode.f16 in sum(types.values(), ())
    }
    assert len(converted) == 6, "the loop's condition has no product"


def test_the_result_runs() -> None:
    graph_def, fetch = graph_with_bodies()
    feeds = {f"{name}:0": tf.random.stateless_uniform([8, 8], [0, i], -0.3, 0.3).numpy() for i, name in enumerate("xw")}
    for mode in filter(can_run, MODES):
        (ours,) = run(run_ours(graph_def, mode, (fetch,)).graph, (fetch,), feeds)
        (float32,) = run(graph_def, (fetch,), feeds)
        # Ten products in a row, each with one rounding to 8 or 11 bits.
        epsilon = 2.0**-8 if mode is Mode.BFLOAT16 else 2.0**-11
        assert abs(ours - float32).max() < 10 * epsilon * abs(float32).max()
