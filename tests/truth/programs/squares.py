"""Geometry: sums of a few squares, of which a root or a difference is taken."""

import tensorflow as tf

from tests.truth.models import ended, halves, size_of


def poincare_ball(w, x):
    """Distances of points near the border."""
    points = w.perceptron(x, 3, "net")
    lengths = tf.sqrt(1e-6 + size_of(points))
    points *= 0.95 / lengths[:, None]
    first, second = halves(points)
    space = (1.0 - size_of(first)) * (1.0 - size_of(second))
    gaps = 2.0 * size_of(first - second)
    distances = tf.acosh(1.0 + gaps / space)
    return ended(distances, 1.0)


def hyperboloid(w, x):
    """Distances by the Lorentzian product of points whose time follows from their place."""
    points = 2.0 * w.perceptron(x, 3, "net")
    times = tf.sqrt(1.0 + size_of(points))
    first = points[:8]
    second = points[8:] * 0.1 + points[:8]
    other = tf.sqrt(1.0 + size_of(second))
    in_time = times[:8] * other
    product = in_time - tf.reduce_sum(first * second, -1)
    excess = tf.nn.relu(product - 1.0)
    return ended(tf.acosh(1.0 + excess + 1e-4), 1.0)


def unit_quaternions(w, x):
    """The real part of a rotation, from the others."""
    axes = w.perceptron(x, 3, "net")
    lengths = tf.sqrt(1e-6 + size_of(axes))
    axes *= 0.99 / lengths[:, None]
    square = tf.maximum(1.0 - size_of(axes), 1e-6)
    real = tf.sqrt(square)
    quaternions = tf.concat([real[:, None], axes], 1)
    return ended(quaternions, 1.0)


def mahalanobis(w, x):
    """Which of two centres is nearer, and by how much."""
    points = 8.0 + w.perceptron(x, 4, "net")
    scales = tf.exp(w.bias("scales", 4))
    from_near = points - w.bias("near", 4)
    near = tf.sqrt(size_of(from_near * scales))
    from_far = points - w.bias("far", 4)
    far = tf.sqrt(size_of(from_far * scales))
    return ended(near - far, 1.0)


def cosines_by_hand(w, x):
    """Distances of directions that are nearly alike."""
    points = 1.0 + 0.1 * w.perceptron(x, 8, "net")
    first, second = halves(points)
    product = tf.reduce_sum(first * second, -1)
    lengths = tf.sqrt(size_of(first) * size_of(second))
    return ended(1.0 - product / lengths, 1.0)


def rays_that_meet_a_sphere(w, x):
    """Returns the points at which rays of learned directions enter it."""
    directions = w.perceptron(x, 3, "net") + tf.constant([0.0, 0.0, 6.0])
    lengths = tf.sqrt(size_of(directions))
    directions /= lengths[:, None]
    origins = w.bias("eye", 3) - tf.constant([0.0, 0.0, 9.0])
    along = tf.reduce_sum(directions * origins, -1)
    inside = tf.square(along) - (size_of(origins) - 16.0)
    nearest = -along
    half_chord = tf.sqrt(tf.maximum(inside, 1e-3))
    return ended(nearest - half_chord, 1.0)


def compact_kernels(w, x):
    """1 - |x|² where that is positive, a power of it as the weight of a neighbour."""
    places = 2.0 * w.perceptron(x, 3, "net")
    points = 0.57 * tf.tanh(places)
    inside = tf.nn.relu(1.0 - size_of(points))
    weights = tf.square(inside)
    values = w.dense(x, 4, "values")
    return ended(weights[:, None] * values * 100.0, 1.0)


def mobius_addition(w, x):
    points = tf.tanh(w.perceptron(x, 3, "net")) * 0.57
    first, second = halves(points)
    product = 2.0 * tf.reduce_sum(first * second, -1, keepdims=True)
    size = size_of(first)[:, None]
    other = size_of(second)[:, None]
    moved = (1.0 + product + other) * first
    above = moved + (1.0 - size) * second
    below = 1.0 + product + size * other
    return ended(1.0 - size_of(above / below), 1.0)


def times_of_arrival(w, x):
    """A source is placed by how much later one microphone hears it than another."""
    source = 40.0 + w.perceptron(x, 3, "net")
    microphones = tf.constant([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    gaps = source[:, None] - microphones
    away = tf.sqrt(size_of(gaps))
    later = away[:, 1:] - away[:, :1]
    return ended(later, 1.0)
