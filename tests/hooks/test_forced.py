"""What AMP_TF_FORCE_F16 names is converted although ``auto`` finds that it is not faster, by Grappler and by XLA."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amp_tf.oplists.hardware import Hardware
from tests.hooks import running

PROGRAM = """
import json, sys
import tensorflow as tf
import amp_tf

@tf.function(jit_compile={compiled})
def step(x):
    small = tf.matmul(x, x, name="small")
    return tf.matmul(tf.nn.relu(small), x, name="forced")

step(tf.ones((8, 8)))
nodes = amp_tf.report().nodes
print(json.dumps({{node.name: node.reason.rule.name for node in nodes if node.op == "MatMul"}}))
"""


@pytest.mark.skipif(not Hardware.detect_cpu().cpu_gains, reason="auto converts nothing on this CPU")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_forced_node_is_converted_under_auto(compiled: bool, tmp_path: Path) -> None:
    variables = {running.SWITCH: "1", "AMP_TF_FORCE_F16": "^forced$"}
    ended = running.run(["-c", PROGRAM.format(compiled=compiled)], tmp_path, variables)
    assert ended.result == {"small": "DOES_NOT_PAY", "forced": "FORCED_BY_NAME"}


@pytest.mark.parametrize("program", ["keras_fit.py", "tf_keras_fit.py", "monitored_session.py"])
def test_a_loss_that_is_scaled_where_nothing_is_float16_gives_the_results_of_float32(
    program: str, tmp_path: Path
) -> None:
    path = running.PROGRAMS / program
    count = "from amp_tf.loss_scaling import ledger; (_, status), = ledger.statuses()[0]; steps = status.steps"
    code = f"import runpy, sys; runpy.run_path({str(path)!r}); {count}; print('scaled steps', steps, file=sys.stderr)"
    kept = {running.SWITCH: "1", "AMP_TF_PRECISION": "float16", "AMP_TF_KEEP_FLOAT32": ".*"}
    on = running.run(["-c", code], tmp_path, kept)
    off = running.run([str(path)], tmp_path, {})
    assert re.search(r"scaled steps [1-9]", on.err), on.err
    assert on.result == off.result
    assert on.converted == 0
    assert "loss scale" not in on.summary[6]
