"""The line fixes all outputs on all batches, and is no longer than that takes."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.graph.names import recorded
from amp_tf.hooks import layer_paths
from amp_tf.tools.comparing.findings import scope_of
from amp_tf.tools.search import reduce

CONFIG = amp_tf.AmpConfig(precision="float16", target="cpu")
X = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)


@pytest.mark.parametrize("needed", ["a", "h", "ah", "cdg", "abcdefgh"])
def test_what_is_reduced_suffices_and_nothing_of_it_can_be_left_out(needed):
    asked = []

    def suffices(items):
        asked.append(items)
        return set(needed) <= set(items)

    assert reduce(tuple("abcdefgh"), suffices, 40) == tuple(needed)
    assert len(asked) <= 24


def test_where_it_may_ask_no_more_it_gives_what_suffices():
    def suffices(items):
        return {"a", "d"} <= set(items)

    assert reduce(tuple("abcdefgh"), suffices, 1) == tuple("abcd")
    assert reduce(tuple("abcdefgh"), suffices, 0) == tuple("abcdefgh")


def _two_products(x, y):
    w = tf.constant(np.random.default_rng(5).normal(size=(6, 6)).astype(np.float32))
    with tf.name_scope("one"):
        first = tf.tanh(tf.matmul(x, w, name="first") * 1e-5)
    with tf.name_scope("two"):
        second = tf.tanh(tf.matmul(y, w, name="second") * 1e-5)
    return tf.matmul(first + second, w, name="third")


def test_what_goes_wrong_in_another_batch_than_the_one_that_is_judged_is_found_too():
    """One batch is judged and looked at; the other has an overflow of its own."""
    batches = [(1e5 * X, X), (X, 1e5 * X[::-1])]
    found = amp_tf.compare(_two_products, batches, CONFIG)
    assert found.mends
    assert sorted(finding.node for finding in found.findings) == ["one/first", "two/second"]
    assert not any("third" in pattern for pattern in found.patterns)
    assert (found.products, found.products_kept) == (3, 2)
    mended = amp_tf.compare(_two_products, batches, dataclasses.replace(CONFIG, keep_float32=found.patterns))
    assert mended.is_healthy


def test_what_goes_wrong_inside_of_a_loop_which_is_not_looked_at_is_mended_by_its_layer():
    def looping(x):
        w = tf.constant(np.random.default_rng(5).normal(size=(6, 6)).astype(np.float32))
        with tf.name_scope("recurrent"):
            for _ in tf.range(2):
                x = tf.tanh(tf.matmul(300 * tf.matmul(300 * x, w), w) * 1e-6)  # inf, and nan where inf meets -inf
        with tf.name_scope("head"):
            return tf.matmul(x, w, name="after")

    found = amp_tf.compare(looping, [X], CONFIG)
    assert not found.is_healthy
    assert found.mends
    assert (found.products, found.products_kept) == (3, 2)


def test_nodes_of_few_layers_are_kept_by_the_names_of_these_where_that_is_healthy_too():
    """Forward and backward nodes of two layers overflow: four regular expressions, or two layers."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    income, rooms = rng.lognormal(11, 0.6, (512, 1)), rng.integers(1, 9, (512, 1))
    x = np.hstack([income, rooms]).astype(np.float32)
    y = (income * 3e-5 + rooms * 0.2).astype(np.float32)
    layers = (("features", 16, "relu"), ("hidden", 16, "tanh"), ("price", 1, None))
    dense = (keras.layers.Dense(width, activation=name, name=layer) for layer, width, name in layers)
    model = keras.Sequential([keras.Input((2,)), *dense], name="houses")
    model.compile("adam", "mse")
    layer_paths.install(amp_tf.AmpConfig())
    try:
        found = amp_tf.compare(model, [(x[start : start + 64], y[start : start + 64]) for start in (0, 64)], CONFIG)
    finally:
        layer_paths.uninstall()
        recorded.forget()
    assert found.mends
    assert set(found.patterns) <= {"layer:houses/features", "layer:houses/hidden"}
    assert len(found.findings) > len(found.patterns)


def test_that_no_line_mends_it_is_said_and_none_is_written():
    found = amp_tf.compare(_two_products, [(1e5 * X, X)], CONFIG)
    head = "What to write (fixes all outputs; 1 of 3 products in float32):\n  "
    assert f"{head}{found.line}" in found.for_command()
    assert f"{head}amp_tf.enable(keep_float32={list(found.patterns)})" in str(found)
    assert "AMP_TF_KEEP_FLOAT32" not in str(found)
    without = dataclasses.replace(found, patterns=(), mends=False)
    assert without.line == without.worth == ""
    assert "No line fixes it: with all nodes in float32 that become float16, some outputs stay wrong." in str(without)
    assert "What to write" not in str(without)


def test_where_everything_is_kept_it_says_that_16_bit_gains_nothing():
    found = amp_tf.compare(_two_products, [(1e5 * X, X)], CONFIG)
    assert "so that 16 bit gains nothing" not in found.worth
    all_kept = dataclasses.replace(found, products_kept=found.products)
    assert all_kept.worth == "fixes all outputs; 3 of 3 products in float32, so that 16 bit gains nothing"


@pytest.mark.parametrize(
    ("node", "layer"),
    [
        ("model/dense/MatMul", "model/dense"),
        ("gradient_tape/model/dense/MatMul/MatMul_1", "model/dense"),
        ("gradient_tape/model/dense/BiasAdd/BiasAddGrad", "model/dense"),
        ("gradient_tape/model/dense/BiasAdd_1/BiasAddGrad", "model/dense"),
        ("gradient_tape/model/dense/TanhGrad", "model/dense"),
        ("gradient_tape/model/dense/TanhGrad_1", "model/dense"),
        ("gradient_tape/model/norm/FusedBatchNormGradV3", "model/norm"),
        ("MatMul", ""),
    ],
)
def test_the_layer_of_a_gradient_is_that_of_what_it_is_the_gradient_of(node, layer):
    assert scope_of(node) == layer
