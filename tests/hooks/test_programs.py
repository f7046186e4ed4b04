"""Unchanged programs of special kinds, with the variable alone."""

from __future__ import annotations

import math
import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.offline.explain import explain
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting import reports
from tests.hooks import running


@pytest.mark.skipif(not hasattr(keras, "RematScope"), reason="this Keras has no RematScope")
def test_layers_that_are_computed_again_train_and_raise_under_keras_own_policy(tmp_path):
    """If the second part fails, Keras has learned it, and docs/memory.md says so no more."""
    program = str(running.PROGRAMS / "rematerialization.py")
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}
    ended = running.run([program, "float32"], tmp_path, variables)
    assert ended.converted
    assert len(ended.result) == 2
    for losses in ended.result.values():
        assert losses[-1] < losses[0] < 2 * math.log(10)
    under_policy = running.run([program, "mixed_bfloat16"], tmp_path, {})
    assert "Input 'filter' of 'Conv2D' Op has type float32" in under_policy.result["error"]


PADDED = str(running.PROGRAMS / "padded_attention.py")


def test_padding_trains_in_float16_as_in_float32(tmp_path):
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"}
    # LLVM's optimizations take longer than the training.
    variables["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    plain = running.run([PADDED, "plain"], tmp_path, {})
    for compiled in ("jit", "plain"):
        mixed = running.run([PADDED, compiled], tmp_path, variables)
        assert mixed.converted > 40
        assert "0 of 12 steps skipped" in mixed.summary[0]
        # Losses of 2 to 3.4; products and their inputs are rounded to 11 significant bits.
        np.testing.assert_allclose(mixed.result["loss"], plain.result["loss"], rtol=0, atol=0.01)


def test_a_model_that_was_trained_converts_for_tflite_in_float32(tmp_path):
    ended = running.run(
        [str(running.PROGRAMS / "tflite.py")],
        tmp_path,
        {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"},
    )
    assert ended.converted > 0
    assert not {"float16", "bfloat16"} & set(ended.result["types"])
    # Both compute the model eagerly in float32, from the same weights; sums of 64 products in
    # another order.
    assert ended.result["error"] < 1e-5
    assert "skipped" in ended.summary[6]
    assert "because TFLite's converter held Python's lock meanwhile" in ended.summary[6]


FORCED = """
import json, sys
import tensorflow as tf
import amp_tf

def step(x):
    small = tf.matmul(tf.exp(x), tf.sin(x), name="small")
    return tf.matmul(tf.nn.relu(small), x, name="forced")

for compiled in (False, True):
    tf.function(step, jit_compile=compiled)(tf.ones((8, 8)))
products = [node for node in amp_tf.report().nodes if node.op == "MatMul"]
print(json.dumps({"rules": [[node.name, node.reason.rule.name] for node in products]}))
"""


@pytest.mark.skipif(not Hardware.detect_cpu().cpu_gains, reason="auto converts nothing on this CPU")
def test_a_forced_node_is_converted_under_auto_in_a_function_that_xla_compiles_too(tmp_path):
    variables = {running.SWITCH: "1", "AMP_TF_FORCE_F16": "^forced$"}
    ended = running.run(["-c", FORCED], tmp_path, variables)
    assert ended.result["rules"] == [["small", "DOES_NOT_PAY"], ["forced", "FORCED_BY_NAME"]] * 2


COUNTED = """
import runpy, sys
runpy.run_path({path!r})
from amp_tf.loss_scaling import ledger
((_, status),) = ledger.statuses()[0]
print("scaled steps", status.steps, file=sys.stderr)
"""


@pytest.mark.parametrize("program", ["keras_fit.py", "session.py"])
def test_a_loss_that_is_scaled_where_nothing_is_float16_gives_the_results_of_float32(
    program, tmp_path
):
    path = str(running.PROGRAMS / program)
    kept = {running.SWITCH: "1", "AMP_TF_PRECISION": "float16", "AMP_TF_KEEP_FLOAT32": ".*"}
    on = running.run(["-c", COUNTED.format(path=path)], tmp_path, kept)
    off = running.run([path], tmp_path, {})
    assert re.search(r"scaled steps [1-9]", on.err), on.err
    assert on.result == off.result
    assert on.converted == 0
    why = ": no matmul or convolution is converted; the commonest reason of one: [^;]*"
    assert re.fullmatch(why, on.summary[6])  # and no scale


MODEL = """
import tensorflow as tf

@tf.function(autograph=False)
def step(x):
    with tf.name_scope("dense"):
        y = tf.nn.bias_add(tf.matmul(x, x, name="MatMul"), x[0], name="BiasAdd")
        y = tf.nn.relu(y, name="Relu")
    with tf.name_scope("other"):
        return tf.matmul(y, x, name="MatMul")
"""
ON_CPU = amp_tf.AmpConfig(precision="bfloat16", target="cpu")


@pytest.mark.parametrize("name", ["dense/MatMul", "dense/BiasAdd", "dense/Relu"])
def test_the_pattern_finds_the_fused_node_and_no_other(name):
    model: dict[str, Any] = {}
    exec(MODEL, model)
    step = model["step"].get_concrete_function(tf.TensorSpec((64, 64)))
    ((_, pattern),) = explain(step.graph.as_graph_def(), name, ON_CPU).own_change.added
    reports.reset()
    with amp_tf.enable(precision="bfloat16", target="cpu", keep_float32=[pattern]):
        exec(MODEL, model)
        model["step"](tf.ones((64, 64)))
        found = {
            node.name: node.precision.value for node in amp_tf.report().nodes if "MatMul" in node.op
        }
    assert found == {"dense/Relu": "float32", "other/MatMul": "bfloat16"}
