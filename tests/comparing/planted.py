"""Small programs with an error of 16 bit planted in a place whose name is known.

Most are made by ``force_f16``, because the rules keep such nodes in float32 by themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import amp_tf


def normal(seed: int, *shape: int) -> np.ndarray:
    """Returns normally distributed float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


_WEIGHTS = normal(5, 6, 6)


@dataclasses.dataclass(frozen=True)
class Planted:
    """A function with its batches, what to force, and where it goes wrong and how."""

    make: Callable[[], Callable[..., Any]]
    batch: Callable[[np.random.Generator], Any]
    precisions: tuple[str, ...]
    node: str
    kind: str
    force: tuple[str, ...] = ()

    def compare(self, precision: str, **settings: Any) -> amp_tf.Comparison:
        rng = np.random.default_rng(3)
        config = amp_tf.AmpConfig(precision=precision, force_f16=self.force, target="cpu")
        return amp_tf.compare(self.make(), [self.batch(rng) for _ in range(2)], config, **settings)


def _mask():
    w = tf.Variable(_WEIGHTS)

    def attention(x, keep):
        with tf.name_scope("attention"):
            scores = tf.matmul(x, w, name="scores")
            masked = tf.add(scores, tf.multiply(1 - keep, -1e9, name="bias"), name="masked")
            return tf.matmul(tf.nn.softmax(masked), w, name="mixed")

    return attention


def _masked_batch(rng):
    keep = np.ones((4, 6), np.float32)
    keep[1, :3] = 0
    return rng.normal(size=(4, 6)).astype(np.float32), keep


def _sum():
    w = tf.Variable(_WEIGHTS)

    def total(x):
        return tf.cumsum(tf.abs(tf.matmul(x, w, name="hidden")), name="long_sum")

    return total


def _tiny_loss():
    w = tf.Variable(_WEIGHTS)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.matmul(x, w, name="hidden"))
            loss = tf.reduce_mean(tf.square(tf.matmul(hidden, w, name="out"))) * 1e-8
        return {"loss": loss, "gradient": tape.gradient(loss, w)}

    return step


def _normalization():
    w = tf.Variable(_WEIGHTS)

    def normalize(x):
        near = tf.add(tf.matmul(x, w, name="hidden") * 0.001, 100.0, name="near")
        with tf.name_scope("norm"):
            centred = tf.subtract(near, tf.reduce_mean(near, -1, keepdims=True), name="centred")
            scale = tf.sqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + 1e-12)
            return tf.matmul(centred / scale, w)

    return normalize


def _large_inputs():
    w = tf.Variable(_WEIGHTS)

    def predict(x):
        return tf.matmul(tf.tanh(tf.matmul(x, w, name="first") * 1e-5), w, name="second")

    return predict


def _normal(rows):
    return lambda rng: rng.normal(size=(rows, 6)).astype(np.float32)


BOTH = ("bfloat16", "float16")
PLANTED = {
    "mask": Planted(
        _mask,
        _masked_batch,
        ("float16",),
        "attention/bias",
        "overflow",
        ("attention/(bias|masked)$",),
    ),
    "sum": Planted(_sum, _normal(512), BOTH, "long_sum", "rounding", ("long_sum$",)),
    "loss": Planted(
        _tiny_loss, _normal(4), ("float16",), "gradient_tape/hidden/MatMul", "underflow"
    ),
    "norm": Planted(
        _normalization,
        _normal(4),
        BOTH,
        "norm/centred",
        "cancellation",
        ("^near$", "norm/(Mean|centred)$"),
    ),
    "inputs": Planted(
        _large_inputs,
        lambda rng: (rng.normal(size=(4, 6)) * 1e5).astype(np.float32),
        ("float16",),
        "first",
        "overflow",
    ),
}
