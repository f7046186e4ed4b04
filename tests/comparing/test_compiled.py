"""Functions for XLA, and models that run eagerly, are compared as graphs, and that is said."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import amp_tf

BFLOAT16 = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
_RNG = np.random.default_rng(0)
_WEIGHTS = _RNG.normal(size=(64, 64)).astype(np.float32)
BATCHES = [(_RNG.normal(size=(8, 64)).astype(np.float32),) for _ in range(3)]
WITHOUT = "functions for XLA (jit_compile) were run without it, which rounds more often"


def rounded_twice(x):
    """A product and a function behind it: XLA leaves out the rounding between them."""
    return tf.matmul(tf.tanh(tf.matmul(x, _WEIGHTS)), _WEIGHTS)


def test_outputs_are_those_of_the_kernels():
    found = amp_tf.compare(tf.function(rounded_twice, jit_compile=True), BATCHES, BFLOAT16)
    same = amp_tf.compare(tf.function(rounded_twice), BATCHES, BFLOAT16)
    assert WITHOUT in found.notes
    assert WITHOUT not in same.notes
    assert found.outputs == same.outputs


def test_a_model_for_xla_is_compared():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    ((x,), *_) = BATCHES
    assert WITHOUT in amp_tf.compare(model, [(x, x[:, :1])], BFLOAT16).notes


def test_a_model_that_runs_eagerly_is_compared_as_a_graph():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1)])
    ((x,), *_) = BATCHES
    for is_eager in (True, False):
        model.compile("sgd", "mse", run_eagerly=is_eager)
        notes = amp_tf.compare(model, [(x, x[:, :1])], BFLOAT16).notes
        told = [note for note in notes if "run_eagerly=True the program runs it eagerly" in note]
        assert len(told) == is_eager
