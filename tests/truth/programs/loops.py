"""Loops and branches: what a turn adds to what the turns before have left, and what a branch is
given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tests.truth.bench import Bench, Program

_TURNS = 200
_CASES = ("1", "1e-3", "1e3", "zeros", "equal rows")
_SHAPE = (4, 16)
_DRAWS = 3

Body = Callable[[Any, "Weights"], Any]


class Weights:
    """Two layers of weights."""

    def __init__(self, bench: Bench) -> None:
        self.first = bench.weight(16, 16, name="first")
        self.second = bench.weight(16, 16, name="second")

    def layers(self, x: tf.Tensor) -> tf.Tensor:
        """Two products with a tanh between them."""
        return tf.matmul(tf.tanh(tf.matmul(x, self.first)), self.second)

    @property
    def all(self) -> list[tf.Variable]:
        return [self.first, self.second]


def _descent_inside(x: tf.Tensor, w: Weights) -> Any:
    """Inner optimization of an input, as in samplers and adversarial examples."""
    for _ in tf.range(8):
        with tf.GradientTape() as tape:
            tape.watch(x)
            energy = tf.reduce_sum(tf.square(w.layers(x)))
        x = x - 1e-2 * tape.gradient(energy, x)
    return x


def _vectorized_map(x: tf.Tensor, w: Weights) -> Any:
    return tf.vectorized_map(lambda row: tf.nn.softmax(w.layers(row[None])[0]), x)


def _gated(x: tf.Tensor, w: Weights) -> Any:
    """A gate that mostly keeps the state, as an LSTM's cell with a forget gate near one."""
    state = x
    for _ in tf.range(_TURNS):
        keep = tf.sigmoid(5.0 + tf.matmul(state, w.first))
        state = keep * state + (1.0 - keep) * tf.tanh(tf.matmul(state, w.second))
    return state


def _newton(x: tf.Tensor, w: Weights) -> Any:
    """An inverse by iteration: 2a - a b a cancels."""
    matrix = tf.matmul(w.first, w.first, transpose_b=True) + 2.0 * tf.eye(16)
    inverse = tf.eye(16) / tf.linalg.trace(matrix)
    for _ in tf.range(20):
        inverse = 2.0 * inverse - tf.matmul(inverse, tf.matmul(matrix, inverse))
    return tf.matmul(x, inverse)


def _attention_online(x: tf.Tensor, w: Weights) -> Any:
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


def _branch_in_loop(x: tf.Tensor, w: Weights) -> Any:
    for turn in tf.range(_TURNS):
        if turn % 2 == 0:  # noqa: SIM108 (AutoGraph makes a branch of it)
            x = x + 1e-3 * w.layers(x)
        else:
            x = x - 1e-3 * tf.tanh(w.layers(x))
    return x


def _called_in_loop(x: tf.Tensor, w: Weights) -> Any:
    step = tf.function(lambda y: y + 1e-3 * w.layers(y))
    for _ in tf.range(_TURNS):
        x = step(x)
    return x


def _maximum_in_loop(x: tf.Tensor, w: Weights) -> Any:
    """Maxima of float32 values that a product reads; the gradient, another loop, compares both."""
    for _ in tf.range(5):
        most = tf.reduce_max(tf.exp(tf.tanh(x)), -1, keepdims=True)
        x = tf.matmul(tf.matmul(most, w.first[:1]), w.second)
    return x


def _maximum_in_branch(x: tf.Tensor, w: Weights) -> Any:
    x = tf.matmul(x, w.first)
    if tf.reduce_sum(x) > -1e30:
        most = tf.reduce_max(tf.exp(tf.tanh(x)), -1, keepdims=True)
        x = tf.matmul(most, w.second[:1])
    return tf.matmul(x, w.second)


BODIES: dict[str, Body] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        *(
            _descent_inside,
            _vectorized_map,
            _gated,
            _newton,
            _attention_online,
            _branch_in_loop,
            _called_in_loop,
            _maximum_in_loop,
            _maximum_in_branch,
        ),
    )
}


def programs() -> Iterator[Program]:
    for name, body in BODIES.items():
        yield Program(
            f"loops/{name}", functools.partial(_loop, name, body), compiled=name != "vectorized map"
        )


def _loop(name: str, body: Body, bench: Bench) -> None:
    """The loop, and the gradients."""
    weights = Weights(bench)
    target = bench.normal(*_SHAPE)
    forward = tf.autograph.to_graph(body, recursive=False)

    @bench.function
    def run(x: tf.Tensor) -> Any:
        return forward(x, weights)

    @bench.function
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = tf.nest.flatten(forward(x, weights))
            loss = tf.reduce_mean(tf.square(results[0] - target)) + sum(
                map(tf.reduce_sum, results[1:])
            )
        return loss, tape.gradient(loss, [x, *weights.all])

    for case in _CASES:
        for _ in range(_DRAWS):
            x = bench.case(case, *_SHAPE)
            for number, result in enumerate(tf.nest.flatten(run(x))):
                is_read = not result.shape.rank  # a total, a count
                bench.note(case, f"{'metric' if is_read else 'output'} {number}", result)
            loss, gradients = step(x)
            bench.note(case, "loss", loss)
            for of, gradient in zip(("x", "first", "second"), gradients, strict=True):
                if gradient is not None:
                    bench.note(case, f"gradient of {of}", gradient)
