"""Runs loops that read variables, of kinds that random programs lack, with and without the move.

Prints one line of JSON: for each program whether any read was moved, whether all results and
variables are bit for bit those without the move, and how far they are off from float32, of the
largest value.
"""

import json
import pathlib
import sys
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from amp_tf.config import AmpConfig
from amp_tf.graph.names import HOIST_SUFFIX
from amp_tf.hooks import plugin
from amp_tf.rewriting import pipeline

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3]))
from tests.pretending import pretend

SIZE = 8
RUNS = 10
_moved = []
_generator = np.random.default_rng(0)


def matrix():
    """An orthogonal one, so that values stay of one size."""
    return np.linalg.qr(_generator.normal(size=(SIZE, SIZE)))[0].astype(np.float32)


X = matrix()
W = matrix()
V = matrix()


def loop(turns, step, x):
    return tf.while_loop(lambda i, _: i < turns, lambda i, y: (i + 1, step(y)), (0, x))[1]


def function(body):
    """Runs of a function of two variables, which every run finds as they were at first; with what
    it leaves in them.
    """

    def run():
        w = tf.Variable(W)
        v = tf.Variable(V)
        compiled = tf.function(lambda x, turns: body(x, turns, w, v))
        results = []
        for turns in (3, 0, 3, *[2] * RUNS):
            w.assign(W)
            v.assign(V)
            results += [compiled(X, tf.constant(turns)).numpy(), w.numpy(), v.numpy()]
        return results

    return run


def writes_in_the_body(x, turns, w, v):
    def step(y):
        y = y @ w
        w.assign(-w)
        return y

    return loop(turns, step, x)


def writes_before_and_after_by_another_name(x, turns, w, v):
    same = tf.function(
        lambda a, b, y: (a.assign(-a), loop(turns, lambda z: z @ b, y), a.assign(a * 2.0))[1]
    )
    return same(w, w, x)


def is_skipped_with_its_effects(x, turns, w, v):
    """Code after a branch waits for a loop in it that does not run but gets a product's result."""
    y = x @ w

    def step(z):
        v.assign(-v)
        return tf.sin(z)

    return tf.cond(tf.reduce_sum(x) > 1e6, lambda: loop(turns, step, y), lambda: y) + v


def differentiates(x, turns, w, v):
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf.square(loop(turns, lambda y: tf.tanh(y @ w) @ v, x)))
    gradients = tape.gradient(y, (w, v), unconnected_gradients="zero")
    w.assign_sub(0.1 * gradients[0])
    return gradients[1]


def session():
    with tf.Graph().as_default():
        w = tf.compat.v1.get_variable("w", initializer=W, use_resource=True)
        written = w.assign(-w)
        with tf.control_dependencies([written]):
            y = loop(3, lambda y: y @ w, tf.identity(X))
        with tf.compat.v1.Session() as running:
            running.run(tf.compat.v1.global_variables_initializer())
            return [running.run(y) for _ in range(RUNS)]


def v1_session():
    from tensorflow.python.ops import control_flow_util

    control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
    try:
        return session()
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = True


def recurrent(layer, steps):
    """Keras' predict and fit."""

    def run():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((6, 16)),
                layer(16, return_sequences=True),
                layer(16),
                keras.layers.Dense(2),
            ]
        )
        x, y = (
            np.random.default_rng(0).normal(size=shape).astype("float32")
            for shape in ((32, 6, 16), (32, 2))
        )
        results = [model.predict(x, batch_size=8, verbose=0)]
        model.compile("sgd", "mse", steps_per_execution=steps)
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return [*results, *model.get_weights()]

    return run


FUNCTIONS = (
    writes_in_the_body,
    writes_before_and_after_by_another_name,
    is_skipped_with_its_effects,
    differentiates,
)
PROGRAMS = {
    **{body.__name__: function(body) for body in FUNCTIONS},
    "session": session,
    "v1_session": v1_session,
    "lstm": recurrent(keras.layers.LSTM, 2),
}


def convert(serialized, preserve, shapes):
    result = plugin.convert_graph(serialized, preserve, shapes, AmpConfig())
    _moved.append(result is not None and HOIST_SUFFIX.encode() in result)
    return result


def judged(run):
    """Returns what is printed of a program."""
    plugin.uninstall()
    exact = run()
    assert plugin.set_conversion(convert)
    _moved.clear()
    found = run()
    moved = any(_moved)
    others = tuple(row for row in pipeline.CORRECTIONS if row.name != "hoist")
    with mock.patch.object(pipeline, "CORRECTIONS", others):
        kept = run()
    off = 0.0
    for right, value in zip(exact, found, strict=True):
        off = max(off, np.abs(right - value).max() / max(1.0, np.abs(right).max()))
    return {"moved": moved, "same": all(map(np.array_equal, found, kept)), "off": float(off)}


if __name__ == "__main__":
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    pretend()
    wanted = sys.argv[1:] or PROGRAMS
    print(json.dumps({name: judged(PROGRAMS[name]) for name in wanted}))
