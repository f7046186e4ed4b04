"""tf.functions under jit_compile: tapes, second-order and own gradients, v1 graphs, SavedModels."""

import json
import tempfile

import numpy as np
import tensorflow as tf


def tensor(seed, *shape):
    return tf.constant(np.random.default_rng(seed).normal(size=shape, scale=0.2).astype("float32"))


x = tensor(1, 16, 16)
w = tf.Variable(tensor(2, 16, 16))
result = {}


def note(name, *tensors):
    result[name] = [np.asarray(part, "float64").ravel().tolist() for part in tensors]


def loss_of(x):
    return tf.reduce_sum(tf.tanh(x @ w) ** 2)


@tf.function(jit_compile=True)
def tape_inside(x):
    with tf.GradientTape() as tape:
        loss = loss_of(x)
    return loss, tape.gradient(loss, w)


@tf.function(jit_compile=True)
def replica(x):
    with tf.GradientTape() as tape:
        loss = loss_of(x)
    return loss, tape.gradient(loss, w)


@tf.function(jit_compile=True)
def tape_outside(x):
    return loss_of(x)


@tf.function(jit_compile=True)
def second_order(x):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = loss_of(x)
        penalty = tf.reduce_sum(inner.gradient(loss, w) ** 2)
    return penalty, outer.gradient(penalty, w)


@tf.custom_gradient
def doubled_gradient(x):
    return x @ w, lambda dy, variables=None: (2 * dy @ tf.transpose(w), [tf.transpose(x) @ dy])


@tf.function(jit_compile=True)
def custom_gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(doubled_gradient(x) ** 2)
    return loss, tape.gradient(loss, x)


@tf.function(jit_compile=True)
def retraced(x):
    return x @ w


note("tape_inside", *tape_inside(x))
with tf.GradientTape() as tape:
    loss = tape_outside(x)
note("tape_outside", loss, tape.gradient(loss, w))
note("second_order", *second_order(x))
note("custom_gradient", *custom_gradient(x))
note("retraced", retraced(x), retraced(x[:4]))
strategy = tf.distribute.MirroredStrategy(["CPU:0"])  # each replica's step is compiled on its own
note("replica", *strategy.run(replica, (x,)))
note("plain_caller", tf.function(lambda x: 2.0 * retraced(x))(x))


def between(x, weight):
    y = tf.cond(tf.reduce_sum(x) < 1e9, lambda: tf.tanh(x @ weight), lambda: x)
    return y @ weight


inputs = x.numpy()
weights = w.numpy()
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    v1_weight = tf.constant(weights)

    @tf.function(jit_compile=True)
    def in_session(x):
        return between(x, v1_weight)

    placeholder = tf.compat.v1.placeholder(tf.float32, (16, 16))
    note("in_session", session.run(in_session(placeholder), {placeholder: inputs}))


class Served(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tensor(3, 16, 16))

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec((16, 16))])
    def served(self, x):
        return between(x, self.weight)


module = Served()
module.served(x)
folder = tempfile.mkdtemp()
tf.saved_model.save(module, folder)
loaded = tf.saved_model.load(folder)
note("served", loaded.served(x))
print(json.dumps(result))
