"""What nodes take, before and now."""

from __future__ import annotations

import math

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.reporting.figures import NO_PRODUCTS, GraphFigures, Products, times_before_and_now
from tests.reporting.reported_graphs import BF16_CPU, reported, traced


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


def _two(x, w):
    """A product of each type of the program's own: the second has four times the operations of the first."""
    return tf.matmul(x, w), tf.matmul(*(tf.cast(tf.concat([x, x], 0), tf.bfloat16),) * 2, transpose_b=True)


@pytest.mark.parametrize(
    ("settings", "shapes", "text"),
    [
        ({}, ((64, 64), (64, 64)), "(20 % of matmul and convolution work; 80 % in 16 bit by the program itself)"),
        ({"keep_float32": (".",)}, ((64, 64), (64, 64)), "(0 % of matmul and convolution work; 80 % in 16 bit by"),
        ({}, ((None, None), (None, None)), "(matmuls and convolutions: 1 of 2; 1 in 16 bit by the program itself)"),
    ],
)
def test_the_headline_has_the_share_of_the_work_and_whose_it_is(settings, shapes, text):
    config = amp_tf.AmpConfig(**{"precision": "bfloat16", **settings})
    report = amp_tf.rewrite(traced(_two, *shapes), config, hardware=BF16_CPU).report
    assert text in str(report).splitlines()[0]
    assert report.graphs[0].basis is None


def test_where_nothing_is_16_bit_there_is_no_share():
    assert str(Products((0.0, 0.0, 8.0), (0, 0, 1))) == str(NO_PRODUCTS) == ""


def test_shares_of_graphs_add_up_and_one_unknown_size_makes_all_unknown():
    known = Products((1e9, 0.0, 4e9), (1, 0, 3))
    assert known.plus(known).share == 0.25
    assert str(known.plus(Products((math.nan,) * 3, (1, 0, 1)))) == "matmuls and convolutions: 2 of 4"
