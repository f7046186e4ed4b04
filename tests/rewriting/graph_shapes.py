"""The static shapes of a graph, from TensorFlow's own inference."""

from __future__ import annotations

import tensorflow as tf


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
        return [None if s.rank is None else tuple(-1 if d is None else d for d in s.as_list()) for s in shapes]
