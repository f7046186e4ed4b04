"""Batch normalization in Keras' predict, with the variable alone: what TensorFlow runs in the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorflow.core.framework import types_pb2

from amp_tf.oplists.hardware import Hardware
from tests.hooks import running

PREDICT = running.PROGRAMS / "keras_predict.py"

# Runs the program and prints, after its own line, the kinds of convolution that ran: depthwise or not, type, what is
# fused with it.
WATCHED = f"""
import json, runpy
from tensorflow.python.eager import context
context.context().enable_run_metadata()
runpy.run_path({str(PREDICT)!r}, run_name="__main__")
graphs = context.context().export_run_metadata().partition_graphs
nodes = [node for graph in graphs for node in graph.node if "Conv" in node.op]
fused = lambda node: [item.decode() for item in node.attr["fused_ops"].list.s]
kinds = {{("Depthwise" in node.op, node.attr["T"].type, *fused(node)) for node in nodes}}
print(json.dumps({{"kinds": sorted(kinds)}}))
"""


def test_predict_runs_convolution_normalization_sum_and_activation_in_one_kernel(site_folder: Path) -> None:
    expected = running.run([str(PREDICT)], site_folder, {})
    ended = running.run(["-c", WATCHED], site_folder, running.switched_on())
    assert ended.status == 0, ended.err
    assert ended.warnings == []
    found = running.Ended(0, ended.out.strip().rpartition("\n")[0], "").result
    for key, value in expected.result.items():  # six layers in bfloat16, which has 8 significant bits
        np.testing.assert_allclose(found[key], value, rtol=0.05, atol=0.05, err_msg=key)
    if not Hardware.detect_cpu().cpu_gains:
        pytest.skip("where the precision is named, the conversion is TensorFlow's, which folds nothing")
    assert ended.result["kinds"] == [
        [False, types_pb2.DT_BFLOAT16, "BiasAdd", "Add", "Relu"],
        [False, types_pb2.DT_BFLOAT16, "BiasAdd", "Relu6"],
        [True, types_pb2.DT_BFLOAT16, "BiasAdd", "Relu6"],
    ]
