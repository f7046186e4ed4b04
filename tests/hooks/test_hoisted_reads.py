"""Variables read before loops, in programs that TensorFlow runs: the same values, whatever was moved.

On a CPU without bfloat16 in hardware ``auto`` converts nothing, so the programs pretend to run on one that has it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.as_cpu import onednn
from tests.hooks import running

LOOPS = running.PROGRAMS / "loops.py"
RANDOM = running.PROGRAMS / "hoisted_reads.py"
SEEDS = ("6", "12")  # the first and how many; the first one showed a read that did not wait for a write before its loop

# What the products of the graph read by their second input that TensorFlow runs in the end.
EXECUTED = f"""
import json, sys
sys.path.append({str(running.PROGRAMS)!r})
import loops, tensorflow as tf
from tensorflow.python.eager import context
loops.pretend()
loops.plugin.set_conversion(loops.convert)
context.context().enable_run_metadata()
w = tf.Variable(loops.W)
tf.function(lambda x: loops.reads(x, 3, w, w))(loops.X)
graphs = context.context().export_run_metadata().partition_graphs
nodes = {{node.name: node for graph in graphs for node in graph.node}}
node, path = next(node for node in nodes.values() if "MatMul" in node.op), []
for position in (1, 0, 0):
    node = nodes[node.input[position].partition(":")[0]]
    path.append(node.op)
print(json.dumps({{"path": path}}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    ended = running.run([str(LOOPS)], tmp_path_factory.mktemp("loops"), {})
    assert ended.status == 0, ended.err
    assert ended.warnings == []
    return ended.result


def test_results_and_variables_are_bit_for_bit_those_without_the_move(found: dict[str, dict[str, object]]) -> None:
    assert {name for name, told in found.items() if not told["same"]} == set()


def test_they_are_those_of_float32_but_for_rounding(found: dict[str, dict[str, object]]) -> None:
    # Up to eight products with 8 significant bits, each off by at most 2**-8 of the largest value, and by as much again
    # where Eigen computes them, which rounds more often.
    limit = (8 if onednn.computes_bfloat16() else 16) * 2**-8
    assert {name: told["off"] for name, told in found.items() if not told["off"] <= limit} == {}  # type: ignore[operator]


def test_only_where_the_loop_itself_writes_a_variable_nothing_moves(found: dict[str, dict[str, object]]) -> None:
    kept = {name for name, told in found.items() if not told["moved"]}
    assert kept == {"writes_in_the_body", "is_skipped_with_its_effects"}


def test_tensorflow_runs_the_cast_before_the_loop(tmp_path: Path) -> None:
    ended = running.run(["-c", EXECUTED], tmp_path, {})
    assert ended.status == 0, ended.err
    assert ended.result["path"] == ["Enter", "Cast", "ReadVariableOp"]


def test_random_programs_compute_what_they_compute_eagerly(tmp_path: Path) -> None:
    ended = running.run([str(RANDOM), *SEEDS], tmp_path, {})
    assert ended.status == 0, ended.err
    assert ended.warnings == []
    assert ended.result["problems"] == {}
    assert ended.result["moved"] > 0
