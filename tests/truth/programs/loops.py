"""Loops and branches: what a turn adds to what the turns before have left, and what a branch is
given.
"""

import functools

import tensorflow as tf

from tests.truth.bench import Program, mean_square, title_of

_TURNS = 200
_CASES = ("1", "1e-3", "1e3", "zeros", "equal rows")
_SHAPE = (4, 16)
_DRAWS = 3


class Weights:
    """Two layers of weights."""

    def __init__(self, bench):
        self.first = bench.weight(16, 16, name="first")
        self.second = bench.weight(16, 16, name="second")

    def layers(self, x):
        """Two products with a tanh between them."""
        return tf.matmul(tf.tanh(tf.matmul(x, self.first)), self.second)


def _descent_inside(x, w):
    """Inner optimization of an input, as in samplers and adversarial examples."""
    for _ in tf.range(8):
        with tf.GradientTape() as tape:
            tape.watch(x)
            energy = tf.reduce_sum(tf.square(w.layers(x)))
        x = x - 1e-2 * tape.gradient(energy, x)
    return x


def _vectorized_map(x, w):
    return tf.vectorized_map(lambda row: tf.nn.softmax(w.layers(row[None])[0]), x)


def _gated(x, w):
    """A gate that mostly keeps the state, as an LSTM's cell with a forget gate near one."""
    state = x
    for _ in tf.range(_TURNS):
        keep = tf.sigmoid(5.0 + tf.matmul(state, w.first))
        state = keep * state + (1.0 - keep) * tf.tanh(tf.matmul(state, w.second))
    return state


def _newton(x, w):
    """An inverse by iteration: 2a - a b a cancels."""
    matrix = tf.matmul(w.first, w.first, transpose_b=True) + 2.0 * tf.eye(16)
    inverse = tf.eye(16) / tf.linalg.trace(matrix)
    for _ in tf.range(20):
        inverse = 2.0 * inverse - tf.matmul(inverse, tf.matmul(matrix, inverse))
    return tf.matmul(x, inverse)


def _attention_online(x, w):
    """Softmax over blocks with a running maximum and a running sum."""
    most = tf.fill([4, 1], -1e9)
    total = tf.zeros([4, 1])
    result = tf.zeros(_SHAPE)
    for turn in tf.range(16):
        keys = x * (1.0 + tf.cast(turn, tf.float32) / 16.0)
        scores = tf.matmul(tf.matmul(x, w.first), keys, transpose_b=True) / 4.0
        new_most = tf.maximum(most, tf.reduce_max(scores, -1, keepdims=True))
        chances = tf.exp(scores - new_most)
        kept = tf.exp(most - new_most)
        total = total * kept + tf.reduce_sum(chances, -1, keepdims=True)
        result = result * kept + tf.matmul(chances, tf.matmul(keys, w.second))
        most = new_most
    return result / total


def _branch_in_loop(x, w):
    for turn in tf.range(_TURNS):
        if turn % 2 == 0:  # noqa: SIM108 (AutoGraph makes a branch of it)
            x = x + 1e-3 * w.layers(x)
        else:
            x = x - 1e-3 * tf.tanh(w.layers(x))
    return x


def _called_in_loop(x, w):
    step = tf.function(lambda y: y + 1e-3 * w.layers(y))
    for _ in tf.range(_TURNS):
        x = step(x)
    return x


def _maximum_in_loop(x, w):
    """Maxima of float32 values that a product reads; the gradient, another loop, compares both."""
    for _ in tf.range(5):
        most = tf.reduce_max(tf.exp(tf.tanh(x)), -1, keepdims=True)
        x = tf.matmul(tf.matmul(most, w.first[:1]), w.second)
    return x


def _maximum_in_branch(x, w):
    x = tf.matmul(x, w.first)
    if tf.reduce_sum(x) > -1e30:
        most = tf.reduce_max(tf.exp(tf.tanh(x)), -1, keepdims=True)
        x = tf.matmul(most, w.second[:1])
    return tf.matmul(x, w.second)


BODIES = (
    _descent_inside,
    _vectorized_map,
    _gated,
    _newton,
    _attention_online,
    _branch_in_loop,
    _called_in_loop,
    _maximum_in_loop,
    _maximum_in_branch,
)


def programs():
    for body in BODIES:
        name = title_of(body)
        run = functools.partial(_loop, body)
        yield Program(f"loops/{name}", run, compiled=name != "vectorized map")


def _loop(body, bench):
    """The loop, and the gradients."""
    weights = Weights(bench)
    target = bench.normal(*_SHAPE)
    forward = tf.autograph.to_graph(body, recursive=False)

    @bench.function
    def run(x):
        return forward(x, weights)

    def trained(x):
        return {"loss": mean_square(forward(x, weights) - target)}

    step = bench.step(trained, {"first": weights.first, "second": weights.second})
    for case in _CASES:
        for _ in range(_DRAWS):
            x = bench.case(case, *_SHAPE)
            bench.note(case, "output 0", run(x))
            bench.note_all(case, step(x))
