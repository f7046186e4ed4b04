"""Values near a number that is added or subtracted, and chains of factors near one."""

import math

import tensorflow as tf

from tests.truth.bench import mean_square


def entropy_below_its_maximum(w, x):
    logits = 0.2 * w.perceptron(x, 8, "net")
    logs = tf.nn.log_softmax(logits)
    entropy = -tf.reduce_sum(tf.exp(logs) * logs, 1, keepdims=True)
    gap = 20.0 * (math.log(8.0) - entropy)
    return w.last(gap * x[:, :4], gap=gap)


def contrast_with_neighbours(w, x):
    """A value over the mean of its neighbours, less one."""
    y = 10.0 + 0.5 * w.perceptron(x, 32, "net")
    near = (tf.roll(y, 1, 1) + y + tf.roll(y, -1, 1)) / 3.0
    contrast = 20.0 * (y / near - 1.0)
    return w.last(contrast, contrast=contrast)


def log_cosh(w, x):
    """The logarithm of a hyperbolic cosine, as a feature of small residuals."""
    y = 0.2 * w.perceptron(x, 16, "net")
    z = 30.0 * (y + tf.nn.softplus(-2.0 * y) - math.log(2.0))
    return w.last(z, z=z)


def pseudo_huber(w, x):
    y = 0.2 * w.perceptron(x, 16, "net")
    z = 30.0 * (tf.sqrt(1.0 + tf.square(y)) - 1.0)
    return w.last(z, z=z)


def steep_threshold(w, x):
    """A map of chances that is made black and white, softly."""
    chances = tf.sigmoid(0.1 * w.perceptron(x, 16, "net"))
    black = tf.sigmoid(50.0 * (chances - 0.5))
    return w.last(black, black=black)


def chance_of_any_event(w, x):
    """One less the product of the chances that each of twelve does not happen."""
    chances = tf.sigmoid(w.perceptron(x, 24, "net") - 5.0)
    first, *others = tf.split(1.0 - chances, 12, 1)
    none = first
    for other in others:
        none *= other
    return w.last(20.0 * (1.0 - none), none=none)


def trace_that_decays(w, x):
    """A value is multiplied by a learned factor near one, thirty times."""
    decay = tf.sigmoid(5.0 + w.perceptron(x, 8, "decay"))
    trace = w.dense(x, 8, "start")
    for _ in range(30):
        trace *= decay
    return w.last(trace, trace=trace)


def counts_with_a_log_link(w, x):
    """A Poisson regression of counts near a thousand, whose bias is the logarithm of that."""
    logs = 0.3 * w.dense(x, 8, "net") + w.bias("log", 8, 6.9)
    rates = tf.exp(logs)
    counts = tf.floor(1000.0 * tf.exp(0.1 * x[:, :8]))
    deviance = counts * tf.math.log(counts / rates) - (counts - rates)
    return {"loss": 1e-3 * tf.reduce_mean(deviance), "rates": rates}


def shift_of_a_total(w, x):
    """The energy of a molecule, a sum over its atoms, less one that is learned."""
    waves = tf.sin(tf.range(256.0))
    atoms = tf.reshape(tf.tile(x, [1, 8]) + waves, [16, 32, 8])
    energies = tf.nn.softplus(2.0 + 0.3 * w.perceptron(atoms, 1, "atom")[..., 0])
    left = tf.reduce_sum(energies, 1) - w.bias("shift", 16, 68.0)
    return w.last(left[:, None] * x[:, :4], left=left)


def near_rotations(w, x):
    """The angle between two quaternions that are nearly alike, by an arc cosine."""
    first = tf.math.l2_normalize(w.perceptron(x, 4, "net"), 1)
    second = tf.math.l2_normalize(first + 0.05 * w.perceptron(x, 4, "turn"), 1)
    product = tf.reduce_sum(first * second, 1, keepdims=True)
    angle = tf.acos(tf.clip_by_value(product, -1.0 + 1e-7, 1.0 - 1e-7))
    mixed = tf.sin(0.7 * angle) * first + tf.sin(0.3 * angle) * second
    mixed /= tf.sin(angle)
    return w.last(tf.concat([mixed, 10.0 * angle], 1), mixed=mixed, angle=angle)


def compound_interest(w, x):
    """The thirtieth power of one and a small rate."""
    rate = 0.02 * tf.tanh(w.perceptron(x, 8, "rate"))
    grown = tf.pow(1.0 + rate, 30.0)
    return w.last(grown * x[:, :8], grown=grown)


def prices_by_erfc(w, x):
    """Options by Black and Scholes, with a learned volatility, by the complementary function."""
    stock = 100.0 * tf.exp(0.1 * x[:, :8])
    volatility = 0.1 + 0.1 * tf.nn.softplus(w.perceptron(x, 8, "volatility"))
    spread = volatility * math.sqrt(0.5)
    drift = 0.01 + 0.5 * spread * spread
    first = (tf.math.log(stock / 100.0) + drift) / spread
    second = first - spread
    bought = 0.5 * tf.math.erfc(-first / math.sqrt(2.0))
    paid = 0.5 * tf.math.erfc(-second / math.sqrt(2.0))
    call = stock * bought - 100.0 * math.exp(-0.01) * paid
    return w.last(call - tf.nn.relu(stock - 100.0), call=call)


def moments_beside_stored_ones(w, x):
    """Batch renormalization: values near four, and how far their mean is from the stored one."""
    y = 4.0 + w.dense(x, 16, "in")
    mean, variance = tf.nn.moments(y, 0)
    deviation = tf.sqrt(variance + 1e-5)
    stored = w.bias("deviation", 16, 1.0)
    ratio = tf.clip_by_value(tf.stop_gradient(deviation / stored), 0.5, 2.0)
    gap = tf.stop_gradient(mean - w.bias("mean", 16, 4.0)) / stored
    gap = tf.clip_by_value(gap, -1.0, 1.0)
    normed = (y - mean) / deviation * ratio + gap
    return w.last(tf.nn.relu(normed), gap=gap)


def small_contrast(w, x):
    """Images of little contrast, whose mean is taken off."""
    images = tf.reshape(x, [8, 8, 8, 1])
    light = 1.0 + 0.01 * tf.nn.conv2d(images, w("filter", 3, 3, 1, 8), 1, "SAME")
    mean, variance = tf.nn.moments(light, [1, 2], keepdims=True)
    normed = (light - mean) * tf.math.rsqrt(variance + 1e-8)
    return w.last(tf.reshape(normed, [8, 512]), normed=normed)


def small_turns(w, x):
    """The angle of a small rotation, by the diagonal of its matrix."""
    axis = 0.1 * w.perceptron(x, 3, "axis")
    angle = tf.sqrt(tf.reduce_sum(axis * axis, 1) + 1e-12)[:, None, None]
    a, b, c = tf.unstack(axis, axis=1)
    zero = tf.zeros_like(a)
    rows = tf.stack([zero, -c, b, c, zero, -a, -b, a, zero], 1)
    cross = tf.reshape(rows, [-1, 3, 3])
    twice = tf.matmul(cross, cross)
    turn = tf.eye(3) + tf.sin(angle) / angle * cross + (1.0 - tf.cos(angle)) / angle**2 * twice
    points = tf.matmul(tf.reshape(x[:, :30], [-1, 10, 3]), turn, transpose_b=True)
    cosine = (tf.linalg.trace(turn) - 1.0) / 2.0
    size = tf.acos(tf.clip_by_value(cosine, -1.0 + 1e-6, 1.0 - 1e-6))
    return {"loss": mean_square(points) + tf.reduce_mean(size), "size": size}


def changes_of_a_history(w, x):
    """A layer whose bias is near 100 gives the last of a history, of which the changes matter."""
    value = tf.tensordot(x, w("kernel", 32, 8), 1) + w.bias("bias", 8, start=100.0)
    history = 100.0 + tf.reshape(x, [-1, 4, 8])
    rows = tf.range(x.shape[0])
    places = tf.stack([rows, tf.fill(rows.shape, 3)], 1)
    told = tf.tensor_scatter_nd_update(history, places, value)
    changes = tf.reshape(told[:, 1:] - told[:, :-1], [-1, 24])
    return w.last(changes, changes=changes)


def windows_beside_a_corner(w, x):
    """The slopes in each window of an image that a layer gives, with a bias near 50."""
    pixels = tf.tensordot(x, w("kernel", 32, 16), 1) + w.bias("bias", 16, start=50.0)
    image = tf.reshape(pixels, [-1, 4, 4, 1])
    ones = [1, 1, 1, 1]
    windows = tf.image.extract_patches(image, [1, 2, 2, 1], ones, ones, "VALID")
    slopes = tf.reshape(windows[..., 1:] - windows[..., :1], [-1, 27])
    return w.last(slopes, slopes=slopes)
