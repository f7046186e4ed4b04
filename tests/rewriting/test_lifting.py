"""Biases and activations are lifted over the reshaping between them and their product."""

from __future__ import annotations

import pytest

import amp_tf
from amp_tf.graph.reader import read_graph
from amp_tf.graph.sizes import KnownShapes
from amp_tf.graph.templates import Templates
from amp_tf.oplists.fusions import MATRIX_ACTIVATIONS
from tests.rewriting.rewritten import (
    AUTO,
    BF16_CPU,
    check_agreement,
    reads,
    rewrite,
    shaped,
    without_casts,
)
from tests.small_graphs import function, graph

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


def check_reads(result, **expected):
    """Checks what nodes read, with casts skipped."""
    found = without_casts(result.graph)
    assert {name: " ".join(found[name]) for name in expected} == expected


def check_f16(result, *names):
    precisions = {node.name: node.precision for node in result.report.nodes}
    for name in names:
        assert precisions[name].is_f16, name


@pytest.mark.parametrize("activation", sorted(MATRIX_ACTIVATIONS))
def test_a_bias_and_its_activation_come_before_the_reshaping_and_are_16_bit_with_the_product(
    activation,
):
    result = rewrite(graph(DENSE.replace("Relu", activation)))
    check_reads(result, biased="product b", act="biased", back="act sizes", sum="back back")
    check_f16(result, "product", "biased")
    # Activations of which zero is not zero stay in float32 behind the last product, with what they
    # read.
    if activation in ("Relu", "Relu6"):
        check_f16(result, "act")
    assert not rewrite(result.graph).changed


def test_a_gelu_comes_with_its_bias_and_has_the_type_of_its_product():
    proto = graph(GELU)
    result = rewrite(proto)
    check_reads(
        result, biased="product b", gelu="halved biased", back="gelu sizes", mean="back axis"
    )
    check_f16(result, "product", "biased", "minus", "scaled", "core", "halved", "gelu")
    check_agreement(proto, result)


@pytest.mark.parametrize("read", ["biased", "core"])
def test_a_gelu_of_which_something_else_reads_a_part_stays_behind_the_reshaping(read):
    proto = graph(GELU + f"    other = Softmax({read})\n")
    result = rewrite(proto, preserve=("fetch", "other"))
    check_reads(result, biased="product b", back="biased sizes", minus="back", gelu="halved back")
    check_agreement(proto, result)


def test_what_reads_a_bias_besides_its_activation_reads_what_is_shaped_back():
    proto = graph(DENSE.replace("AddV2(act, act)", "AddV2(act, biased)"))
    result = rewrite(proto)
    check_reads(result, biased="product b", back="biased sizes", act="back", sum="act back")
    check_agreement(proto, result)


def test_a_fetched_activation_stays_behind_the_reshaping():
    result = rewrite(graph(DENSE), preserve=("fetch", "act"))
    check_reads(result, biased="product b", back="biased sizes", act="back")


KEPT = {
    "another reader of the product": (DENSE + "    other = Relu(product)\n", {}),
    "another reader of the reshaping": (DENSE + "    other = Relu(back)\n", {}),
    "a control edge": (DENSE.replace("BiasAdd(back, b)", "BiasAdd(back, b) ^x"), {}),
    "another layout": (
        DENSE.replace("BiasAdd(back, b)", "BiasAdd(back, b) data_format='NCHW'"),
        {},
    ),
    "another last dimension": (
        DENSE.replace("[512, 128]", "[512, 256]").replace("shape=[16384", "shape=[8192"),
        {},
    ),
    "an unknown last dimension": (
        DENSE.replace(
            "Const() dtype=int32 value=int32[3]*128", "Placeholder() dtype=int32 shape=[3]"
        ),
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
    result = amp_tf.rewrite(shaped(DENSE), AUTO, hardware=BF16_CPU, preserve=("fetch",)).graph
    told = KnownShapes.of_nodes(read_graph(result, Templates()))
    assert told.output_shapes("biased") == told.output_shapes("act") == [(16384, 128)]
    assert told.output_shapes("back") == [(128, 128, 128)]


def test_in_a_function_a_bias_and_its_activation_are_lifted_too():
    proto = function(
        """
        function f(x: float32, w: float32, b: float32, sizes: int32) -> (y: float32)
          product = MatMul(x, w)
          back = Reshape(product:product:0, sizes) Tshape=int32
          biased = BiasAdd(back:output:0, b)
          act = Relu(biased:output:0)
          return y = act:activations:0
        """
    )
    shapes = KnownShapes(
        {
            "x": [(16384, 512)],
            "w": [(512, 128)],
            "b": [(128,)],
            "sizes": [(3,)],
            "product": [(16384, 128)],
            **dict.fromkeys(("back", "biased", "act"), ((128, 128, 128),)),
        }
    )
    result = amp_tf.rewrite(proto, AUTO, hardware=BF16_CPU, shapes=shapes).graph
    read = {node.name: node.input[0] for node in result.node_def}
    assert read["biased"].startswith("product")
    assert read["act"] == "biased:output:0"
    assert read["back"].startswith("act")
    assert result.ret["y"].startswith("back")
