"""Shapes of a graph once its batch size is known."""

from __future__ import annotations

import keras
from tensorflow.core.protobuf import saved_model_pb2

from amp_tf.graph.inference import BatchShapes


def test_the_body_of_a_recurrent_layer_knows_the_batch_of_what_it_reads_from_a_list(tmp_path):
    """Without it, its product counts as unknown, and is converted however small the batch is."""
    model = keras.Sequential([keras.Input((5, 16)), keras.layers.LSTM(8)])
    model.export(str(tmp_path), verbose=False)
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((tmp_path / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    bodies = [body for body in graph.library.function if "while_body" in body.signature.name]
    assert len(bodies) == 1
    products = [node.name for node in bodies[0].node_def if node.op == "MatMul"]
    assert len(products) == 2
    shapes = BatchShapes(graph, graph.library, (3, 64)).of(bodies[0].signature.name)
    assert list(shapes) == [3, 64]
    for batch, found in shapes.items():
        for name in products:
            assert found.output_shapes(name) == [(batch, 32)]
