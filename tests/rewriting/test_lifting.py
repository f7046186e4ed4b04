"""Biases and activations are lifted over the reshaping that stands between them and their product."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.oplists.cost_tables import SHIPPED
from amp_tf.oplists.fusions import MATRIX_ACTIVATIONS
from amp_tf.oplists.hardware import Hardware
from tests.rewriting.rewritten import (
    AUTO,
    BF16_CPU,
    TOLERANCE,
    GraphShapes,
    check_agreement,
    feeds,
    ops,
    reads,
    rewrite,
    run,
    without_casts,
)
from tests.small_graphs import graph

# Keras 3's Dense over sequences, large enough to pay in 16 bit.
DENSE = """
    x = Placeholder() shape=[16384, 512]
    w = Placeholder() shape=[512, 128]
    b = Placeholder() shape=[128]
    sizes = Const() dtype=int32 value=int32[3]*128
    product = MatMul(x, w)
    back = Reshape(product, sizes)
    biased = BiasAdd(back, b)
    act = Relu(biased)
    sum = AddV2(act, act)
    fetch = Identity(sum)
"""
# The same with tf.nn.gelu, before another product.
GELU = """
    x = Placeholder() shape=[16384, 512]
    w = Placeholder() shape=[512, 128]
    v = Placeholder() shape=[128, 128]
    b = Placeholder() shape=[128]
    sizes = Const() dtype=int32 value=int32[3]*128
    flat = Const() dtype=int32 value=int32[2]*128
    half = Const() value=float32[]*0.5
    root = Const() value=float32[]*0.70710678
    product = MatMul(x, w)
    back = Reshape(product, sizes)
    biased = BiasAdd(back, b)
    minus = Neg(biased)
    scaled = Mul(root, minus)
    core = Erfc(scaled)
    halved = Mul(core, half)
    gelu = Mul(halved, biased)
    mean = Max(gelu, axis)
    axis = Const() dtype=int32 value=int32[]*0
    last = MatMul(mean, v)
    fetch = Identity(last)
"""
OF_GELU = ("minus", "scaled", "core", "halved", "gelu")
FLAT, BACK = [16384, 128], [128, 128, 128]


@pytest.mark.parametrize("activation", sorted(MATRIX_ACTIVATIONS))
def test_a_bias_and_its_activation_come_before_the_reshaping_and_are_16_bit_with_the_product(activation):
    result = rewrite(graph(DENSE.replace("Relu", activation)))
    read = without_casts(result.graph)
    assert read["biased"] == ["product", "b"]
    assert read["act"] == ["biased"]
    assert read["back"] == ["act", "sizes"]
    assert read["sum"] == ["back", "back"]
    nodes = {node.name: node for node in result.report.nodes}
    # What gives other values than zero and what it reads stays in float32 behind the last product.
    follows = ["act"] * (activation in {"Relu", "Relu6"})
    assert all(nodes[name].precision.is_f16 for name in ("product", "biased", *follows))


def test_a_gelu_comes_with_its_bias_and_has_the_type_of_its_product():
    proto = graph(GELU)
    result = rewrite(proto)
    read = without_casts(result.graph)
    assert read["biased"] == ["product", "b"]
    assert read["gelu"] == ["halved", "biased"]
    assert (read["back"], read["mean"]) == (["gelu", "sizes"], ["back", "axis"])
    nodes = {node.name: node for node in result.report.nodes}
    assert all(nodes[name].precision.is_f16 for name in ("product", "biased", *OF_GELU))
    check_agreement(proto, result)


@pytest.mark.parametrize("read", ["biased", "core"])
def test_a_gelu_of_which_something_else_reads_a_part_stays_behind_the_reshaping(read):
    proto = graph(GELU + f"    other = Softmax({read})\n")
    result = rewrite(proto, preserve=("fetch", "other"))
    found = without_casts(result.graph)
    assert (found["biased"], found["back"]) == (["product", "b"], ["biased", "sizes"])
    assert (found["minus"], found["gelu"]) == (["back"], ["halved", "back"])
    check_agreement(proto, result)


def test_the_result_is_that_of_float32_with_the_same_nodes():
    proto = graph(DENSE)
    result = rewrite(proto)
    assert ops(result.graph) == ops(proto)
    check_agreement(proto, result)


def test_what_reads_a_bias_besides_its_activation_reads_what_is_shaped_back():
    proto = graph(DENSE.replace("AddV2(act, act)", "AddV2(act, biased)"))
    result = rewrite(proto)
    read = without_casts(result.graph)
    assert (read["biased"], read["back"]) == (["product", "b"], ["biased", "sizes"])
    assert (read["act"], read["sum"]) == (["back"], ["act", "back"])
    check_agreement(proto, result)


def test_a_fetched_activation_stays_behind_the_reshaping():
    read = without_casts(rewrite(graph(DENSE), preserve=("fetch", "act")).graph)
    assert (read["biased"], read["back"], read["act"]) == (["product", "b"], ["biased", "sizes"], ["back"])


def test_a_second_rewrite_changes_nothing():
    assert not rewrite(rewrite(graph(DENSE)).graph).changed


KEPT = {
    "another reader of the product": (DENSE + "    other = Relu(product)\n", {}),
    "another reader of the reshaping": (DENSE + "    other = Relu(back)\n", {}),
    "a control edge": (DENSE.replace("BiasAdd(back, b)", "BiasAdd(back, b) ^x"), {}),
    "another layout": (DENSE.replace("BiasAdd(back, b)", "BiasAdd(back, b) data_format='NCHW'"), {}),
    "another last dimension": (
        DENSE.replace("[512, 128]", "[512, 256]").replace("shape=[16384", "shape=[8192"),
        {},
    ),
    "an unknown last dimension": (
        DENSE.replace("Const() dtype=int32 value=int32[3]*128", "Placeholder() dtype=int32 shape=[3]"),
        {},
    ),
    "a fetched bias": (DENSE, {"preserve": ("fetch", "biased")}),
    "a fetched reshaping": (DENSE, {"preserve": ("fetch", "back")}),
    "the user's wish": (DENSE, {"config": amp_tf.AmpConfig(keep_float32=("biased",))}),
    "a precision by name": (DENSE, {"config": amp_tf.AmpConfig(precision="bfloat16")}),
    "nothing becomes 16 bit": (DENSE, {"config": amp_tf.AmpConfig(allow_remove=("MatMul",))}),
}


@pytest.mark.parametrize(("text", "options"), KEPT.values(), ids=KEPT)
def test_what_must_stay_where_it_is_stays(text, options):
    assert reads(rewrite(graph(text), **options).graph, "biased")[0].startswith("back")


def test_shapes_that_nodes_carry_are_those_of_the_product_afterwards():
    proto = graph(DENSE)
    sizes = {"product": FLAT, "back": BACK, "biased": BACK, "act": BACK, "x": [16384, 512], "w": [512, 128]}
    for node in proto.node:
        if node.name in sizes:
            shape = node.attr["_output_shapes"].list.shape.add()
            for size in sizes[node.name]:
                shape.dim.add().size = size
    result = amp_tf.rewrite(proto, AUTO, hardware=BF16_CPU, preserve=("fetch",)).graph
    told = {node.name: [d.size for d in s.dim] for node in result.node for s in node.attr["_output_shapes"].list.shape}
    assert told["biased"] == told["act"] == FLAT
    assert told["back"] == BACK


def _always_pays():
    """A CPU on which each product takes a second in float32, so that small graphs convert."""
    products = {op: (dataclasses.replace(f32, start=1e9), f16) for op, (f32, f16) in SHIPPED.products.items()}
    return Hardware(cpu_has_bf16=True, costs=dataclasses.replace(SHIPPED, products=products))


def _random_graph(rng):
    """Dense layers over sequences, with activations, readers in between, other shapes; what is unread is fetched."""
    unread = {}

    def take():
        name = rng.choice(sorted(unread))
        return unread[name] if rng.random() < 0.3 else unread.pop(name)

    def give(tensor):
        unread[tensor.name] = tensor

    def dense(x):
        width = int(rng.choice([4, 8]))
        kernel = tf.constant(rng.standard_normal((x.shape[-1], width)) / 3, tf.float32)
        product = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), kernel)
        sizes = [(*x.shape[:-1], width), (-1, width), (-1, 2, width), (-1, 2 * width)][
            rng.choice(4, p=[0.7, 0.1, 0.1, 0.1])
        ]
        back = tf.reshape(product, sizes)
        if rng.random() < 0.2:
            give([product, back][rng.integers(2)])
        biased = tf.nn.bias_add(back, tf.constant(3 * rng.standard_normal(back.shape[-1]), tf.float32))
        act = rng.choice([tf.identity, tf.nn.relu, tf.nn.relu6, tf.nn.elu, tf.tanh])(biased)
        if rng.random() < 0.2:
            give(biased)
        give(act)

    with tf.Graph().as_default() as made:
        give(tf.compat.v1.placeholder(tf.float32, (4, 6, 8), name="x"))
        for _ in range(5):
            dense(take())
        tf.concat([tf.reshape(tensor, [-1]) for _, tensor in sorted(unread.items())], 0, name="fetch")
    return made.as_graph_def()


def test_random_graphs_give_what_they_give_in_float32_and_have_something_to_lift():
    lifted = 0
    for seed in range(12):
        proto = _random_graph(np.random.default_rng(seed))
        result = amp_tf.rewrite(proto, AUTO, hardware=_always_pays(), preserve=("fetch",), shapes=GraphShapes(proto))
        values = feeds(proto)
        exact, found = run(proto, values), run(result.graph, values)
        np.testing.assert_allclose(found, exact, rtol=0, atol=2 * TOLERANCE * np.abs(exact).max(), err_msg=str(seed))
        read = without_casts(result.graph)
        lifted += sum(inputs[0].startswith("MatMul") for name, inputs in read.items() if name.startswith("BiasAdd"))
    assert lifted > 12
