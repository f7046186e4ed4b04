"""A comparison writes settings that fix an error."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.graph.layers import KerasLayer, recorded
from amp_tf.hooks import layer_paths
from amp_tf.tools.comparing.findings import places_of
from amp_tf.tools.search import reduce
from tests.comparing.planted import normal
from tests.hooks import installing

CONFIG = amp_tf.AmpConfig(precision="float16", target="cpu")
X = normal(1, 4, 6)


@pytest.mark.parametrize("needed", ["a", "h", "ah", "cdg", "abcdefgh"])
def test_what_is_reduced_suffices_and_nothing_of_it_can_be_left_out(needed):
    asked = []

    def suffices(items):
        asked.append(items)
        return set(needed) <= set(items)

    items = tuple("abcdefgh")
    assert reduce(items, suffices, 40) == tuple(needed)
    assert len(asked) <= 24
    assert reduce(items, suffices, 0) == items  # it may ask no more
    assert set(needed) <= set(reduce(items, suffices, 1))


def _two_products(x, y):
    w = tf.constant(normal(5, 6, 6))
    with tf.name_scope("one"):
        first = tf.tanh(tf.matmul(x, w, name="first") * 1e-5)
    with tf.name_scope("two"):
        second = tf.tanh(tf.matmul(y, w, name="second") * 1e-5)
    return tf.matmul(first + second, w, name="third")


def test_what_goes_wrong_in_another_batch_than_the_one_that_is_judged_is_found_too():
    """One batch is judged and looked at; the other has an overflow of its own."""
    batches = [(1e5 * X, X), (X, 1e5 * X[::-1])]
    found = amp_tf.compare(_two_products, batches, CONFIG)
    assert found.has_fix
    assert sorted(finding.node for finding in found.findings) == ["one/first", "two/second"]
    assert not any("third" in pattern for pattern in found.patterns)
    assert (found.products, found.products_kept) == (3, 2)
    mended = amp_tf.compare(
        _two_products, batches, dataclasses.replace(CONFIG, keep_float32=found.patterns)
    )
    assert mended.is_healthy


def _normalizing(x, y):
    """Six layers whose statistics are of three rows: their gradients are chaotic."""
    weights = [tf.constant(normal(seed, 32, 32) / 32**0.5) for seed in range(6)]
    scales = [tf.ones(32) for _ in weights]
    with tf.GradientTape() as tape:
        tape.watch(scales)
        for weight, scale in zip(weights, scales, strict=True):
            x = tf.matmul(x, weight)
            mean, variance = tf.nn.moments(x, [0])
            x = tf.nn.relu((x - mean) * tf.math.rsqrt(variance + 1e-3) * scale)
        loss = tf.reduce_mean(tf.square(x - y))
    return {f"gamma_{n}": one for n, one in enumerate(tape.gradient(loss, scales))}


def _cancelling(z):
    one = normal(5, 32, 32)
    other = one + 1e-3 * normal(6, 32, 32)
    return tf.matmul(z, one, name="one") - tf.matmul(z, other, name="two")


_FEW = [(normal(seed, 3, 32), normal(seed + 50, 3, 32)) for seed in (10, 11)]
_BF16 = amp_tf.AmpConfig(precision="bfloat16", target="cpu")


def test_nothing_is_tried_for_what_the_ideal_program_loses_too():
    told = []
    found = amp_tf.compare(_normalizing, _FEW, _BF16, progress=told.append)
    wrong = [output for output in found.outputs if not output.is_good]
    assert wrong
    assert all(output.ratio < 2 < 4 * output.ideal for output in wrong), found.outputs
    assert not any("trial" in words for words in told)
    assert found.patterns == ()
    assert sorted(found.inherent) == sorted(output.title for output in wrong)
    advice = str(found).splitlines()[-1]
    assert advice.startswith(f"The rounding of products alone puts {len(wrong)} outputs as far off")
    assert "No setting fixes it" not in str(found)


def test_products_that_cancel_are_mended_beside_what_the_ideal_program_loses():
    """The ideal program loses the difference as well, but two products in float32 mend it."""
    both = [(*batch, normal(seed, 16, 32)) for seed, batch in enumerate(_FEW, 20)]

    def step(x, y, z):
        return {**_normalizing(x, y), "difference": _cancelling(z)}

    found = amp_tf.compare(step, both, _BF16)
    assert "result difference" in [output.title for output in found.outputs if output.is_inherent]
    assert found.patterns == ("node:one", "node:two")
    assert found.inherent
    assert "result difference" not in found.inherent
    assert f"fixes all outputs but {len(found.inherent)}; 2 of " in str(found)
    assert amp_tf.Comparison.of_plain(found.to_plain()) == found


def test_what_goes_wrong_inside_of_a_loop_which_is_not_looked_at_is_mended_by_its_layer():
    def looping(x):
        w = tf.constant(normal(5, 6, 6))
        with tf.name_scope("recurrent"):
            for _ in tf.range(2):
                x = tf.tanh(
                    tf.matmul(300 * tf.matmul(300 * x, w), w) * 1e-6
                )  # inf, and nan where inf meets -inf
        with tf.name_scope("head"):
            return tf.matmul(x, w, name="after")

    found = amp_tf.compare(looping, [X], CONFIG)
    assert not found.is_healthy
    assert found.has_fix
    assert (found.products, found.products_kept) == (3, 2)


def test_nodes_of_few_layers_are_kept_by_the_names_of_these_where_that_is_healthy_too():
    """Forward and backward nodes of two layers overflow: four expressions, or two layers."""
    x, y = _data()
    model = _model("houses")
    with installing.installed(layer_paths):
        found = amp_tf.compare(
            model, [(x[start : start + 64], y[start : start + 64]) for start in (0, 64)], CONFIG
        )
    recorded.forget()
    assert found.has_fix
    assert set(found.patterns) <= {"layer:houses/features", "layer:houses/hidden"}
    assert len(found.findings) > len(found.patterns)


def test_the_places_around_a_node_are_its_layers_or_else_its_scopes():
    assert places_of("gradient_tape/compile_loss/mse_2/Mean/truediv") == [
        "compile_loss",
        "mse_2/",
        "Mean",
    ]
    recorded.record("net_1/dense_2", KerasLayer("net/dense_1", ("net", "dense_1")))
    try:
        assert places_of("net_1/dense_2/MatMul") == ["layer:net", "layer:net/dense_1"]
    finally:
        recorded.forget()


def _model(name=None):
    keras.backend.clear_session()  # as in a process of its own: names start anew
    keras.utils.set_random_seed(1)
    layers = (("features", 16, "relu"), ("hidden", 16, "tanh"), ("price", 1, None))
    dense = (
        keras.layers.Dense(width, activation=kind, name=layer) for layer, width, kind in layers
    )
    model = keras.Sequential([keras.Input((2,)), *dense], name=name)
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


def _data():
    rng = np.random.default_rng(1)
    income = rng.lognormal(11, 0.6, (256, 1))
    rooms = rng.integers(1, 9, (256, 1))
    return np.hstack([income, rooms]).astype(np.float32), (income * 3e-5 + rooms * 0.2).astype(
        np.float32
    )


def test_layers_that_an_earlier_model_recorded_are_not_those_of_this_one():
    keras.backend.clear_session()
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="other")])
    other.compile("sgd", "mse")
    x, y = _data()
    with amp_tf.enable(CONFIG):
        other.fit(x, y, batch_size=64, verbose=0)
    model = _model()
    assert model.name == other.name
    found = amp_tf.compare(model, [(x[:64], y[:64])], CONFIG)
    assert found.findings[0].layer == "sequential/features"
    assert found.patterns != (f"layer:{other.name}",)  # all of the model
