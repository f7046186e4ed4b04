"""Which nodes of a step are looked at, under which names products are fused, and what is said of nodes in parts."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision
from amp_tf.rewriting import pipeline
from amp_tf.rewriting.fused_names import find_followers, pattern
from amp_tf.tools import silent
from amp_tf.tools.comparing import nodes
from amp_tf.tools.comparing.flattening import FlatStep, flatten
from amp_tf.tools.comparing.joining import AMP, FLOAT32, join
from amp_tf.tools.comparing.nodes import nodes_run_once, probe
from amp_tf.tools.comparing.ranges import find_ranges
from amp_tf.tools.comparing.steps import flat_step, trace
from tests.cpu.test_folding import BLOCK
from tests.cpu.test_lifting import DENSE
from tests.rewriting.rewritten import rewrite
from tests.small_graphs import graph

BEHIND = """
    w3 = Placeholder() shape=[3, 3, 16, 64]
    fetch = Conv2D(act, w3) padding='SAME' strides=[1, 1, 1, 1]
"""


def _probes(proto, rewritten):
    """The names of the nodes that are looked at."""
    feeds = tuple(node.name for node in proto.node if node.op == "Placeholder")
    step = FlatStep(proto, feeds, {}, {}, ("fetch:0",), (), is_compiled=False)
    with tf.Graph().as_default() as joint:
        tf.import_graph_def(join(step, {FLOAT32: proto, AMP: rewritten}), name="")
    return {found.name for found in probe(step, rewritten, joint, wanted=".")}


@pytest.mark.parametrize(
    ("text", "moved", "others"),
    [
        (DENSE, {"back"}, {"product", "biased", "act", "sum"}),
        (BLOCK.replace("    fetch = Identity(act)\n", BEHIND), {"conv", "scaled", "shifted"}, {"act"}),
    ],
    ids=["lifting", "folding"],
)
def test_a_node_that_gives_other_values_since_it_was_moved_is_not_looked_at(text, moved, others):
    """A reshaping comes after its bias then; a convolution gives scaled values, of which a sum became a BiasAdd."""
    proto = graph(text)
    assert _probes(proto, proto) >= moved | others
    found = _probes(proto, rewrite(proto).graph)
    assert found >= others
    assert not found & moved


def _flat(function):
    return flatten(*trace(function, [np.ones((2, 2), np.float32)], 1)).graph


def test_nodes_of_loops_and_branches_are_left_out():
    def program(x):
        x = tf.exp(x, name="before")
        for _ in tf.range(2):
            if tf.reduce_sum(x) > 0:
                x = tf.sin(x, name="inner")
        x = tf.cond(tf.reduce_sum(x, name="between") > 0, lambda: tf.cos(x, name="branch"), lambda: x)
        return tf.tanh(x, name="after")

    graph = _flat(program)
    names = nodes_run_once(graph)
    assert {"before", "between", "after"} <= set(names)
    assert names.index("before") < names.index("between") < names.index("after")
    inside = [node.name for node in graph.node if node.name.endswith(("/inner", "/branch"))]
    assert len(inside) == 2
    assert not {*inside} & {*names}
    assert not any(node.op == "Switch" and node.name in names for node in graph.node)


def test_patterns_find_what_a_product_is_fused_to():
    def program(x):
        with tf.name_scope("dense"):
            y = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, x, name="MatMul"), [1.0, 2.0], name="BiasAdd"), name="Relu")
        with tf.name_scope("other"):
            return tf.matmul(y, y, name="MatMul")

    found = pattern("dense/MatMul", find_followers(_flat(program)))
    assert found == "(^|/)dense/(MatMul|BiasAdd|Relu)$"
    names = ["dense/Relu", "outer/dense/MatMul", "other/MatMul", "dense/Relu/more", "my_dense/Relu"]
    assert [bool(re.search(found, name)) for name in names] == [True, True, False, False, False]


def test_nodes_in_parts_are_nodes_all_at_once(monkeypatch):
    weight = tf.Variable(np.random.default_rng(1).normal(size=(8, 8)).astype("float32"))

    def layers(x):
        for _ in range(3):
            x = tf.tanh(x @ weight)
        return tf.reduce_sum(x)

    step, flat = flat_step(layers, [np.random.default_rng(2).normal(size=(4, 8)).astype("float32")], 1)
    config = AmpConfig(precision="bfloat16", target="cpu")
    rewritten = pipeline.rewrite(flat.graph, config, preserve=flat.ends, hardware=Hardware(cpu_has_bf16=True)).graph

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
