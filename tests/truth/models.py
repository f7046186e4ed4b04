"""The parts of models: weights by name, layers, and results.

A model is a function of :class:`Weights` and inputs of (ROWS, WIDTH), which returns its results,
the scalar ``loss`` among them.
"""

import math

import numpy as np
import tensorflow as tf

from tests.truth.bench import mean_square

ROWS = 16
WIDTH = 32


class Weights:
    """Variables by name, made where they are first asked for."""

    def __init__(self, bench):
        self._bench = bench
        self.variables = {}

    def __call__(self, name, *shape):
        if name not in self.variables:
            self.variables[name] = self._bench.weight(*shape, name=name)
        return self.variables[name]

    def bias(self, name, size, start=0.0):
        if name not in self.variables:
            values = self._bench.normal(size, scale=0.1) + start
            self.variables[name] = tf.Variable(values, name=name)
        return self.variables[name]

    def dense(self, x, size, name):
        """A product and a bias, over the last axis."""
        kernel = self(f"{name}/kernel", x.shape[-1], size)
        product = tf.tensordot(x, kernel, 1)
        return product + self.bias(f"{name}/bias", size)

    def perceptron(self, x, size, name, activation=tf.nn.gelu):
        """Two dense layers."""
        width = 2 * x.shape[-1]
        hidden = activation(self.dense(x, width, f"{name}/in"))
        return self.dense(hidden, size, f"{name}/out")

    def last(self, x, **more):
        """The results of a last layer of four numbers."""
        return ended(self.dense(x, 4, "out"), **more)


def train(model, bench):
    """Trains a model once: its results, its loss, and the gradients are outputs."""
    weights = Weights(bench)
    example = tf.constant(bench.normal(ROWS, WIDTH))
    model(weights, example)
    step = bench.step(lambda x: model(weights, x), weights.variables)
    for _ in range(3):
        bench.note_all("1", step(tf.constant(bench.normal(ROWS, WIDTH))))


def ended(output, target=0.3, **more):
    """The results of a model: an output, and its squared distance from a target."""
    return {"loss": mean_square(output - target), "output": output, **more}


def scores_of(queries, keys):
    """The scalar products of attention."""
    return tf.matmul(queries, keys, transpose_b=True) / math.sqrt(keys.shape[-1])


def turned(words, angles):
    """Pairs of a word's numbers, turned by angles: rotary positions."""
    a, b = tf.split(words, 2, -1)
    cosine = tf.cos(angles)
    sine = tf.sin(angles)
    real = a * cosine - b * sine
    imaginary = a * sine + b * cosine
    return tf.concat([real, imaginary], -1)


def size_of(values):
    """Sums of squares over the last axis."""
    return tf.reduce_sum(tf.square(values), -1)


def squared_gaps(points):
    """The squared distances of all pairs."""
    return size_of(points[:, None] - points[None])


def halves(points):
    return points[: ROWS // 2], points[ROWS // 2 :]


def explained_and_volume(kernel, values):
    """Returns the squares that a Gaussian with a covariance explains, and its log determinant."""
    factor = tf.linalg.cholesky(kernel)
    solved = tf.linalg.triangular_solve(factor, values)
    diagonal = tf.linalg.diag_part(factor)
    volume = tf.reduce_sum(tf.math.log(diagonal))
    return 0.5 * tf.reduce_sum(tf.square(solved)), volume


def judge_offset(bench, name, scale, offset):
    """Judges what a layer adds to a great number, which the next layer reads, too."""
    net = bench.weight(8, 16)
    last = bench.weight(16, 4)

    def run(x):
        moved = scale * tf.matmul(x, net) + offset
        return moved, tf.matmul(moved, last)

    moved, _ = bench.function(run)(bench.normal(16, 8))
    bench.note("1", name, moved - np.float32(offset))
