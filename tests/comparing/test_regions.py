"""Which nodes run once a step, and under which names products are fused."""

import re

import numpy as np
import tensorflow as tf

from amp_tf.rewriting.fused_names import find_followers, pattern
from amp_tf.tools.comparing.flattening import flatten
from amp_tf.tools.comparing.nodes import nodes_run_once
from amp_tf.tools.comparing.steps import trace


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
