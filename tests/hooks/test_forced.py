"""What AMP_TF_FORCE_F16 names is converted although ``auto`` finds that it does not pay, by Grappler and by XLA."""

from __future__ import annotations

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
