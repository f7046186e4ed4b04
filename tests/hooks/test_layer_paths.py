"""The layers of Keras are found by their paths, forward and backward, in every way in which their
names are made.
"""

from __future__ import annotations

import collections
import json
import sys

import keras
import pytest
import tensorflow as tf

from amp_tf.graph.layers import path_of, recorded
from amp_tf.graph.names import matcher
from amp_tf.hooks import layer_paths, state
from tests.hooks import installing, running
from tests.small_graphs import all_nodes

tf_keras = pytest.importorskip("tf_keras")


@pytest.fixture(autouse=True)
def recording():
    recorded.forget()
    with installing.installed(layer_paths):
        yield
    recorded.forget()


def step_of(model, shape):
    """The names of the nodes of a training step, those of functions included."""

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x)))
        return tape.gradient(loss, model.trainable_variables)

    return all_nodes(step.get_concrete_function(tf.TensorSpec(shape)).graph.as_graph_def())


def by_layer(nodes, op):
    """How many nodes of an op each layer has."""
    return collections.Counter(path_of(node.name) for node in nodes if node.op == op)


def products_by_layer(nodes):
    return by_layer(nodes, "MatMul")


def path(layer):
    """The path of a layer; the first versions of Keras 3 have none."""
    return str(layer.path) if hasattr(layer, "path") else pytest.skip("layers have no path")


def test_layers_with_the_names_that_keras_gives_are_told_apart():
    keras.backend.clear_session()
    inputs = keras.Input((4,))
    shared = keras.layers.Dense(4, name="shared")
    first = keras.layers.Dense(4)
    second = keras.layers.Dense(4)
    last = keras.layers.Dense(2)
    hidden = second(first(shared(shared(inputs))))
    model = keras.Model(inputs, keras.Sequential([last])(hidden))
    assert (first.name, second.name) == ("dense", "dense_1")
    nodes = step_of(model, (3, 4))
    # One forward and two backward; the first of all needs no gradient of its input.
    counts = {path(shared): 5, path(first): 3, path(second): 3, path(last): 3}
    assert products_by_layer(nodes) == counts
    is_of_dense = matcher("layer:dense")
    assert sum(node.op == "MatMul" and is_of_dense(node.name) for node in nodes) == 3


class Block(keras.layers.Layer):
    """A layer with one inside."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.inner = keras.layers.Dense(4, name="inner")

    def call(self, x):
        return self.inner(x) + x


def test_layers_inside_of_layers_have_the_paths_of_keras():
    class Model(keras.Model):
        def __init__(self):
            super().__init__(name="outer")
            self.first = Block(name="block_1")
            self.second = Block(name="block_12")

        def call(self, x):
            return self.second(self.first(x))

    model = Model()
    model(tf.ones((1, 4)))
    assert path(model.first.inner) == "outer/block_1/inner"
    assert path(model.second.inner) == "outer/block_12/inner"
    products = products_by_layer(step_of(model, (3, 4)))
    assert products == {"outer/block_1/inner": 2, "outer/block_12/inner": 3}


def test_paths_need_only_the_public_name_scope_of_keras(monkeypatch):
    # Keras 3.16 moved the module that defines it.
    monkeypatch.delitem(sys.modules, "keras.src.backend.tensorflow.core", raising=False)
    installing.uninstall(layer_paths)
    installing.install(layer_paths)
    model = keras.Sequential(
        [keras.Input((4,)), keras.Sequential([keras.layers.Dense(4, name="inner")], name="block")],
        name="net",
    )
    inner = model.get_layer("block").get_layer("inner")
    assert products_by_layer(step_of(model, (3, 4))) == {path(inner): 2}


def test_a_recurrent_layers_loop_belongs_to_it_and_its_cell():
    model = keras.Sequential(
        [keras.layers.LSTM(4, name="lstm"), keras.layers.Dense(2, name="head")], name="net"
    )
    model(tf.ones((1, 5, 4)))
    products = products_by_layer(step_of(model, (3, 5, 4)))
    assert set(products) == {"net/lstm/lstm_cell", "net/head"}
    assert products["net/head"] == 3


class Product(keras.layers.Layer):
    """A layer whose product is inside of a function that has a gradient of its own."""

    def __init__(self, differentiable, **settings):
        super().__init__(**settings)
        self.multiply = differentiable(lambda x, w: tf.matmul(x, w))

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4))

    def call(self, x):
        return self.multiply(x, tf.convert_to_tensor(self.kernel))


def by_hand(multiply):
    @tf.custom_gradient
    def product(x, w):
        def gradient(dy):
            return tf.matmul(dy, w, transpose_b=True), tf.matmul(x, dy, transpose_a=True)

        return multiply(x, w), gradient

    return product


@pytest.mark.parametrize(
    ("differentiable", "op", "count"),
    [
        (by_hand, "MatMul", 3),
        (tf.recompute_grad, "MatMul", 4),
        (tf.function, "PartitionedCall", 2),
    ],
)
def test_a_function_with_a_gradient_of_its_own_belongs_to_its_layer(differentiable, op, count):
    kept = Product(differentiable, name="kept")
    model = keras.Sequential([keras.Input((4,)), kept, keras.layers.Dense(2)], name="net")
    nodes = by_layer(step_of(model, (3, 4)), op)
    assert nodes[path(kept)] == count
    assert not nodes[""]


def test_a_layer_that_is_recomputed_is_inside_the_one_around_it():
    class Recomputed(Block):
        def call(self, x):
            return tf.recompute_grad(self.inner)(x) + x

    model = keras.Sequential([keras.Input((4,)), Recomputed(name="kept")], name="net")
    nodes = step_of(model, (3, 4))
    # Forward twice, and backward.
    products = [node.name for node in nodes if node.op == "MatMul"]
    assert len(products) == 4
    assert all(map(matcher("layer:kept/inner"), products))
    # TensorFlow puts these ops around the layer that it calls again.
    rest = [node.name for node in nodes if node.op in ("StridedSlice", "Max", "SelectV2")]
    assert len(rest) == 3
    assert all(map(matcher("layer:kept"), rest))


def test_what_goes_wrong_in_the_record_does_not_reach_the_program(monkeypatch):
    monkeypatch.setattr(layer_paths, "_scope_here", lambda: 1 / 0)
    step_of(keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)]), (3, 4))
    assert not state.patches(layer_paths.__name__)


PROGRAM = """
import json, keras, numpy as np, amp_tf
inputs = keras.Input((8,))
layers = [keras.layers.Dense(8, name=name) for name in ("one", "two")]
block = keras.Sequential(layers, name="block_1")
other = keras.Sequential([keras.layers.Dense(8, name="one")], name="block_12")
outputs = keras.layers.Dense(1, name="head")(other(block(inputs)))
model = keras.Model(inputs, outputs, name="net")
model.compile("sgd", "mse", jit_compile={jit})
model.fit(np.ones((16, 8), "float32"), np.ones((16, 1), "float32"), verbose=0)
model.predict(np.ones((16, 8), "float32"), verbose=0)
report = amp_tf.report()
products = [node for node in report.nodes if "MatMul" in node.op]
def short(layer):  # in the first versions of Keras 3 a path begins with the model
    return layer.removeprefix("net/")
kept = [node for node in products if node.reason.rule is amp_tf.Rule.KEPT_BY_NAME]
print(json.dumps({{
    "kept": sorted({{short(node.layer) for node in kept}}),
    "f16": sorted({{short(node.layer) for node in products if node.precision.is_f16}}),
    "layers": [short(layer.layer) for layer in report.by_layer() if layer.f16],
}}))
"""


@pytest.mark.parametrize("jit", [False, True])
def test_a_program_keeps_a_layer_by_its_path(jit, site_folder):
    variables = {
        running.SWITCH: "1",
        "AMP_TF_PRECISION": "bfloat16",
        "AMP_TF_KEEP_FLOAT32": "layer:block_1,layer:heed",
    }
    ended = running.run(["-c", PROGRAM.format(jit=jit)], site_folder, variables)
    found = json.loads(ended.out.strip().splitlines()[-1])
    assert found["kept"] == ["block_1/one", "block_1/two"]
    assert found["f16"] == ["block_12/one", "head"]
    layers = [layer for layer in found["layers"] if layer and "sgd" not in layer]
    assert layers == ["block_12/one", "head"]
    told = ended.summary[6].replace("net/", "")
    assert "patterns that matched no node: layer:heed (did you mean layer:head?)" in told


NAMED = """
import json, {keras}, numpy as np, amp_tf
keras = {keras}
names = ["body", "cond", "while", "then", "else", "gradients"]
layers = [keras.layers.Dense(64, name=name) for name in names]
layers.append(keras.layers.Reshape((8, 8)))
layers.append(keras.layers.LSTM(4, name="rnn"))
model = keras.Sequential([keras.layers.Input((64,)), *layers], name="net")
model.compile("sgd", "mse")
model.fit(np.ones((64, 64), "float32"), np.ones((64, 4), "float32"), verbose=0)
for node in amp_tf.report().nodes:
    if "MatMul" in node.op:
        is_kept = node.reason.rule is amp_tf.Rule.KEPT_BY_NAME
        print("product", node.layer.split("/")[-1], "kept" if is_kept else "free")
print(json.dumps([layer.layer.split("/")[-1] for layer in amp_tf.report().by_layer()]))
"""


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_layers_that_have_names_of_tensorflows_scopes_have_paths(library, site_folder):
    variables = {
        running.SWITCH: "1",
        "AMP_TF_PRECISION": "bfloat16",
        "AMP_TF_KEEP_FLOAT32": "layer:body,layer:while,layer:gradients",
    }
    ended = running.run(["-c", NAMED.format(keras=library)], site_folder, variables)
    assert not ended.warnings
    *products, layers = ended.out.splitlines()
    counts = collections.Counter(line for line in products if line.startswith("product"))
    for name in ("body", "cond", "while", "then", "else", "gradients"):
        is_kept = name in ("body", "while", "gradients")
        # Forward, and backward once or twice.
        assert counts[f"product {name} {'kept' if is_kept else 'free'}"] >= 2
        assert not counts[f"product {name} {'free' if is_kept else 'kept'}"]
        assert name in json.loads(layers)
    assert not counts["product rnn kept"]
