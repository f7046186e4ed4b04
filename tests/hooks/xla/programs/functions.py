"""tf.functions under jit_compile: tapes, second-order and own gradients, v1 graphs, SavedModels."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel


def tensor(seed, *shape):
    return tf.constant(np.random.default_rng(seed).normal(size=shape, scale=0.2).astype("float32"))


x = tensor(1, 16, 16)
w = tf.Variable(tensor(2, 16, 16))
result = {}


def note(name, *tensors):
    result[name] = [np.asarray(part, "float64").ravel().tolist() for part in tensors]


@tf.function(jit_compile=True)
def tape_inside(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.tanh(x @ w) ** 2)
    gradient = tape.gradient(loss, w)
    return loss, gradient


note("tape_inside", *tape_inside(x))


@tf.function(jit_compile=True)
def tape_outside(x):
    return tf.reduce_sum(tf.tanh(x @ w) ** 2)


with tf.GradientTape() as tape:
    loss = tape_outside(x)
note("tape_outside", loss, tape.gradient(loss, w))


@tf.function(jit_compile=True)
def second_order(x):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum(tf.tanh(x @ w) ** 2)
        gradient = inner.gradient(loss, w)
        penalty = tf.reduce_sum(gradient**2)
    return penalty, outer.gradient(penalty, w)


note("second_order", *second_order(x))


@tf.custom_gradient
def doubled_gradient(x):
    return x @ w, lambda dy, variables=None: (2 * dy @ tf.transpose(w), [tf.transpose(x) @ dy])


@tf.function(jit_compile=True)
def custom_gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(doubled_gradient(x) ** 2)
    return loss, tape.gradient(loss, x)


note("custom_gradient", *custom_gradient(x))


@tf.function(jit_compile=True)
def retraced(x):
    return x @ w


note("retraced", retraced(x), retraced(x[:4]))


@tf.function
def plain_caller(x):
    return 2.0 * retraced(x)


note("plain_caller", plain_caller(x))

graph = tf.Graph()
inputs, weights = x.numpy(), w.numpy()
with graph.as_default():
    v1_weight = tf.constant(weights)

    @tf.function(jit_compile=True)
    def in_session(x):
        y = tf.cond(tf.reduce_sum(x) < 1e9, lambda: x @ v1_weight, lambda: x)
        return tf.tanh(y) @ v1_weight

    placeholder = tf.compat.v1.placeholder(tf.float32, (16, 16))
    fetched = in_session(placeholder)
    with tf.compat.v1.Session(graph=graph) as session:
        note("in_session", session.run(fetched, {placeholder: inputs}))


class Served(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tensor(3, 16, 16))

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec((16, 16))])
    def served(self, x):
        return tf.cond(tf.reduce_sum(x) < 1e9, lambda: tf.tanh(x @ self.weight), lambda: x) @ self.weight


module = Served()
note("before_saving", module.served(x))
folder = tempfile.mkdtemp()
tf.saved_model.save(module, folder)
with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
    saved = SavedModel.FromString(file.read()).meta_graphs[0].graph_def
nodes = [*saved.node, *(node for function in saved.library.function for node in function.node_def)]
f16 = (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum)
result["saved_f16_nodes"] = [n.name for n in nodes if any(value.type in f16 for value in n.attr.values())]
result["saved_clones"] = [f.signature.name for f in saved.library.function if "amp_tf" in f.signature.name]
loaded = tf.saved_model.load(folder)
note("served", loaded.served(x))

try:
    import amp_tf

    report = amp_tf.report()
    result["ways"] = sorted({graph.way for graph in report.graphs if graph.converted})
except ImportError:
    pass
print(json.dumps(result))
