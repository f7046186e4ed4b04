"""Geometry: sums of a few squares, of which a root or a difference is taken."""

from __future__ import annotations

import tensorflow as tf

from tests.truth.bench import mean_square
from tests.truth.programs.practice import models_in


def programs():
    return models_in(__name__)


def _size(values):
    """Sums of squares over the last axis."""
    return tf.reduce_sum(tf.square(values), -1)


def _distances(output, **more):
    return {"loss": mean_square(output - 1.0), "output": output, **more}


def poincare_ball(w, x):
    """Distances of points near the border."""
    points = w.perceptron(x, 3, "net")
    points *= 0.95 / tf.sqrt(1e-6 + _size(points))[:, None]
    first = points[:8]
    second = points[8:]
    space = (1.0 - _size(first)) * (1.0 - _size(second))
    return _distances(tf.acosh(1.0 + 2.0 * _size(first - second) / space))


def hyperboloid(w, x):
    """Distances by the Lorentzian product of points whose time follows from their place."""
    points = 2.0 * w.perceptron(x, 3, "net")
    times = tf.sqrt(1.0 + _size(points))
    first = points[:8]
    second = points[8:] * 0.1 + points[:8]
    other = tf.sqrt(1.0 + _size(second))
    product = times[:8] * other - tf.reduce_sum(first * second, -1)
    return _distances(tf.acosh(1.0 + tf.nn.relu(product - 1.0) + 1e-4))


def unit_quaternions(w, x):
    """The real part of a rotation, from the others."""
    axes = w.perceptron(x, 3, "net")
    axes *= 0.99 / tf.sqrt(1e-6 + _size(axes))[:, None]
    real = tf.sqrt(tf.maximum(1.0 - _size(axes), 1e-6))
    return _distances(tf.concat([real[:, None], axes], 1))


def mahalanobis(w, x):
    """Which of two centres is nearer, and by how much."""
    points = 8.0 + w.perceptron(x, 4, "net")
    scales = tf.exp(w.bias("scales", 4))
    near = tf.sqrt(_size((points - w.bias("near", 4)) * scales))
    far = tf.sqrt(_size((points - w.bias("far", 4)) * scales))
    return _distances(near - far)


def cosines_by_hand(w, x):
    """Distances of directions that are nearly alike."""
    points = 1.0 + 0.1 * w.perceptron(x, 8, "net")
    first = points[:8]
    second = points[8:]
    product = tf.reduce_sum(first * second, -1)
    return _distances(1.0 - product / tf.sqrt(_size(first) * _size(second)))


def rays_that_meet_a_sphere(w, x):
    """Returns the points at which rays of learned directions enter it."""
    directions = w.perceptron(x, 3, "net") + tf.constant([0.0, 0.0, 6.0])
    directions /= tf.sqrt(_size(directions))[:, None]
    origins = w.bias("eye", 3) - tf.constant([0.0, 0.0, 9.0])
    along = tf.reduce_sum(directions * origins, -1)
    inside = tf.square(along) - (_size(origins) - 16.0)
    return _distances(-along - tf.sqrt(tf.maximum(inside, 1e-3)))


def compact_kernels(w, x):
    """1 - |x|² where that is positive, a power of it as the weight of a neighbour."""
    points = 0.57 * tf.tanh(2.0 * w.perceptron(x, 3, "net"))
    weights = tf.square(tf.nn.relu(1.0 - _size(points)))
    values = w.dense(x, 4, "values")
    return _distances(weights[:, None] * values * 100.0)


def mobius_addition(w, x):
    points = tf.tanh(w.perceptron(x, 3, "net")) * 0.57
    first = points[:8]
    second = points[8:]
    product = 2.0 * tf.reduce_sum(first * second, -1, keepdims=True)
    size = _size(first)[:, None]
    other = _size(second)[:, None]
    above = (1.0 + product + other) * first + (1.0 - size) * second
    return _distances(1.0 - _size(above / (1.0 + product + size * other)))


def times_of_arrival(w, x):
    """A source is placed by how much later one microphone hears it than another."""
    source = 40.0 + w.perceptron(x, 3, "net")
    microphones = tf.constant([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    away = tf.sqrt(_size(source[:, None] - microphones))
    return _distances(away[:, 1:] - away[:, :1])
