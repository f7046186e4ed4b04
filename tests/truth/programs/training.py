"""Hand-written training: accumulation, scaled losses, second order, per-example gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tests.truth.bench import Bench, Program

_ROWS = 32
_WIDTH = 16
_STEPS = 6

Step = Callable[["Net", Any, Any], Any]


class Net:
    """Three dense layers."""

    def __init__(self, bench: Bench) -> None:
        shapes = ((_WIDTH, _WIDTH), (_WIDTH, _WIDTH), (_WIDTH, 4))
        self.weights = [
            bench.weight(*shape, name=f"w{number}") for number, shape in enumerate(shapes)
        ]
        self.biases = [
            tf.Variable(tf.zeros(shape[1]), name=f"b{number}")
            for number, shape in enumerate(shapes)
        ]
        self.variables = [*self.weights, *self.biases]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = tf.matmul(x, weight) + bias
            x = tf.tanh(x) if number < 2 else x
        return x

    def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(self(x) - y))

    def gradients(
        self, x: tf.Tensor, y: tf.Tensor, scale: float = 1.0
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = scale * self.loss(x, y)
        return loss, tape.gradient(loss, self.variables)

    def descend(self, gradients: list[tf.Tensor], rate: float = 0.05) -> None:
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.assign_sub(rate * gradient)


def _scaled(scale: float, net: Net, x: tf.Tensor, y: tf.Tensor) -> Any:
    loss, gradients = net.gradients(x, y, scale)
    net.descend(gradients, 0.05 / scale)
    return {
        "loss": loss,
        **{f"gradient {number}": gradient for number, gradient in enumerate(gradients)},
    }


def _unscaled_by_hand(scale: float, net: Net, x: tf.Tensor, y: tf.Tensor) -> Any:
    """A loss scale of the program's own: the gradients of the scaled loss are representable, the
    unscaled ones not.
    """
    with tf.GradientTape() as tape:
        loss = 1e-7 * net.loss(x, y)
        scaled = loss * scale
    gradients = [gradient / scale for gradient in tape.gradient(scaled, net.variables)]
    net.descend(gradients, 0.05e7)
    return {
        "loss": loss,
        **{f"gradient {number}": gradient for number, gradient in enumerate(gradients)},
    }


def _accumulated_in_loop(net: Net, x: tf.Tensor, y: tf.Tensor) -> Any:
    def turn(part: tf.Tensor, *totals: tf.Tensor) -> Any:
        _, gradients = net.gradients(x[part : part + 1], y[part : part + 1])
        return part + 1, *(
            total + gradient for total, gradient in zip(totals, gradients, strict=True)
        )

    start = [tf.constant(0), *map(tf.zeros_like, net.variables)]
    totals = tf.while_loop(lambda part, *_: part < _ROWS, turn, start)[1:]
    net.descend([total / 32.0 for total in totals])
    return {f"gradient {number}": total for number, total in enumerate(totals)}


def _gradient_penalty(net: Net, x: tf.Tensor, y: tf.Tensor) -> Any:
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            score = tf.reduce_sum(net(x))
        norms = tf.norm(inner.gradient(score, x), axis=1)
        loss = net.loss(x, y) + 10.0 * tf.reduce_mean(tf.square(norms - 1.0))
    net.descend(outer.gradient(loss, net.variables), 1e-3)
    return {"loss": loss, "metric penalty": tf.reduce_mean(norms)}


def _per_example(net: Net, x: tf.Tensor, y: tf.Tensor) -> Any:
    """Each example's gradient, clipped, as private training does."""

    def clipped(row: tf.Tensor, label: tf.Tensor) -> Any:
        _, gradients = net.gradients(row[None], label[None])
        return tf.clip_by_global_norm(gradients, 0.1)[0]

    each = tf.vectorized_map(lambda pair: clipped(*pair), (x, y))
    net.descend([tf.reduce_mean(gradient, 0) for gradient in each])
    return {f"gradient {number}": gradient for number, gradient in enumerate(each)}


_STEPS_BY_NAME: dict[str, Step] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (_accumulated_in_loop, _gradient_penalty, _per_example)
}
SCALES = (1e-7, 1e-5, 1e-3, 1e3, 1e5)


def programs() -> Iterator[Program]:
    steps = dict(_STEPS_BY_NAME)
    for scale in SCALES:
        steps[f"loss x {scale:g}"] = functools.partial(_scaled, scale)
    for scale in (2.0**10, 2.0**20):
        steps[f"unscaled by hand {scale:g}"] = functools.partial(_unscaled_by_hand, scale)
    for name, step in steps.items():
        yield Program(f"training/{name}", functools.partial(_train, step))


def _train(step: Step, bench: Bench) -> None:
    net = Net(bench)
    before = [variable.numpy() for variable in net.variables]
    run = bench.function(functools.partial(step, net))
    for _ in range(_STEPS):
        x = bench.normal(_ROWS, _WIDTH)
        y = bench.normal(_ROWS, 4)
        for name, value in run(tf.constant(x), tf.constant(y)).items():
            bench.note("1", name, value)
    for variable, start in zip(net.variables, before, strict=True):
        bench.note("1", f"move of {variable.name}", variable.numpy() - start)
