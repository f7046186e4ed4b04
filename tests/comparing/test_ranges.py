"""What leaves float16's range, in float32 alone: the figures are numpy's."""

import json
from importlib import resources

import jsonschema
import numpy as np
import pytest
import tensorflow as tf

from amp_tf.graph.names import KerasLayer, recorded
from amp_tf.tools.comparing.ranges import find_ranges
from tests.comparing.planted import PLANTED


def test_the_figures_are_those_of_numpy():
    rng = np.random.default_rng(0)
    w = rng.normal(size=(6, 5)).astype(np.float32)
    batches = [(rng.normal(size=(4, 6)) * size).astype(np.float32) for size in (1e4, 1e5)]
    found = find_ranges(lambda x: tf.matmul(tf.tanh(tf.matmul(x, w, name="large")), w.T), batches)
    assert not found.is_healthy
    node = next(node for node in found.nodes if node.name == "large")
    products = np.abs(np.concatenate(batches).astype(np.float64) @ w)
    assert node.is_f16
    assert node.largest == pytest.approx(products.max(), rel=1e-5)
    assert node.smallest == pytest.approx(products.min(), rel=1e-3)  # sums that cancel
    assert node.over == np.mean(products > 65504)
    assert (node.under, found.batches, found.loss_scale) == (0, 2, 1)
    assert f"large (MatMul): {100 * node.over:.3g}% of it above 65,504, up to {node.largest:.3g}" in str(found)


def test_what_underflows_and_what_stays_in_float32():
    planted, rng = PLANTED["loss"], np.random.default_rng(3)
    found = find_ranges(planted.make(), [planted.batch(rng)])
    first = next(node for node in found.nodes if node.name == planted.node)
    assert first.is_f16
    assert first.under > 0.5
    assert "of it so small that it becomes zero, down to" in str(found)
    schema = resources.files("amp_tf.tools.comparing").joinpath("ranges-1.schema.json").read_text(encoding="utf-8")
    jsonschema.validate(json.loads(json.dumps(found.to_dict())), json.loads(schema))
    kept = find_ranges(lambda x: tf.exp(x) + tf.reduce_sum(tf.matmul(x, x)), [np.full((4, 4), 20, np.float32)])
    assert kept.is_healthy
    assert "Exp" in {node.name for node in kept.nodes if not node.is_f16}
    assert "amp_tf keeps in float32" in str(kept)


def test_a_layer_has_its_path_of_keras_where_one_was_recorded():
    recorded.forget()  # what tests before this one recorded
    recorded.record("net_1/dense_2", KerasLayer("net/dense_1", ("net", "dense_1")))

    def large(x):
        with tf.name_scope("net_1"), tf.name_scope("dense_2"):
            return tf.matmul(x, 1e4 * x, name="product")

    try:
        found = find_ranges(large, [np.full((4, 4), 100, np.float32)])
        assert "net_1/dense_2/product (MatMul, layer net/dense_1): 100% of it above 65,504" in str(found)
    finally:
        recorded.forget()


def test_ordinary_numbers_stay_inside():
    found = find_ranges(lambda x: tf.matmul(x, x), [np.eye(4, dtype=np.float32)])
    assert (found.is_healthy, found.nodes) == (True, ())
    assert "float16 reaches far enough (float32 alone; 1 batch)" in str(found)
