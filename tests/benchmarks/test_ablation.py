"""Each part of the rewrite that the ablation takes out changes what is converted, or how many casts there are."""

from __future__ import annotations

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.oplists import costs
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting import economy
from amp_tf.rewriting import folding, planning
from benchmarks.step_time import ablation


def placeholder(*shape):
    return tf.compat.v1.placeholder(tf.float32, shape)


@pytest.fixture(scope="module")
def graph_def():
    """A graph in which each part has something to decide."""
    with tf.Graph().as_default() as graph:
        x, w, dz = placeholder(16, 64, 64, 32), placeholder(3, 3, 32, 32), placeholder(16, 64, 64, 32)
        h = tf.nn.conv2d(tf.transpose(tf.nn.conv2d(x, w, 1, "SAME"), [0, 2, 1, 3]), w, 1, "SAME")
        pooled = tf.nn.max_pool2d(tf.sigmoid(tf.sigmoid(h)), 2, 2, "SAME")
        tf.raw_ops.MaxPoolGrad(
            orig_input=tf.nn.conv2d(h, w, 1, "SAME"),
            orig_output=pooled,
            grad=pooled,
            ksize=[1, 2, 2, 1],
            strides=[1, 2, 2, 1],
            padding="SAME",
        )
        dz = tf.nn.conv2d(dz, w, 1, "SAME")
        tf.raw_ops.Conv2DBackpropFilter(
            input=x, filter_sizes=[3, 3, 32, 32], out_backprop=dz, strides=[1, 1, 1, 1], padding="SAME"
        )
        tf.raw_ops.BiasAddGrad(out_backprop=dz)
        deep = tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
            input_sizes=[16, 64, 64, 32],
            filter=placeholder(3, 3, 32, 1),
            strides=[1, 2, 2, 1],
            out_backprop=tf.nn.conv2d(x, w, 2, "SAME"),
            padding="SAME",
        )
        tf.nn.conv2d(deep, w, 1, "SAME")
        tf.matmul(placeholder(4, 4), placeholder(4, 4))
        tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME") * placeholder(32) + placeholder(32))
    return graph.as_graph_def(add_shapes=True)


def outcome(graph_def):
    report = amp_tf.rewrite(graph_def, amp_tf.AmpConfig(), hardware=Hardware(cpu_has_bf16=True)).report
    return report.casts, sorted(node.name for node in report.nodes if node.precision.value == "bfloat16")


@pytest.mark.parametrize("part", sorted(ablation.PARTS))
def test_without_a_part_the_same_graph_comes_out_differently(graph_def, part):
    whole = outcome(graph_def)
    modules = (costs, economy, folding, planning)
    before = [dict(vars(module)) for module in modules]
    try:
        ablation.remove(part)
        assert outcome(graph_def) != whole
    finally:
        for module, attributes in zip(modules, before, strict=True):
            vars(module).update(attributes)
    assert outcome(graph_def) == whole
