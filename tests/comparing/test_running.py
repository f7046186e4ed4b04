"""The look at single nodes: in parts it says what it says of all at once."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision
from amp_tf.rewriting.pipeline import rewrite
from amp_tf.tools import silent
from amp_tf.tools.comparing import nodes
from amp_tf.tools.comparing.ranges import find_ranges
from amp_tf.tools.comparing.steps import flat_step


def test_nodes_in_parts_are_nodes_all_at_once(monkeypatch):
    weight = tf.Variable(np.random.default_rng(1).normal(size=(8, 8)).astype("float32"))

    def layers(x):
        for _ in range(3):
            x = tf.tanh(x @ weight)
        return tf.reduce_sum(x)

    step, flat = flat_step(layers, [np.random.default_rng(2).normal(size=(4, 8)).astype("float32")], 1)
    config = AmpConfig(precision="bfloat16", target="cpu")
    rewritten = rewrite(flat.graph, config, preserve=flat.ends, hardware=Hardware(cpu_has_bf16=True)).graph

    def looked():
        found = nodes.measure_nodes(step, flat, rewritten, Precision.BFLOAT16, 0, 1.0, None, silent)
        return [(each.name, each.accumulated, each.local, each.largest_input) for each in found]

    whole = looked()
    assert len(whole) > 4
    assert any(accumulated.error > 0 for _, accumulated, _, _ in whole)
    monkeypatch.setattr(nodes, "_AT_ONCE", 2)
    assert looked() == whole


@pytest.mark.parametrize("judge", [amp_tf.compare, find_ranges])
@pytest.mark.parametrize("is_on", [True, False])
def test_tf32_is_off_meanwhile_and_then_as_it_was(judge, is_on):
    experimental = tf.config.experimental
    before, seen = experimental.tensor_float_32_execution_enabled(), []

    def progress(text):
        seen.append(experimental.tensor_float_32_execution_enabled())

    config, batches = AmpConfig(precision="bfloat16", target="cpu"), [np.ones((4, 8), np.float32)]
    settings = {"hardware": Hardware(cpu_has_bf16=True), "progress": progress}
    try:
        experimental.enable_tensor_float_32_execution(is_on)
        judge(lambda x: tf.tanh(x @ tf.ones((8, 8))) @ tf.ones((8, 8)), batches, config, **settings)
        assert experimental.tensor_float_32_execution_enabled() is is_on
        with pytest.raises(amp_tf.AmpError):
            judge(lambda x: x, [], config, **settings)
        assert experimental.tensor_float_32_execution_enabled() is is_on
    finally:
        experimental.enable_tensor_float_32_execution(before)
    assert len(seen) > 2
    assert not any(seen)
