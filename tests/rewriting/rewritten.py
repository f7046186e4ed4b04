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


def shaped(text, *functions):
    """The graph of a text; its nodes carry the shapes that TensorFlow infers."""
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(small_graphs.graph(text, *functions), name="")
    return imported.as_graph_def(add_shapes=True)


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
        found = []
        for output in outputs:
            sizes = None
            if output.shape.rank is not None:
                sizes = tuple(-1 if size is None else size for size in output.shape.as_list())
            found.append(sizes)
        return found


def rewrite(proto, config=AUTO, preserve=("fetch",), hardware=BF16_CPU):
    return amp_tf.rewrite(
        proto, config, hardware=hardware, preserve=preserve, shapes=GraphShapes(proto)
    )


def feeds(proto):
    rng = np.random.default_rng(0)
    values = {}
    for node in proto.node:
        if node.op == "Placeholder":
            shape = [dim.size for dim in node.attr["shape"].shape.dim]
            values[f"{node.name}:0"] = rng.standard_normal(shape).astype(np.float32)
    return values


def run(proto, values):
    return small_graphs.run(proto, ["fetch"], values)[0]


def node_of(proto, name):
    (found,) = (node for node in proto.node if node.name == name)
    return found


def reads(proto, name):
    return list(node_of(proto, name).input)


def ops(proto):
    plain = ("Cast", "Placeholder", "Identity")
    return collections.Counter(node.op for node in proto.node if node.op not in plain)


def without_casts(proto):
    """Returns the inputs of each node, with casts skipped."""
    behind = {}
    for node in proto.node:
        if node.op == "Cast":
            behind[node.name] = node.input[0]
    inputs = {}
    for node in proto.node:
        inputs[node.name] = [behind.get(name, name) for name in node.input]
    return inputs


def check_agreement(proto, result):
    given = feeds(proto)
    exact = run(proto, given)
    found = run(result.graph, given)
    np.testing.assert_allclose(found, exact, rtol=0, atol=TOLERANCE * np.abs(exact).max())
