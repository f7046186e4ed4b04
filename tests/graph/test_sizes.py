"""Static shapes, as far as they are known."""

import tensorflow as tf

from amp_tf.graph.sizes import NOMINAL_BATCH, AttributeShapes, NoShapes, element_count, read_shape


def test_an_unknown_first_dimension_counts_as_a_nominal_batch():
    assert element_count((-1, 3)) == 3 * NOMINAL_BATCH
    assert element_count(()) == 1
    assert element_count(None) is None
    assert element_count((3, -1)) is None


def test_shapes_come_from_the_attribute_that_exporters_write():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 4), name="x")
        tf.split(x, 2, axis=1, name="s")
        tf.compat.v1.placeholder(tf.float32, None, name="any")
    shapes = AttributeShapes(graph.as_graph_def(add_shapes=True).node)
    assert shapes.output_shapes("s") == [(-1, 2), (-1, 2)]
    assert shapes.output_shapes("any") == [None]
    assert shapes.output_shapes("nothing") == ()
    assert shapes
    assert not AttributeShapes(graph.as_graph_def().node)


def test_nothing_is_known_without_a_source():
    assert NoShapes().output_shapes("x") == ()


def test_an_unknown_rank_is_none():
    assert read_shape(tf.TensorShape(None).as_proto()) is None
    assert read_shape(tf.TensorShape((2, None)).as_proto()) == (2, -1)
