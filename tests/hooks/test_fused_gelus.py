"""Gelus run in the kernel of their product, in inference, once all of TensorFlow's optimizers have seen the graph."""

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

SIZE = 512
OF_GELUS = ("Erf", "Erfc", "Square", "Tanh")
random = np.random.default_rng(0)
layers = [(random.standard_normal((SIZE, SIZE), "f") / SIZE**0.5, random.standard_normal(SIZE, "f")) for _ in range(3)]

def model(x, is_approximate):
    for number, (w, b) in enumerate(layers):
        x = tf.nn.bias_add(tf.tensordot(x, w, 1), b)
        x = tf.nn.gelu(x, is_approximate) if number < 2 else x
    return x

def executed(batch, is_approximate):
    result = tf.function(model)(tf.constant(batch), is_approximate).numpy()
    nodes = [node for graph in context.context().export_run_metadata().partition_graphs for node in graph.node]
    products = [node for node in nodes if "FusedMatMul" in node.op]
    return result, {
        "in bfloat16": sum(node.attr["T"].type == tf.bfloat16.as_datatype_enum for node in products),
        "fused": sorted(item.decode() for node in products for item in node.attr["fused_ops"].list.s),
        "alone": sum(node.op in OF_GELUS for node in nodes),
    }

context.context().enable_run_metadata()
cases = {
    "exact over sequences": (random.standard_normal((8, 64, SIZE), "f"), False),
    "exact": (random.standard_normal((512, SIZE), "f"), False),
    "approximate": (random.standard_normal((512, SIZE), "f"), True),
}
exact = {name: executed(*case)[0] for name, case in cases.items()}
plugin.install(AmpConfig())
found = {}
for name, case in cases.items():
    result, found[name] = executed(*case)
    found[name]["error"] = float(np.abs(result - exact[name]).max() / np.abs(exact[name]).max())
print(json.dumps(found))
"""


@needs_bf16
def test_gelus_are_fused_with_products_in_bfloat16(site_folder: Path) -> None:
    ended = running.run(["-c", PROGRAM], site_folder, {})
    assert ended.status == 0, ended.err
    for name, found in ended.result.items():
        kind = "GeluApproximate" if name == "approximate" else "GeluExact"
        assert found.pop("error") < 0.02, name
        assert found == {"in bfloat16": 3, "fused": [*["BiasAdd"] * 3, kind, kind], "alone": 0}, name
