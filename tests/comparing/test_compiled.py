"""Functions that XLA compiles are compared as XLA computes them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.tools.comparing import joining

BFLOAT16 = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
_RNG = np.random.default_rng(0)
_WEIGHTS = _RNG.normal(size=(64, 64)).astype(np.float32)
BATCHES = [(_RNG.normal(size=(8, 64)).astype(np.float32),) for _ in range(3)]
BY_XLA = (
    "outputs are those of XLA (jit_compile), in both precisions; nodes were measured without it"
)


def rounded_twice(x):
    """A product and a function behind it: XLA leaves out the rounding between them."""
    return tf.matmul(tf.tanh(tf.matmul(x, _WEIGHTS)), _WEIGHTS)


def errors(jit_compile: bool) -> tuple[list[float], tuple[str, ...]]:
    found = amp_tf.compare(tf.function(rounded_twice, jit_compile=jit_compile), BATCHES, BFLOAT16)
    return [output.error for output in found.outputs], found.notes


def test_outputs_are_what_xla_computes_in_both_precisions():
    (by_xla,), notes = errors(True)
    (by_kernels,), others = errors(False)
    assert BY_XLA in notes
    assert BY_XLA not in others
    assert 0.001 < by_xla != by_kernels
    exact, f16 = (_by_hand(precision) for precision in (None, "bfloat16"))
    distance = np.linalg.norm(f16 - exact) / np.linalg.norm(exact)
    assert by_xla == pytest.approx(distance, rel=0.25)  # of one of the batches


def _by_hand(precision):
    """What XLA gives in a running program."""

    def call():
        return np.stack([tf.function(rounded_twice, jit_compile=True)(*batch) for batch in BATCHES])

    if precision is None:
        return call()
    with amp_tf.enable(amp_tf.AmpConfig(precision=precision, target="cpu")):
        return call()


def test_a_step_that_writes_variables_and_a_model_for_xla_are_compared_so():
    weights = tf.Variable(_WEIGHTS / 8)

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, weights)))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    found = amp_tf.compare(step, BATCHES, BFLOAT16)
    assert BY_XLA in found.notes
    assert [output.kind for output in found.outputs] == ["result", "update"]
    assert all(output.error < 0.05 for output in found.outputs)  # XLA may leave all roundings out
    np.testing.assert_array_equal(weights, _WEIGHTS / 8)  # the program's own is not written

    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", jit_compile=True)
    labelled = [(x, x[:, :1]) for (x,) in BATCHES]
    assert BY_XLA in amp_tf.compare(model, labelled, BFLOAT16).notes


def test_what_xla_does_not_compile_as_it_is_compared_is_run_without_it_and_said():
    @tf.function(jit_compile=True)
    def step(x):
        weights = tf.constant(_WEIGHTS / 8)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            state = tf.while_loop(
                lambda i, _: i < 3,
                lambda i, state: (i + 1, tf.tanh(tf.matmul(state, weights))),
                (0, x),
                maximum_iterations=3,
            )
            loss = tf.reduce_sum(state[1])
        return tape.gradient(loss, weights)

    found = amp_tf.compare(step, BATCHES, BFLOAT16)
    why = "it does not compile loops that were lowered"
    assert f"functions for XLA (jit_compile) were run without it: {why}" in found.notes
    assert found.is_healthy


def test_a_verdict_for_a_gpu_that_is_not_there_is_made_without_xla():
    """On CPUs XLA computes much of a step in float32: it would call healthy what is not."""
    config = amp_tf.AmpConfig(precision="float16", target="gpu")
    found = amp_tf.compare(tf.function(rounded_twice, jit_compile=True), BATCHES, config)
    why = "on CPUs it leaves out most roundings, on GPUs it does not"
    assert f"functions for XLA (jit_compile) were run without it: {why}" in found.notes
    assert found.outputs[0].error > 2.0**-12


def test_what_cannot_even_be_imported_as_one_function_is_run_without_xla(monkeypatch):
    def refuse(*_):
        raise ValueError("no such function")

    monkeypatch.setattr(joining, "import_compiled", refuse)
    found = amp_tf.compare(tf.function(rounded_twice, jit_compile=True), BATCHES, BFLOAT16)
    assert "functions for XLA (jit_compile) were run without it: no such function" in found.notes
    assert found.is_healthy
