"""What a comparison says is what the program does under amp_tf: both see what TensorFlow's optimizers make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from tests.comparing.planted import PLANTED
from tests.truth.bench import Bench
from tests.truth.programs import practice_models
from tests.truth.programs.practice import Weights
from tests.truth.yardstick import distance

_WEIGHTS = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)

Run = Callable[..., dict[str, Any]]


def divided() -> tuple[Run, list[Any]]:
    """A difference of values that are nearly alike, divided by a constant: TensorFlow multiplies by the reciprocal."""

    def step(x: Any, base: Any) -> dict[str, Any]:
        near = base * (1.0 + 0.001 * tf.matmul(x, _WEIGHTS))
        return {"out": tf.matmul((near - base) / 10.0, _WEIGHTS)}

    return step, near_a_hundred()


def with_gradients() -> tuple[Run, list[Any]]:
    """Such a difference, and gradients of its logarithm that nobody fetches: TensorFlow prunes them."""
    weights = tf.Variable(_WEIGHTS)

    def step(x: Any, base: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            difference = base * (1.0 + 0.001 * tf.matmul(x, weights)) - base
            loss = tf.reduce_mean(tf.math.log(tf.abs(difference)))
        tape.gradient(loss, weights)
        return {"out": tf.matmul(difference, _WEIGHTS)}

    return step, near_a_hundred()


def sampled() -> tuple[Run, list[Any]]:
    """A line of an image that is sampled between its pixels where a network says, and the network's gradient."""
    rng = np.random.default_rng(0)
    weights = tf.Variable(rng.normal(size=(16, 1)).astype(np.float32) / 4)

    def step(x: Any, line: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            moved = tf.range(64.0) + 10.0 * tf.tanh(tf.matmul(x, weights))
            place = tf.clip_by_value(moved, 0.0, 62.999)
            out = tf.zeros(())
            for neighbour in (0, 1):
                pixel = tf.gather(line, tf.cast(tf.floor(place), tf.int32) + neighbour, batch_dims=1)
                out += (1.0 - tf.abs(place - tf.floor(place) - neighbour)) * pixel
            out = tf.matmul(out, tf.ones((64, 4)))
            loss = tf.reduce_mean(tf.square(out))
        return {"out": out, "gradient": tape.gradient(loss, weights)}

    return step, [tuple(rng.normal(size=(4, size)).astype(np.float32) for size in (16, 64))]


def near_a_hundred() -> list[Any]:
    """A batch of two arguments: numbers near zero, and near a hundred."""
    rng = np.random.default_rng(1)
    return [tuple(rng.normal(size=(16, 16)).astype(np.float32) + mean for mean in (0, 100))]


def composed() -> tuple[Run, list[Any]]:
    """A difference that is negated and exponentiated: on CPUs TensorFlow makes one op of both."""

    def step(x: Any, base: Any) -> dict[str, Any]:
        near = base * (1.0 + 0.001 * tf.matmul(x, _WEIGHTS))
        return {"out": tf.matmul(tf.exp(-(near - base)), _WEIGHTS)}

    return step, near_a_hundred()


def tiny_loss() -> tuple[Run, list[Any]]:
    """A loss that is weighted down: TensorFlow multiplies the weight with other constants."""
    return PLANTED["loss"].make(), [(PLANTED["loss"].batch(np.random.default_rng(3)),)]


def errors_of_run(step: Run, batch: tuple[np.ndarray, ...], config: amp_tf.AmpConfig) -> dict[str, float]:
    """How far the results of a program under amp_tf are from those in float32, by name."""
    truth = tf.function(step)(*map(tf.constant, batch))
    handle = amp_tf.enable(config)
    try:
        found = tf.function(step)(*map(tf.constant, batch))
    finally:
        handle.uninstall()
    return {name: distance(found[name].numpy(), value.numpy()) for name, value in truth.items()}


def of_practice(model: Any) -> Callable[[], tuple[Run, list[Any]]]:
    """A model of ``tests/truth``, with the gradients of all its variables."""

    def program() -> tuple[Run, list[Any]]:
        bench = Bench(model.__name__)
        weights, x = Weights(bench), bench.normal(16, 32)
        model(weights, tf.constant(x))

        def step(x: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                tape.watch(x)
                results = model(weights, x)
            gradients = tape.gradient(results["loss"], {**weights.variables, "x": x})
            return {**results, **{name.replace("/", "."): value for name, value in gradients.items()}}

        return step, [(x,)]

    return program


PROGRAMS = {
    "divided": divided,
    "with gradients": with_gradients,
    "sampled": sampled,
    "composed": composed,
    "tiny loss": tiny_loss,
    "gated transformer block": of_practice(practice_models.gated_transformer_block),  # its sums go around
    "spatial transformer": of_practice(practice_models.spatial_transformer),
}


@pytest.fixture(autouse=True)
def unfused() -> Iterator[None]:
    """Nothing is fused in the runs, as in comparisons: what is fused depends on the machine, and rounds once less."""
    before = tf.config.optimizer.get_experimental_options().get("remapping", True)
    tf.config.optimizer.set_experimental_options({"remapping": False})
    yield
    tf.config.optimizer.set_experimental_options({"remapping": before})


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_the_errors_are_those_of_the_run(program: str, precision: Any) -> None:
    step, batches = PROGRAMS[program]()
    config = amp_tf.AmpConfig(precision=precision, target="cpu")
    run = errors_of_run(step, batches[0], config)
    found = {output.name: output.error for output in amp_tf.compare(step, batches, config).outputs}
    assert found.keys() == run.keys()
    for name, error in found.items():
        assert error == pytest.approx(run[name], rel=0.02, abs=2**-14), name  # the same but for orders of sums
