"""A bounded function of a product and a parameter, of which a difference is taken."""

import math

import tensorflow as tf

from tests.truth.models import ended


def boxes_by_inverse_sigmoids(w, x):
    """A detector's boxes, refined by a small step, and their corners in pixels."""
    anchors = w.bias("anchors", 4, 1.0)
    steps = 0.05 * w.perceptron(x, 4, "net")
    boxes = tf.sigmoid(steps + anchors)
    centres = boxes[:, :2]
    sizes = 0.05 * boxes[:, 2:]
    lower = centres - 0.5 * sizes
    upper = centres + 0.5 * sizes
    corners = tf.concat([lower, upper], 1)
    moved = 1333.0 * (boxes - tf.sigmoid(anchors))
    return ended(moved, 1.0, corners=corners)


def coordinates_in_pixels(w, x):
    """Returns the move of a point, in pixels, that a tanh keeps in the image."""
    grid = w.bias("grid", 2, 0.5)
    steps = 0.02 * w.perceptron(x, 2, "net")
    points = 512.0 * (1.0 + tf.tanh(grid + steps))
    start = 512.0 * (1.0 + tf.tanh(grid))
    return ended(points - start, 3.0)


def squashed_actions(w, x):
    """Soft clipping of a sampled action, with its log probability, and the step to the last one."""
    noise = 0.1 * w.perceptron(x, 3, "net")
    drawn = noise + w.bias("means", 3, 1.0)
    actions = tf.tanh(drawn)
    normal = -0.5 * tf.square(drawn - 1.0)
    slopes = 1.0 - tf.square(actions)
    likelihoods = normal - tf.math.log(slopes + 1e-6)
    jerk = 100.0 * (actions[1:] - actions[:-1])
    likelihood = tf.reduce_sum(likelihoods, 1)
    return ended(jerk, 0.0, likelihood=likelihood)


def phases_by_tanh(w, x):
    """The turn between two frames, of phases that a tanh keeps in one circle."""
    steps = 0.05 * w.perceptron(x, 4, "net")
    unbounded = steps + w.bias("phases", 4, 0.5)
    phases = math.pi * tf.tanh(unbounded)
    turns = phases[1:] - phases[:-1]
    return ended(20.0 * turns, 1.0)


def clipped_moves(w, x):
    """Places that move by a tenth at most."""
    places = w.bias("places", 4, 12.0)
    steps = 0.1 * w.perceptron(x, 4, "net")
    clipped = tf.clip_by_value(steps + places, 11.9, 12.1)
    moves = clipped - places
    return ended(10.0 * moves, 1.0)


def softsign_controls(w, x):
    held = w.bias("held", 4, 3.0)
    steps = 0.1 * w.perceptron(x, 4, "net")
    controls = tf.nn.softsign(held + steps)
    moves = controls - tf.nn.softsign(held)
    return ended(100.0 * moves, 1.0)


def chances_between_bounds(w, x):
    """The chance of a bin, of an image's discretized likelihood, by two values of erf."""
    places = w.bias("places", 4, 0.5) - 0.1 * w.perceptron(x, 4, "net")
    upper = tf.math.erf(places + 1 / 64)
    lower = tf.math.erf(places - 1 / 64)
    chances = 0.5 * (upper - lower)
    return ended(100.0 * chances, 1.0)


def logistic_mixture(w, x):
    """The same by two sigmoids."""
    places = 2.0 * (w.perceptron(x, 4, "net") + w.bias("places", 4, 0.5))
    upper = tf.sigmoid(places + 1 / 16)
    lower = tf.sigmoid(places - 1 / 16)
    chances = upper - lower
    logs = tf.math.log(chances + 1e-7)
    return {"loss": -tf.reduce_mean(logs), "output": chances}
