"""A named precision: the products of the graphs that TensorFlow runs, by their types."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests import as_cpu
from tests.as_cpu import onednn
from tests.hooks import running
from tests.oplists.header import tensorflow_version

PROGRAM = running.PROGRAMS / "fused_layers.py"
WAYS = ("fit", "tf_keras fit", "predict", "loop", "session")
BACKWARD = {"Conv2DBackpropFilter", "Conv2DBackpropInput"}
# Losses and outputs of about 1 after up to 8 steps; bfloat16 has 8 significant bits, float16 11.
TOLERANCES = {"bfloat16": 0.05, "float16": 0.01}

# Runs each way of the program and prints its result beside the products of the graphs that ran: op, type, name.
WATCHED = f"""
import json, runpy
import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.eager import context
import amp_tf
context.context().enable_run_metadata()
graphs, run = [], session.BaseSession.run

def watched(self, fetches, feed_dict=None):
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    result = run(self, fetches, feed_dict, options, metadata)
    graphs.extend(metadata.partition_graphs)
    return result

session.BaseSession.run = watched
found = {{}}
for name, way in runpy.run_path({str(PROGRAM)!r})["WAYS"].items():
    result = way()
    graphs += context.context().export_run_metadata().partition_graphs
    nodes = [node for graph in graphs for node in graph.node if "MatMul" in node.op or "Conv" in node.op]
    found[name] = [result, [[node.op, node.attr["T"].type, node.name] for node in nodes]]
    graphs.clear()
print(json.dumps(found | {{"report": str(amp_tf.report())}}))
"""


@pytest.fixture(scope="module")
def in_float32(site_folder: Path) -> dict[str, list[float]]:
    ended = running.run([str(PROGRAM)], site_folder, as_cpu.variables())
    assert ended.status == 0, ended.err
    return ended.result


@pytest.fixture(scope="module", params=["bfloat16", "float16", "bfloat16 in hardware"])
def named(request: pytest.FixtureRequest, site_folder: Path) -> tuple[str, dict[str, list]]:
    """The precision, and what was found with it: without 16-bit hardware, or with that of this CPU."""
    precision, _, in_hardware = request.param.partition(" ")
    if in_hardware and not onednn.computes_bfloat16():
        pytest.skip("this CPU has no bfloat16")
    if request.param == "bfloat16" and onednn.computes_bfloat16() and tensorflow_version() < (2, 21):
        pytest.skip("this TensorFlow's remapper still takes the CPU for one with bfloat16")
    # The loop and the session have no optimizer that could scale their loss.
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": precision, f"{running.SWITCH}_LOSS_SCALING": "0"}
    ended = running.run(["-c", WATCHED], site_folder, variables if in_hardware else as_cpu.variables() | variables)
    assert ended.status == 0, ended.err
    assert ended.warnings == []
    return precision, ended.result


@pytest.mark.parametrize("way", WAYS)
def test_no_product_that_runs_is_float32(way, named, in_float32):
    precision, found = named
    result, products = found[way]
    left = [(op, name) for op, number, name in products if number != tf.as_dtype(precision).as_datatype_enum]
    assert left == []
    assert products
    ops = {op for op, _, _ in products}
    if way.endswith("fit") or way == "loop":
        assert all(any(name in op for op in ops) for name in BACKWARD)  # oneDNN's have a prefix
    assert result != in_float32[way]
    scale = np.abs(in_float32[way]).max()
    np.testing.assert_allclose(result, in_float32[way], rtol=0, atol=TOLERANCES[precision] * scale)


def test_the_report_says_that_no_product_is_left(named):
    _, found = named
    lines = [line.split() for line in found["report"].splitlines() if "MatMul" in line or "Conv" in line]
    converted = {words[3]: (words[0], words[2]) for words in lines if words[1:2] == ["of"]}
    assert {"MatMul", "Conv2D", *BACKWARD} <= converted.keys()
    assert all(first == second for first, second in converted.values()), found["report"]
