"""What nodes take, before and now."""

from __future__ import annotations

import math

import tensorflow as tf

from amp_tf.reporting.figures import times_before_and_now
from amp_tf.reporting.graph_figures import GraphFigures
from tests.reporting.reported_graphs import reported, traced


def _normalized(x, w, scale, shift):
    """A convolution, normalized as Keras does it in inference."""
    return tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME") * scale + shift)


def test_folded_normalization_took_time_over_the_result_and_takes_it_over_the_filter():
    shapes = (8, 64, 64, 64), (3, 3, 64, 64), (64,), (64,)
    report = reported(traced(_normalized, *shapes), precision="auto", target="cpu", preserve=("Identity",))
    (graph,) = report.graphs
    assert graph.folded == 1
    found = GraphFigures(graph)
    before, now = times_before_and_now(found.basis, found.figures, found.is_f16)
    node_of = {op: node for node, op in enumerate(found.view.ops)}
    table = found.basis.resolution.costs
    result, kernel = math.prod(shapes[0]), math.prod(shapes[1])
    assert before[node_of["Mul"]] == table.of_op("Mul", result)[0]
    assert now[node_of["Mul"]] == table.of_op("Mul", kernel)[0]
    assert [now[node_of[op]] for op in ("BiasAdd", "Relu")] == [0, 0]
    assert before[node_of["Relu"]] == table.of_op("Relu", result)[0]
    assert 0 < now[node_of["Conv2D"]] < before[node_of["Conv2D"]]


def test_what_is_computed_with_a_product_takes_no_time_before_nor_now():
    def dense(x, w, b):
        return tf.nn.relu(tf.matmul(x, w) + 1.0), tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), b))

    (graph,) = reported(traced(dense, (512, 512), (512, 512), (512,)), precision="auto", target="cpu").graphs
    found = GraphFigures(graph)
    before, now = times_before_and_now(found.basis, found.figures, found.is_f16)
    times = {name: (before[node], now[node]) for node, name in enumerate(found.view.names)}
    assert times["BiasAdd"] == times["Relu_1"] == (0, 0)
    assert all(time > 0 for name in ("add", "Relu") for time in times[name])
