"""Every road by which a function that XLA compiles leaves the process gives float32, as the program
wrote it.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants

from amp_tf.hooks import xla
from tests.hooks.installing import install, uninstall
from tests.hooks.xla.small_functions import BFLOAT16, X, assert_rounded, registered, tensor
from tests.small_graphs import all_nodes

pytestmark = pytest.mark.usefixtures("xla_hook_off_afterwards")

F16 = (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum)


class Model(tf.Module):
    """A function for XLA that calls another function, inside a plain one."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tensor(3, 8, 8))

    @tf.function
    def product(self, x):
        return x @ self.weight

    @tf.function(jit_compile=True)
    def inner(self, x):
        return tf.nn.relu(self.product(x)) @ self.weight

    @tf.function(input_signature=[tf.TensorSpec((8, 8))])
    def outer(self, x):
        return self.inner(x) + 1.0


@pytest.fixture
def model():
    install(xla, BFLOAT16)
    model = Model()
    concrete = model.inner.get_concrete_function(X)
    assert rounded_nodes(registered(concrete.name).node_def)
    return model


def rounded_nodes(nodes):
    return [node.name for node in nodes if any(value.type in F16 for value in node.attr.values())]


def frozen(model):
    return convert_to_constants.convert_variables_to_constants_v2(
        model.outer.get_concrete_function()
    )


def saved(model, folder):
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    tf.saved_model.save(model, str(folder))
    return SavedModel.FromString((folder / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def


def with_shapes(model, folder):
    return model.outer.get_concrete_function().graph.as_graph_def(add_shapes=True)


def of_the_inner_function(model, folder):
    return model.inner.get_concrete_function(X).graph.as_graph_def()


def frozen_graph(model, folder):
    return frozen(model).graph.as_graph_def()


def saved_once_amp_tf_is_off(model, folder):
    uninstall(xla)
    return saved(model, folder)


@pytest.mark.parametrize(
    "road", [with_shapes, of_the_inner_function, frozen_graph, saved, saved_once_amp_tf_is_off]
)
def test_graphs_that_leave_the_process_are_float32(road, model, tmp_path):
    graph = road(model, tmp_path)
    nodes = all_nodes(graph)
    assert {"MatMul", "XlaMatMul"} & {node.op for node in nodes}
    assert rounded_nodes(nodes) == []
    assert "_amp_tf_" not in str(graph.library)


def test_the_definition_of_a_function_is_float32_and_calls_what_the_program_calls(model):
    concrete = model.inner.get_concrete_function(X)
    for definition in (concrete.function_def, concrete._inference_function.cached_definition):
        assert rounded_nodes(definition.node_def) == []
        assert "_amp_tf_" not in str(definition)


def test_a_graph_of_tensorflow_1_is_float32_in_its_file_and_16_bit_when_it_runs(model):
    expected = tf.function(lambda x: tf.nn.relu(x @ model.weight) @ model.weight)(X).numpy()
    inputs = X.numpy()
    weight = model.weight.numpy()
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        inner = tf.function(lambda x: tf.nn.relu(x @ weight) @ weight, jit_compile=True)
        result = session.run(inner(tf.constant(inputs)))
        assert rounded_nodes(all_nodes(graph.as_graph_def())) == []
    assert_rounded(result, expected, products=2)
    assert not np.allclose(result, expected, rtol=0, atol=1e-5)


def test_a_description_can_be_imported_again_and_the_function_stays_converted(model):
    concrete = model.outer.get_concrete_function()
    exact = (tf.nn.relu(X @ model.weight) @ model.weight + 1.0).numpy()
    before = concrete(X).numpy()
    assert_rounded(before, exact, products=2)
    described = of_the_inner_function(model, None)
    imported = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(described, name=""), [])
    assert imported.graph.get_operations()
    assert_rounded(np.asarray(frozen(model)(X)[0]), exact, products=2)
    # This instantiates the inner function again.
    again = tf.function(lambda x: model.inner(x) + 1.0)(X).numpy()
    np.testing.assert_array_equal(again, before)


def test_keras_and_tflites_converter_write_float32(model, tmp_path):
    layers = [keras.Input((8,)), keras.layers.Lambda(model.inner), keras.layers.Dense(4)]
    keras_model = keras.Sequential(layers)
    keras_model.compile("sgd", "mse", jit_compile=True)
    keras_model.predict(X, verbose=0)
    keras_model.export(str(tmp_path / "exported"), verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported")).signatures["serving_default"]
    assert rounded_nodes(all_nodes(exported.graph.as_graph_def())) == []
    outer = model.outer.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([outer], model)
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    types = {details["dtype"] for details in interpreter.get_tensor_details()}
    assert np.float32 in types
    assert np.float16 not in types
