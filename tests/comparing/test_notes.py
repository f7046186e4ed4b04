"""What compare says beside its verdict: where inf or nan first appears, and where the run decided otherwise."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import tensorflow as tf

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision
from amp_tf.reporting import process
from amp_tf.reporting.schema import RewriteReport
from amp_tf.tools.comparing.pipeline import compare, notes_on_run
from tests.small_graphs import graph

FLOAT16 = AmpConfig(precision="float16", target="cpu")


def batches() -> list[tuple[np.ndarray]]:
    return [(np.full((4, 8), 100.0, np.float32),)]


def test_an_infinity_that_a_minimum_hides_is_named_with_it_though_all_is_healthy():
    first, second = tf.fill((8, 16), 1.0), tf.fill((16, 4), 10.0)

    def step(x):
        large = tf.matmul(tf.matmul(x, first), second, name="large")  # 128,000
        return tf.minimum(large, 1000.0, name="bounded") * 0.5

    found = compare(step, batches(), FLOAT16)
    assert found.is_healthy
    assert found.notes[0] == (
        "inf or nan that float32 does not have first appears in float16 at large (MatMul), 100% of its numbers; "
        "hidden again behind bounded (Minimum)"
    )


def test_a_first_one_that_reaches_an_output_has_no_end():
    weights = tf.fill((8, 4), 100.0)
    found = compare(lambda x: tf.reshape(tf.matmul(x, weights, name="large"), (16,)), batches(), FLOAT16)
    assert not found.is_healthy
    assert found.notes[0].endswith("first appears in float16 at large (MatMul), 100% of its numbers")


def test_nothing_is_said_where_float32_has_the_same_infinities():
    weights = tf.fill((8, 4), 1e38)
    found = compare(lambda x: tf.minimum(tf.matmul(x, weights), 1.0) * 0.5, batches(), AmpConfig(precision="bfloat16"))
    assert not any("first appears" in note for note in found.notes)


WITH_BF16 = Hardware(cpu_has_bf16=True)
STEP = """
    x = Placeholder()
    bias = Const() value=float32[4]
    net/dense/MatMul = MatMul(x, x)
    net/dense/BiasAdd = BiasAdd(net/dense/MatMul, bias)
    net/last/MatMul = MatMul(net/dense/BiasAdd, x)
"""
RUN = """
    x = Placeholder()
    bias = Const() value=float32[4]
    Call/net/dense/BiasAdd = _FusedMatMul(x, x, bias) num_args=1 fused_ops=['BiasAdd']
    Call/net/last/MatMul = MatMul(Call/net/dense/BiasAdd, x)
"""


def report(text: str, precision: str = "bfloat16", **settings) -> RewriteReport:
    config = amp_tf.AmpConfig(precision=precision, **settings)
    return amp_tf.rewrite(graph(text), config, hardware=WITH_BF16).report


def notes(run: RewriteReport) -> list[str]:
    return list(notes_on_run(report(STEP), graph(STEP), run, Precision.BFLOAT16))


def test_the_same_decisions_are_not_worth_a_word_under_whatever_name_they_run():
    assert notes(report(RUN)) == []


def test_a_product_that_is_fused_or_inlined_in_the_run_is_found_and_named():
    assert notes(report(RUN, keep_float32=("dense/BiasAdd$",))) == [
        "the run of this process has 1 of 2 products otherwise: net/dense/MatMul (float32 there, bfloat16 here)"
    ]


def test_nothing_is_said_where_nothing_is_known_to_differ():
    kept = report(RUN, keep_float32=("dense",))
    assert notes(RewriteReport(())) == []
    assert notes(report(RUN, "float16", keep_float32=("dense",))) == []
    assert notes(report(RUN.replace("net/", "other/"), keep_float32=("dense",))) == []
    assert notes(RewriteReport((*kept.graphs, *report(RUN).graphs))) == []  # one of two graphs decided as here


def test_a_model_that_was_trained_before_is_compared_as_it_ran():
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu", name="first"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x, y = np.random.rand(32, 16).astype("float32"), np.random.rand(32, 1).astype("float32")
    config = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
    process.reset()
    with amp_tf.enable(config):
        model.fit(x, y, batch_size=16, verbose=0)
    batches = [(x[:16], y[:16]), (x[16:], y[16:])]
    same = amp_tf.compare(model, batches, config)
    kept = amp_tf.compare(model, batches, dataclasses.replace(config, keep_float32=("first",)))
    process.reset()
    assert not [note for note in same.notes if "otherwise" in note]
    (note,) = [note for note in kept.notes if "otherwise" in note]
    assert "first_1/MatMul (bfloat16 there, float32 here)" in note
