"""The pattern that ``amp-tf explain`` names finds its node in a running program, where the remapper fused it."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.offline.explain import explain
from tests.hooks import running

MODEL = """
import tensorflow as tf

@tf.function(autograph=False)
def step(x):
    with tf.name_scope("dense"):
        y = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, x, name="MatMul"), x[0], name="BiasAdd"), name="Relu")
    with tf.name_scope("other"):
        return tf.matmul(y, x, name="MatMul")
"""
PROGRAM = f"""{MODEL}
import json
import amp_tf
step(tf.ones((64, 64)))
print(json.dumps({{node.name: node.precision.value for node in amp_tf.report().nodes if "MatMul" in node.op}}))
"""
CONFIG = amp_tf.AmpConfig(precision="bfloat16", target="cpu")


@pytest.mark.parametrize("name", ["dense/MatMul", "dense/BiasAdd", "dense/Relu"])
def test_the_pattern_finds_the_fused_node_and_no_other(name: str, tmp_path: Path) -> None:
    model: dict[str, object] = {}
    exec(MODEL, model)
    step = model["step"].get_concrete_function(tf.TensorSpec((64, 64)))  # type: ignore[attr-defined]
    (pattern,) = explain(step.graph.as_graph_def(), name, CONFIG).own_change["keep_float32"]
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16", "AMP_TF_KEEP_FLOAT32": pattern}
    ended = running.run(["-c", PROGRAM], tmp_path, variables)
    assert ended.result == {"dense/Relu": "float32", "other/MatMul": "bfloat16"}, ended.err
