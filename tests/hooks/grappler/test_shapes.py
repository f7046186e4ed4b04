"""The static shapes that TensorFlow's plugin interface tells."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hooks import running

PROGRAM = """
import json
import tensorflow as tf
from amp_tf.hooks.grappler import plugin

told = {}
def convert(data, preserve, shapes):
    graph = tf.compat.v1.GraphDef.FromString(data)
    for node in graph.node:
        if node.op in ("MatMul", "Split", "Unpack", "ReadVariableOp"):
            told[node.op] = shapes.output_shapes(node.name)
    told["nothing"] = shapes.output_shapes("no such node")
    kept.append(shapes)

kept = []
plugin.set_conversion(convert)
weights = tf.Variable(tf.ones((4, 20)))

@tf.function(input_signature=[tf.TensorSpec((None, 4))])
def f(x):
    product = tf.matmul(x, weights)
    return tf.split(product, 2, axis=1), tf.unstack(product, axis=1)

f(tf.ones((3, 4)))
told["closed"] = kept[0].output_shapes("MatMul")
print(json.dumps(told))
"""


def test_shapes_are_those_of_the_graph_and_unknown_dimensions_are_minus_one(site_folder: Path) -> None:
    ended = running.run(["-c", PROGRAM], site_folder, running.switched_on())
    assert ended.status == 0, ended.err
    told = json.loads(ended.out.splitlines()[-1])
    assert told == {
        "MatMul": [[-1, 20]],
        "Split": [[-1, 10], [-1, 10]],
        "Unpack": [[-1]] * 20,
        "ReadVariableOp": [[4, 20]],
        "nothing": [],
        "closed": [],
    }
