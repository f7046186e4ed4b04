"""Models and objectives as people write them. None of them was looked at when a rule was made: they only judge."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tests.truth.bench import Bench, Program

_DRAWS = 3
_ROWS, _WIDTH = 16, 32

Model = Callable[["Weights", tf.Tensor], dict[str, Any]]  # the loss and whatever else is of interest


class Weights:
    """Variables by name, made where they are first asked for."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.variables: dict[str, tf.Variable] = {}

    def __call__(self, name: str, *shape: int) -> tf.Variable:
        if name not in self.variables:
            self.variables[name] = self._bench.weight(*shape, name=name)
        return self.variables[name]

    def bias(self, name: str, size: int, start: float = 0.0) -> tf.Variable:
        if name not in self.variables:
            self.variables[name] = tf.Variable(self._bench.normal(size, scale=0.1) + start, name=name)
        return self.variables[name]

    def dense(self, x: tf.Tensor, size: int, name: str) -> tf.Tensor:
        """A product and a bias, over the last axis."""
        result = tf.tensordot(x, self(f"{name}/kernel", x.shape[-1], size), 1)
        return result + self.bias(f"{name}/bias", size)

    def convolution(self, x: tf.Tensor, channels: int, name: str, size: int = 3) -> tf.Tensor:
        return tf.nn.conv2d(x, self(f"{name}/filter", size, size, x.shape[-1], channels), 1, "SAME")

    def perceptron(self, x: tf.Tensor, size: int, name: str, activation: Any = tf.nn.gelu) -> tf.Tensor:
        """Two dense layers."""
        return self.dense(activation(self.dense(x, 2 * x.shape[-1], f"{name}/in")), size, f"{name}/out")


def programs() -> Iterator[Program]:
    for module in ("objectives", "models"):
        place = importlib.import_module(f"tests.truth.programs.practice_{module}")
        for name, model in inspect.getmembers(place, inspect.isfunction):
            if model.__module__ == place.__name__ and not name.startswith("_"):
                yield Program(f"practice/{name.replace('_', ' ')}", functools.partial(_train, model))


def _train(model: Model, bench: Bench) -> None:
    """What the model says, its loss, and the gradients."""
    weights = Weights(bench)
    model(weights, tf.constant(bench.normal(_ROWS, _WIDTH)))

    @bench.function
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = model(weights, x)
        return results, tape.gradient(results["loss"], {**weights.variables, "x": x})

    for _ in range(_DRAWS):
        results, gradients = step(tf.constant(bench.normal(_ROWS, _WIDTH)))
        for name, value in results.items():
            bench.note("1", name, value)
        for name, gradient in gradients.items():
            if gradient is not None:
                bench.note("1", f"gradient of {name}", gradient)
