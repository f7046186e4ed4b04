"""Which casts run at last, once all of TensorFlow's optimizers have seen the graph twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_tf.oplists.hardware import Hardware
from tests.hooks import running

needs_bf16 = pytest.mark.skipif(not Hardware.detect_cpu().cpu_gains, reason="auto converts nothing on this CPU")

PROGRAM = """
import json
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from amp_tf.config import AmpConfig
from amp_tf.hooks import plugin

plugin.install(AmpConfig())
context.context().enable_run_metadata()
SIZE = 512

def executed(function, *arguments):
    function(*arguments)
    metadata = context.context().export_run_metadata()
    nodes = {n.name: n for g in metadata.partition_graphs for n in g.node}
    op_behind = lambda cast: nodes[cast.input[0].partition(":")[0]].op
    products = [n.attr["T"].type == tf.bfloat16.as_datatype_enum for n in nodes.values() if "MatMul" in n.op]
    casts = [n for n in nodes.values() if n.op == "Cast"]
    return {
        "products in bfloat16": sum(products),
        "casts of constants": sum(op_behind(cast) == "Const" for cast in casts),
        "casts of casts": sum(op_behind(cast) == "Cast" for cast in casts),
        "casts": len(casts),
    }

ones = tf.ones((SIZE, SIZE))
weights = (np.arange(SIZE * SIZE).reshape(SIZE, SIZE) / SIZE**2).astype("float32")

@tf.function
def constant(x):
    return tf.exp(tf.matmul(x, tf.constant(weights)))

@tf.function
def pair(x):
    h = tf.cast(tf.cast(tf.matmul(x, x), tf.bfloat16), tf.float32)
    return tf.exp(tf.matmul(h, x))

@tf.function
def down(x):
    return tf.cast(tf.matmul(x, x), tf.bfloat16)

print(json.dumps({f.__name__: executed(f, ones) for f in (constant, pair, down)}))
"""


@needs_bf16
def test_constants_are_cast_once_and_pairs_of_casts_do_not_run(tmp_path: Path) -> None:
    ended = running.run(["-c", PROGRAM], tmp_path, running.switched_on())
    assert ended.status == 0, ended.err
    found = ended.result
    # TensorFlow folds the cast of a constant: what is left are the casts of x and of the result.
    assert found["constant"] == {
        "products in bfloat16": 1,
        "casts of constants": 0,
        "casts of casts": 0,
        "casts": 2,
    }
    assert found["pair"] == {"products in bfloat16": 2, "casts of constants": 0, "casts of casts": 0, "casts": 2}
    assert found["down"] == {"products in bfloat16": 1, "casts of constants": 0, "casts of casts": 0, "casts": 1}
