"""Loops and branches: what a turn adds to what the turns before have left, and what a branch is given."""

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


def _small_steps(x: tf.Tensor, w: Weights) -> Any:
    for _ in tf.range(_TURNS):
        x = x + 1e-3 * w.layers(x)
    return x


def _small_steps_unrolled(x: tf.Tensor, w: Weights) -> Any:
    for _ in range(_TURNS):
        x = x + 1e-3 * w.layers(x)
    return x


def _small_steps_back(x: tf.Tensor, w: Weights) -> Any:
    for _ in tf.range(_TURNS):
        x = x - 1e-3 * w.layers(x)
    return x


def _descent_inside(x: tf.Tensor, w: Weights) -> Any:
    """Inner optimization of an input, as in samplers and adversarial examples."""
    for _ in tf.range(8):
        with tf.GradientTape() as tape:
            tape.watch(x)
            energy = tf.reduce_sum(tf.square(w.layers(x)))
        x = x - 1e-2 * tape.gradient(energy, x)
    return x


def _heun(x: tf.Tensor, w: Weights) -> Any:
    """An ODE solver of second order."""
    for _ in tf.range(30):
        slope = w.layers(x)
        x = x + 0.5e-2 * (slope + w.layers(x + 1e-2 * slope))
    return x


def _total(x: tf.Tensor, w: Weights) -> Any:
    total = tf.zeros([])
    for _ in tf.range(300):
        total += tf.reduce_mean(tf.square(w.layers(x)))
    return x * 0.1, total / 300.0


def _count(x: tf.Tensor, w: Weights) -> Any:
    seen = tf.zeros([])
    for _ in tf.range(400):
        y = w.layers(x)
        seen += tf.reduce_mean(tf.ones_like(y))
    return x * 1.0, seen


def _moving_average(x: tf.Tensor, w: Weights) -> Any:
    average = tf.zeros(_SHAPE)
    for _ in tf.range(200):
        average = 0.99 * average + 0.01 * w.layers(x)
    return average


def _product_of_many(x: tf.Tensor, w: Weights) -> Any:
    weight = tf.ones(_SHAPE)
    for _ in tf.range(200):
        weight *= 1.0 + 1e-3 * tf.tanh(w.layers(x))
    return weight


def _welford(x: tf.Tensor, w: Weights) -> Any:
    """Running mean and variance."""
    mean, squares = tf.zeros(_SHAPE), tf.zeros(_SHAPE)
    for turn in tf.range(1, 100):
        y = w.layers(x * (1.0 + 0.01 * tf.cast(turn, tf.float32)))
        difference = y - mean
        mean += difference / tf.cast(turn, tf.float32)
        squares += difference * (y - mean)
    return mean, squares / 99.0


def _residual_blocks(x: tf.Tensor, w: Weights) -> Any:
    for _ in range(24):
        x = x + 0.1 * w.layers(x)
    return x


def _long_sum(x: tf.Tensor, w: Weights) -> Any:
    total = w.layers(x)
    for scale in range(1, 100):
        total = total + w.layers(x) * (0.02 / scale)
    return total


def _sum_of_losses(x: tf.Tensor, w: Weights) -> Any:
    total = tf.zeros([])
    for scale in range(1, 80):
        total = total + tf.reduce_mean(tf.square(w.layers(x * (scale / 80))))
    return x * 1.0, total


def _scan(x: tf.Tensor, w: Weights) -> Any:
    return tf.scan(lambda state, row: state + 0.1 * w.layers(row[None])[0], x, tf.zeros([16]))


def _vectorized_map(x: tf.Tensor, w: Weights) -> Any:
    return tf.vectorized_map(lambda row: tf.nn.softmax(w.layers(row[None])[0]), x)


def _tensor_array(x: tf.Tensor, w: Weights) -> Any:
    states = tf.TensorArray(tf.float32, size=20, element_shape=_SHAPE)
    for turn in tf.range(20):
        states = states.write(turn, w.layers(x) / tf.cast(turn + 1, tf.float32))
    return tf.reduce_sum(states.stack(), 0)


def _recurrent(x: tf.Tensor, w: Weights) -> Any:
    state = tf.zeros(_SHAPE)
    for _ in tf.range(20):
        state = tf.tanh(tf.matmul(state, w.first) + tf.matmul(x, w.second))
    return state


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


def _power_iteration(x: tf.Tensor, w: Weights) -> Any:
    vector = x
    for _ in tf.range(20):
        vector = tf.math.l2_normalize(tf.matmul(vector, w.first), -1)
    return vector * tf.norm(tf.matmul(vector, w.first), axis=-1, keepdims=True)


def _attention_online(x: tf.Tensor, w: Weights) -> Any:
    """Softmax over blocks with a running maximum and a running sum."""
    most, total, result = tf.fill([4, 1], -1e9), tf.zeros([4, 1]), tf.zeros(_SHAPE)
    for turn in tf.range(16):
        keys = x * (1.0 + tf.cast(turn, tf.float32) / 16.0)
        scores = tf.matmul(tf.matmul(x, w.first), keys, transpose_b=True) / 4.0
        new_most = tf.maximum(most, tf.reduce_max(scores, -1, keepdims=True))
        chances, kept = tf.exp(scores - new_most), tf.exp(most - new_most)
        total = total * kept + tf.reduce_sum(chances, -1, keepdims=True)
        result = result * kept + tf.matmul(chances, tf.matmul(keys, w.second))
        most = new_most
    return result / total


def _branches(x: tf.Tensor, w: Weights) -> Any:
    y = w.layers(x)
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.softmax(y) + x, lambda: y - 0.5 * x)


def _branch_in_loop(x: tf.Tensor, w: Weights) -> Any:
    for turn in tf.range(_TURNS):
        if turn % 2 == 0:  # noqa: SIM108 (AutoGraph makes a branch of it)
            x = x + 1e-3 * w.layers(x)
        else:
            x = x - 1e-3 * tf.tanh(w.layers(x))
    return x


def _loop_in_loop(x: tf.Tensor, w: Weights) -> Any:
    for _ in tf.range(10):
        for _ in tf.range(6):
            x = x + 1e-3 * w.layers(x)
    return x


def _switch_case(x: tf.Tensor, w: Weights) -> Any:
    y = w.layers(x)
    which = tf.cast(tf.reduce_sum(x) > 0, tf.int32)
    return tf.switch_case(which, [lambda: tf.nn.log_softmax(y), lambda: y * tf.sigmoid(y), lambda: y])


def _until_small(x: tf.Tensor, w: Weights) -> Any:
    """A fixed point, found by as many turns as it takes."""
    state, turns, change = tf.zeros(_SHAPE), 0, tf.constant(1.0)
    while change > 1e-2 and turns < 50:
        new = 0.3 * tf.tanh(tf.matmul(state, w.first)) + 0.1 * tf.tanh(x)
        change = tf.reduce_max(tf.abs(new - state))
        state, turns = new, turns + 1
    return state


def _called_in_loop(x: tf.Tensor, w: Weights) -> Any:
    step = tf.function(lambda y: y + 1e-3 * w.layers(y))
    for _ in tf.range(_TURNS):
        x = step(x)
    return x


def _calls(x: tf.Tensor, w: Weights) -> Any:
    step = tf.function(lambda y: y + 1e-2 * w.layers(y))
    for _ in range(20):
        x = step(x)
    return x


def _checkpointed(x: tf.Tensor, w: Weights) -> Any:
    @tf.recompute_grad
    def block(y: tf.Tensor) -> tf.Tensor:
        return y + 0.1 * w.layers(y)

    for _ in range(6):
        x = block(x)
    return x


BODIES: dict[str, Body] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        *(_small_steps, _small_steps_unrolled, _small_steps_back, _descent_inside, _heun, _total),
        *(_count, _moving_average, _product_of_many, _welford),
        *(_residual_blocks, _long_sum, _sum_of_losses, _scan, _vectorized_map, _tensor_array),
        *(_recurrent, _gated, _newton, _power_iteration, _attention_online, _branches, _branch_in_loop, _loop_in_loop),
        *(_switch_case, _until_small, _called_in_loop, _calls, _checkpointed),
    )
}
_WITHOUT_XLA = ("until small", "vectorized map")


def programs() -> Iterator[Program]:
    for name, body in BODIES.items():
        yield Program(f"loops/{name}", functools.partial(_loop, name, body), compiled=name not in _WITHOUT_XLA)


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
            loss = tf.reduce_mean(tf.square(results[0] - target)) + sum(map(tf.reduce_sum, results[1:]))
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
