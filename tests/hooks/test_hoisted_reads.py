"""Variables read before loops, as on a CPU where products pay, and normalization folded into
filters, in programs.
"""

import numpy as np
import pytest
from tensorflow.core.framework import types_pb2

from amp_tf.oplists.hardware import Hardware
from tests.as_cpu import onednn
from tests.hooks import running

pytestmark = pytest.mark.cpu_dependent

LOOPS = running.PROGRAMS / "loops.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    ended = running.run([str(LOOPS)], tmp_path_factory.mktemp("loops"), {})
    assert ended.warnings == []
    return ended.result


def test_results_and_variables_are_bit_for_bit_those_without_the_move(found):
    assert {name for name, told in found.items() if not told["same"]} == set()


def test_they_are_those_of_float32_but_for_rounding(found):
    # Up to eight products with 8 significant bits, each off by at most 2**-8 of the largest value,
    # and by as much again where Eigen computes them, which rounds more often.
    limit = (8 if onednn.computes_bfloat16() else 16) * 2**-8
    assert {name: told["off"] for name, told in found.items() if not told["off"] <= limit} == {}


def test_only_where_the_loop_itself_writes_a_variable_nothing_moves(found):
    kept = {name for name, told in found.items() if not told["moved"]}
    assert kept == {"writes_in_the_body", "is_skipped_with_its_effects"}


PREDICT = running.PROGRAMS / "keras_predict.py"
# Runs the program and prints, after its own line, the kinds of convolution that ran: depthwise or
# not, type, what is fused with it.
FOLDED = f"""
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


def test_predict_runs_convolution_normalization_sum_and_activation_in_one_kernel(site_folder):
    expected = running.run([str(PREDICT)], site_folder, {})
    ended = running.run(["-c", FOLDED], site_folder, running.switched_on())
    assert ended.warnings == []
    found = running.Ended(0, ended.out.strip().rpartition("\n")[0], "").result
    for (
        key,
        value,
    ) in expected.result.items():  # ten layers in bfloat16, which has 8 significant bits
        np.testing.assert_allclose(found[key], value, rtol=0.05, atol=0.05, err_msg=key)
    if not Hardware.detect_cpu().cpu_gains:
        pytest.skip(
            "where the precision is named, the conversion is TensorFlow's, which folds nothing"
        )
    assert ended.result["kinds"] == [
        [False, types_pb2.DT_BFLOAT16, "BiasAdd", "Add", "Relu"],
        [False, types_pb2.DT_BFLOAT16, "BiasAdd", "Relu6"],
        [True, types_pb2.DT_BFLOAT16, "BiasAdd", "Relu6"],
    ]
