"""Rewrites small graphs whose ``fetch`` is looked at, with the shapes that TensorFlow infers, and
runs them.
"""

from __future__ import annotations

import collections

import numpy as np
import tensorflow as tf

import amp_tf
from amp_tf.oplists.hardware import Hardware
from tests import small_graphs

BF16_CPU = Hardware(cpu_has_bf16=True)
AUTO = amp_tf.AmpConfig()
TOLERANCE = 0.03  # of the largest value: two products in bfloat16, which has 8 bits


class GraphShapes:
    """The static shapes that TensorFlow infers for a GraphDef, or inferred when it made a graph."""

    def __init__(self, graph):
        self._graph = graph
        if not isinstance(graph, tf.Graph):
            with tf.Graph().as_default() as self._graph:
                tf.import_graph_def(graph, name="")

    def output_shapes(self, node):
        try:
            outputs = self._graph.get_operation_by_name(node).outputs
        except KeyError:  # a node that folding made
            return []
        shapes = (output.shape for output in outputs)
        return [
            None if s.rank is None else tuple(-1 if d is None else d for d in s.as_list())
            for s in shapes
        ]


def rewrite(proto, config=AUTO, preserve=("fetch",), hardware=BF16_CPU):
    return amp_tf.rewrite(
        proto, config, hardware=hardware, preserve=preserve, shapes=GraphShapes(proto)
    )


def feeds(proto):
    rng = np.random.default_rng(0)
    shapes = {
        n.name: [d.size for d in n.attr["shape"].shape.dim]
        for n in proto.node
        if n.op == "Placeholder"
    }
    return {
        f"{name}:0": rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }


def run(proto, values):
    return small_graphs.run(proto, ["fetch"], values)[0]


def reads(proto, name):
    return list(next(node for node in proto.node if node.name == name).input)


def ops(proto):
    return collections.Counter(
        node.op for node in proto.node if node.op not in ("Cast", "Placeholder", "Identity")
    )


def without_casts(proto):
    """Returns the inputs of each node, with casts skipped."""
    behind = {node.name: node.input[0] for node in proto.node if node.op == "Cast"}
    return {node.name: [behind.get(name, name) for name in node.input] for node in proto.node}


def check_agreement(proto, result):
    given = feeds(proto)
    exact = run(proto, given)
    found = run(result.graph, given)
    np.testing.assert_allclose(found, exact, rtol=0, atol=TOLERANCE * np.abs(exact).max())
