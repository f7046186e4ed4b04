"""Two ways to write the same are judged alike, and are as far off when they run.

Rules look at ops, and TensorFlow's optimizers choose between ops that compute the same: what holds for one must hold
for the others. Each pair of programs is one with something that its precision hangs on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from tests.comparing.test_run_time import errors_of_run, near_a_hundred

_UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
_WEIGHTS = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
_SMALL = _WEIGHTS / np.float32(8)

Value = Any
Program = Callable[[Value, Value], Value]


def _near(x: Value, base: Value) -> Value:
    return base * (1.0 + 0.001 * tf.matmul(x, _WEIGHTS))


def _ended(value: Value) -> Value:
    return tf.matmul(value, _WEIGHTS)


def _normalized(value: Value, squared: Program) -> Value:
    centred = value - tf.reduce_mean(value, -1, keepdims=True)
    return centred * tf.math.rsqrt(tf.reduce_mean(squared(centred, centred), -1, keepdims=True) + 1e-9)


def _recurrent(x: Value) -> Value:
    return tf.tanh(tf.matmul(x, _SMALL)) + 0.5 * x


def _unrolled(x: Value, base: Value) -> Value:
    for _ in range(4):
        x = _recurrent(x)
    return _ended(x)


def _looping(x: Value, base: Value) -> Value:
    return _ended(tf.while_loop(lambda turn, _: turn < 4, lambda turn, x: (turn + 1, _recurrent(x)), (0, x))[1])


def _with_unused_gradients(x: Value, base: Value) -> Value:
    with tf.GradientTape() as tape:
        tape.watch(x)
        near = _near(x, base)
        loss = tf.reduce_mean(tf.math.log(tf.abs(near - base)))
    tape.gradient(loss, x)
    return _ended(near - base)


def _joined(x: Value, base: Value, join: Callable[[list[Value]], Value]) -> Value:
    parts = [_near(x, base) - base, tf.matmul(x, _WEIGHTS)]
    return _ended(tf.reshape(join(parts), (-1, 16)))


PAIRS: dict[str, tuple[Program, Program]] = {
    "a quotient and a product": (
        lambda x, base: _ended((_near(x, base) - base) / 10.0),
        lambda x, base: _ended((_near(x, base) - base) * 0.1),
    ),
    "a square and a product": (
        lambda x, base: _ended(_normalized(_near(x, base), lambda value, _: tf.square(value))),
        lambda x, base: _ended(_normalized(_near(x, base), tf.multiply)),
    ),
    "a stack and a concatenation": (
        lambda x, base: _joined(x, base, lambda parts: tf.stack(parts, 1)),
        lambda x, base: _joined(x, base, lambda parts: tf.concat([part[:, None] for part in parts], 1)),
    ),
    "turns of a loop and a row of steps": (_looping, _unrolled),
    "a function and its body": (
        lambda x, base: _ended(tf.function(_near)(x, base) - base),
        lambda x, base: _ended(_near(x, base) - base),
    ),
    "with and without gradients that nobody uses": (
        _with_unused_gradients,
        lambda x, base: _ended(_near(x, base) - base),
    ),
}
CASES = [(pair, precision) for pair in PAIRS for precision in _UNIT]


def _step(program: Program) -> Callable[[Value, Value], dict[str, Value]]:
    return lambda x, base: {"out": program(x, base)}


def _are_alike(errors: list[float], precision: str) -> bool:
    """Whether errors differ by chance alone: by a factor of two, or by a rounding."""
    return max(errors) <= 2 * min(errors) + _UNIT[precision]


@pytest.mark.parametrize(("pair", "precision"), CASES)
def test_equal_programs_are_judged_alike_and_are_as_far_off(pair: str, precision: Any) -> None:
    config = amp_tf.AmpConfig(precision=precision, target="cpu")
    batches = near_a_hundred()
    steps = [_step(program) for program in PAIRS[pair]]
    outputs = [amp_tf.compare(step, batches, config).outputs[0] for step in steps]
    assert len({output.is_good for output in outputs}) == 1, outputs
    assert _are_alike([output.error for output in outputs], precision), outputs
    runs = [errors_of_run(step, batches[0], config)["out"] for step in steps]
    assert _are_alike(runs, precision), runs
    assert _are_alike([runs[0], outputs[0].error], precision), (runs, outputs)


@pytest.mark.parametrize("precision", _UNIT)
def test_what_tensorflow_fuses_changes_nothing(precision: Any) -> None:
    config = amp_tf.AmpConfig(precision=precision, target="cpu")

    def dense(x: Value, base: Value) -> Value:
        hidden = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, _WEIGHTS), base[0]))
        return _ended(tf.nn.bias_add(tf.matmul(hidden, _SMALL), -base[1]))

    errors = []
    for fuses in (True, False):
        before = tf.config.optimizer.get_experimental_options()
        tf.config.optimizer.set_experimental_options({"remapping": fuses})
        try:
            errors.append(errors_of_run(_step(dense), near_a_hundred()[0], config)["out"])
            errors.append(amp_tf.compare(_step(dense), near_a_hundred(), config).outputs[0].error)
        finally:
            tf.config.optimizer.set_experimental_options({"remapping": before.get("remapping", True)})
    assert _are_alike(errors, precision), errors
