"""Products that sum nothing, as rotary embeddings write position times frequency."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

HEADS, POSITIONS, WIDTH = 2, 1000, 16
FREQUENCIES = (1 / 100.0 ** (np.arange(WIDTH // 2) / (WIDTH // 2))).astype("float32")
TURNED = np.tile(np.outer(np.arange(POSITIONS), FREQUENCIES), 2)


def rotary() -> tf.compat.v1.GraphDef:
    """A product, its values turned by their positions, and the product of these."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (HEADS, POSITIONS, WIDTH), name="x")
        positions = tf.compat.v1.placeholder(tf.float32, (POSITIONS,), name="positions")
        angles = tf.einsum("i,j->ij", positions, FREQUENCIES, name="angles")
        angles = tf.concat([angles, angles], -1, name="both")
        kernel = tf.constant(np.eye(WIDTH, dtype="float32"))
        query = tf.einsum("bid,de->bie", x, kernel, name="query")
        first, second = tf.split(query, 2, axis=-1)
        turned = query * tf.cos(angles) + tf.concat([-second, first], -1) * tf.sin(angles)
        tf.identity(tf.einsum("bid,bjd->bij", turned, turned, name="scores"), name="result")
    return graph.as_graph_def(add_shapes=True)


def rewritten(**settings):
    config = amp_tf.AmpConfig(**{"precision": "bfloat16", "ignore_performance": True, **settings})
    result = amp_tf.rewrite(rotary(), config, hardware=Hardware(cpu_has_bf16=True))
    return result.graph, {node.name: node for node in result.report.nodes}


def names(nodes, prefix):
    """The Einsum of a name: tf.einsum puts it into a scope."""
    return next(node for name, node in nodes.items() if name.startswith(prefix) and node.op == "Einsum")


@pytest.mark.parametrize(
    ("equation", "sums"),
    [
        *((text, False) for text in ("bi,j->bij", " i , j -> i j ", "bsd,d->bsd", "...n,d->...nd", "ab->ba", ",->")),
        *((text, True) for text in ("ij,jk->ik", "aecd,abcd->acbe", "bij,j->bi", "i,i->", "...i,i->...", "...i,i->i")),
    ],
)
def test_an_equation_sums_where_a_label_is_not_in_the_result(equation, sums):
    found = painted(f"x = Placeholder()\n product = Einsum(x, x) N=2 equation={equation!r}")
    assert (found.rule("product") is Rule.ALLOW_LIST) == sums


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_an_angle_is_no_product(precision):
    _, nodes = rewritten(precision=precision)
    assert not names(nodes, "angles").precision.is_f16
    assert names(nodes, "query").reason.rule is names(nodes, "scores").reason.rule is Rule.ALLOW_LIST


def test_late_positions_are_turned_as_in_float32():
    graph_def, _ = rewritten()
    x = np.random.default_rng(0).normal(size=(HEADS, POSITIONS, WIDTH)).astype("float32")

    def run(graph):
        with tf.Graph().as_default():
            tf.import_graph_def(graph, name="")
            with tf.compat.v1.Session() as session:
                return session.run("result:0", {"x:0": x, "positions:0": np.arange(POSITIONS, dtype="float32")})

    expected, actual = run(rotary()), run(graph_def)
    # 16 products of values that were each rounded to 8 bits a few times; rounded positions were wrong by 20.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=0.05 * np.abs(expected).max())


def test_what_lies_between_products_is_converted_although_it_sums_nothing():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (512, 512), name="x")
        scaled = tf.einsum("ij,j->ij", tf.matmul(x, x), tf.ones(512), name="scaled")
        tf.matmul(scaled, x, name="result")
    result = amp_tf.rewrite(graph.as_graph_def(add_shapes=True), amp_tf.AmpConfig(precision="float16"))
    assert names({node.name: node for node in result.report.nodes}, "scaled").reason.rule is Rule.BETWEEN_ALLOW


@pytest.mark.parametrize(
    ("settings", "converts"),
    [
        ({"force_f16": ("angles.*",)}, True),
        ({"infer_remove": ("Mul",)}, False),
        ({"allow_remove": ("Einsum",)}, False),
    ],
)
def test_settings_decide(settings, converts):
    _, nodes = rewritten(**settings)
    assert names(nodes, "angles").precision.is_f16 is converts
