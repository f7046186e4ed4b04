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


def all_nodes(graph):
    return [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]


def frozen(model):
    return convert_to_constants.convert_variables_to_constants_v2(
        model.outer.get_concrete_function()
    )


def saved(model, folder):
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    tf.saved_model.save(model, str(folder))
    return SavedModel.FromString((folder / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def


ROADS = {
    "graph of the function": lambda model, folder: (
        model.outer.get_concrete_function().graph.as_graph_def()
    ),
    "with shapes": lambda model, folder: model.outer.get_concrete_function().graph.as_graph_def(
        add_shapes=True
    ),
    "graph of the inner function": lambda model, folder: model.inner.get_concrete_function(
        X
    ).graph.as_graph_def(),
    "frozen": lambda model, folder: frozen(model).graph.as_graph_def(),
    "SavedModel": saved,
}


@pytest.mark.parametrize("road", ROADS)
def test_graphs_that_leave_the_process_are_float32(road, model, tmp_path):
    graph = ROADS[road](model, tmp_path)
    assert any(node.op in ("MatMul", "XlaMatMul") for node in all_nodes(graph))
    assert rounded_nodes(all_nodes(graph)) == []
    assert [
        function.signature.name
        for function in graph.library.function
        if "amp_tf" in function.signature.name
    ] == []


def test_the_definition_of_a_function_is_float32_and_calls_what_the_program_calls(model):
    concrete = model.inner.get_concrete_function(X)
    for definition in (concrete.function_def, concrete._inference_function.cached_definition):
        assert rounded_nodes(definition.node_def) == []
        assert not any(
            "amp_tf" in value.func.name
            for node in definition.node_def
            for value in node.attr.values()
        )


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
    imported = tf.compat.v1.wrap_function(
        lambda: tf.import_graph_def(
            model.inner.get_concrete_function(X).graph.as_graph_def(), name=""
        ),
        [],
    )
    assert imported.graph.get_operations()
    frozen_result = frozen(model)(X)
    assert_rounded(np.asarray(frozen_result[0]), exact, products=2)
    again = tf.function(lambda x: model.inner(x) + 1.0)(
        X
    ).numpy()  # which instantiates the inner function again
    np.testing.assert_array_equal(again, before)


def test_descriptions_are_float32_after_amp_tf_was_turned_off(model, tmp_path):
    uninstall(xla)
    assert rounded_nodes(all_nodes(saved(model, tmp_path))) == []


def test_keras_and_tflites_converter_write_float32(model, tmp_path):
    keras_model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Lambda(model.inner), keras.layers.Dense(4)]
    )
    keras_model.compile("sgd", "mse", jit_compile=True)
    keras_model.predict(X, verbose=0)
    keras_model.export(str(tmp_path / "exported"), verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported")).signatures["serving_default"]
    assert rounded_nodes(all_nodes(exported.graph.as_graph_def())) == []
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [model.outer.get_concrete_function()], model
    )
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    types = {details["dtype"] for details in interpreter.get_tensor_details()}
    assert np.float32 in types
    assert np.float16 not in types
