"""A batched product of which only the sum over the examples is read becomes one product."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.rewriting.merging import SUFFIX
from tests.rewriting.rewritten import AUTO, check_agreement, ops, reads, rewrite
from tests.small_graphs import graph

# The gradient of the weight of Keras' attention layers, large enough to be faster in 16 bit.
GRADIENT = """
    x = Placeholder() shape=[16, 64, 512]
    dy = Placeholder() shape=[16, 64, 256]
    axis = Const() dtype=int32 value=int32[1]*0
    product = BatchMatMulV2(x, dy) adj_x=true
    total = Sum(product, axis) Tidx=int32 keep_dims=false
    fetch = Identity(total)
"""
MERGED = {"MatMul": 1, "Reshape": 2, "Const": 3}
GIVEN = {"BatchMatMulV2": 1, "Sum": 1, "Const": 1}


def test_examples_stand_below_each_other_in_one_product():
    proto = graph(GRADIENT)
    result = rewrite(proto)
    assert ops(result.graph) == MERGED
    assert reads(result.graph, "total") == ["product-0-CastToFp32-0-AutoMixedPrecision"]
    assert {node.name for node in result.report.nodes if node.precision.is_f16} >= {"product"}
    check_agreement(proto, result)


def test_a_second_rewrite_finds_nothing_to_do():
    once = rewrite(graph(GRADIENT)).graph
    assert not rewrite(once).changed


def test_products_that_read_one_tensor_share_its_rows():
    second = """
    dz = Placeholder() shape=[16, 64, 256]
    other = BatchMatMulV2(x, dz) adj_x=true
    rest = Sum(other, axis) Tidx=int32 keep_dims=false
    both = AddV2(total, rest)
    """
    proto = graph(GRADIENT.replace("fetch = Identity(total)", second + "fetch = Identity(both)"))
    result = rewrite(proto)
    assert ops(result.graph)["MatMul"] == 2
    assert ops(result.graph)["Reshape"] == 3
    check_agreement(proto, result)


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        ("adj_x=true", "adj_x=true adj_y=false\n    seen = Neg(product)"),
        ("value=int32[1]*0", "value=int32[1]*1"),
        ("keep_dims=false", "keep_dims=true"),
        ("dy = Placeholder() shape=[16, 64, 256]", "dy = Placeholder() shape=[1, 64, 256]"),
        ("dy = Placeholder() shape=[16, 64, 256]", "dy = Placeholder() shape=[?, 64, 256]"),
    ],
    ids=["another reader", "another axis", "kept dimension", "one example", "unknown number"],
)
def test_a_product_stays_batched_where_the_two_may_differ(part, instead):
    assert ops(rewrite(graph(GRADIENT)).graph) == MERGED
    result = rewrite(graph(GRADIENT.replace(part, instead)), preserve=("fetch",))
    assert ops(result.graph)["BatchMatMulV2"] == 1


def test_a_product_stays_batched_where_the_user_names_the_precision():
    config = amp_tf.AmpConfig(precision="bfloat16")
    assert ops(rewrite(graph(GRADIENT), config).graph) == GIVEN
    assert ops(rewrite(graph(GRADIENT), AUTO).graph) == MERGED


@pytest.mark.parametrize("batch", [None, 4], ids=["any batch", "one batch"])
def test_gradients_of_attention_are_merged_and_as_in_float32(batch):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4, 64, 512)).astype(np.float32)
    weight = tf.Variable(rng.standard_normal((512, 256)).astype(np.float32))

    def new_step():
        @tf.function(input_signature=[tf.TensorSpec((batch, 64, 512))])
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.matmul(x, weight) ** 2) / 1e4
            return tape.gradient(loss, weight)

        return step

    exact = new_step()(values).numpy()
    with amp_tf.enable():
        found = new_step()(values).numpy()
        names = [node.name for node in amp_tf.report().graphs[-1].nodes]
    assert any(SUFFIX in name for name in names)
    np.testing.assert_allclose(found, exact, rtol=0, atol=0.02 * np.abs(exact).max())
