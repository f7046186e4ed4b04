"""Differences of moments: a mean of squares less the square of a mean, by hand."""

import tensorflow as tf


def _far_from_zero(w, x, size, name):
    """Returns products near 4.5, which is some ten times their deviation."""
    shifted = 0.4 * x + 1.0
    weights = tf.abs(w(name, x.shape[-1], size))
    return tf.matmul(shifted, weights)


def _filtered_images(w, x):
    """Returns images of eight channels by positive filters."""
    images = tf.reshape(0.2 * x + 1.0, [8, 8, 8, 1])
    filters = tf.abs(w("filter", 3, 3, 1, 8))
    return tf.nn.conv2d(images, filters, 1, "VALID")


def _two_views(w, x, size):
    other_view = x + 0.5 * x[:, ::-1]
    return _far_from_zero(w, x, size, "a"), _far_from_zero(w, other_view, size, "b")


def batch_norm_by_hand(w, x):
    y = _far_from_zero(w, x, 16, "net")
    mean = tf.reduce_mean(y, 0)
    variance = tf.reduce_mean(tf.square(y), 0) - tf.square(mean)
    normed = (y - mean) * tf.math.rsqrt(variance + 1e-3)
    scaled = normed * w.bias("gamma", 16, 1.0)
    return w.last(scaled + w.bias("beta", 16), variance=variance)


def group_norm_of_images(w, x):
    y = tf.reshape(_filtered_images(w, x), [8, 36, 2, 4])
    mean = tf.reduce_mean(y, [1, 3], keepdims=True)
    variance = tf.reduce_mean(y * y, [1, 3], keepdims=True) - mean * mean
    normed = (y - mean) / tf.sqrt(variance + 1e-5)
    return w.last(tf.reshape(normed, [8, 288]), variance=variance)


def running_second_moments(w, x):
    """The deviation by moments that move slowly, as of rewards or of returns."""
    y = _far_from_zero(w, x, 16, "net")
    kept = 0.9 * w.bias("first", 16, 4.5)
    first = kept + 0.1 * tf.reduce_mean(y, 0)
    kept = 0.9 * w.bias("second", 16, 22.0)
    second = kept + 0.1 * tf.reduce_mean(y**2, 0)
    variance = tf.maximum(second - first**2, 1e-2)
    deviation = tf.sqrt(variance)
    return w.last((y - first) / deviation, deviation=deviation)


def statistics_that_attention_weighs(w, x):
    """The mean and the deviation of the words of a sentence, as networks of speakers pool them."""
    y = _far_from_zero(w, x, 16, "net")
    words = tf.reshape(y, [2, 8, 16])
    hidden = tf.tanh(words - 4.5)
    scores = tf.matmul(hidden, w("scores", 16, 16))
    chances = tf.nn.softmax(scores, 1)
    mean = tf.reduce_sum(chances * words, 1)
    square = tf.reduce_sum(chances * tf.square(words), 1)
    variance = tf.maximum(square - tf.square(mean), 1e-4)
    deviation = tf.sqrt(variance)
    pooled = tf.concat([mean - 4.5, deviation], 1)
    return w.last(pooled, deviation=deviation)


def correlation_of_two_views(w, x):
    """E[ab] - E[a] E[b], by the deviations of both."""
    a, b = _two_views(w, x, 8)
    mean_product = tf.reduce_mean(a * b, 0)
    covariance = mean_product - tf.reduce_mean(a, 0) * tf.reduce_mean(b, 0)
    mean_square_of_a = tf.reduce_mean(a * a, 0)
    variance_of_a = mean_square_of_a - tf.reduce_mean(a, 0) ** 2
    mean_square_of_b = tf.reduce_mean(b * b, 0)
    variance_of_b = mean_square_of_b - tf.reduce_mean(b, 0) ** 2
    correlation = covariance * tf.math.rsqrt(variance_of_a * variance_of_b)
    return w.last(correlation[None], correlation=correlation)


def sums_in_place_of_means(w, x):
    """Pearson's correlation of two rows, by five sums."""
    a, b = _two_views(w, x, 24)
    sums = [tf.reduce_sum(each, 1) for each in (a, b, a * b, a * a, b * b)]
    sum_a, sum_b, sum_ab, sum_aa, sum_bb = sums
    above = 24.0 * sum_ab - sum_a * sum_b
    spread_of_a = 24.0 * sum_aa - sum_a**2
    spread_of_b = 24.0 * sum_bb - sum_b**2
    correlation = above / tf.sqrt(spread_of_a * spread_of_b)
    return w.last(correlation[:, None], correlation=correlation)


def contrast_of_windows(w, x):
    """The deviation of the pixels in windows, as in local normalization."""
    y = _filtered_images(w, x)
    mean = tf.nn.avg_pool2d(y, 3, 1, "VALID")
    square = tf.nn.avg_pool2d(tf.square(y), 3, 1, "VALID")
    variance = square - tf.square(mean)
    deviation = tf.sqrt(tf.nn.relu(variance) + 1e-4)
    centred = y[:, 1:-1, 1:-1] - mean
    normed = centred / deviation
    return w.last(tf.reshape(normed, [8, 128]), deviation=deviation)


def contrast_by_a_filter(w, x):
    """The same, where each channel is filtered by itself."""
    y = _filtered_images(w, x)
    window = tf.ones([3, 3, 8, 1]) / 9.0
    mean, square = (
        tf.nn.depthwise_conv2d(each, window, [1, 1, 1, 1], "VALID") for each in (y, y * y)
    )
    variance = tf.nn.relu(square - mean * mean)
    deviation = tf.sqrt(variance + 1e-4)
    features = tf.reshape(deviation, [8, 128])
    return w.last(features, deviation=deviation)


def spread_of_returns(w, x):
    """The variance of a distribution over atoms, as an explorer is rewarded by it."""
    logits = 3.0 * w.dense(x, 21, "net")
    chances = tf.nn.softmax(logits)
    atoms = tf.linspace(9.0, 11.0, 21)
    mean = tf.reduce_sum(chances * atoms, 1)
    square = tf.reduce_sum(chances * atoms**2, 1)
    variance = square - mean**2
    return w.last(variance[:, None], variance=variance)


def third_moments(w, x):
    y = _far_from_zero(w, x, 16, "net")
    first, second, third = (tf.reduce_mean(power, 0) for power in (y, y * y, y * y * y))
    skewness = third - 3.0 * first * second + 2.0 * first**3
    return w.last(skewness[None], skewness=skewness)


def interactions_of_factors(w, x):
    """A factorization machine: the square of a sum less the sum of squares."""
    y = _far_from_zero(w, x, 64, "net")
    factors = tf.reshape(y, [16, 8, 8])
    square_of_sum = tf.square(tf.reduce_sum(factors, 1))
    pairs = square_of_sum - tf.reduce_sum(tf.square(factors), 1)
    return w.last(0.01 * pairs, pairs=pairs)


def shares_of_a_budget(w, x):
    """What all shares together are above one, as a constraint of an optimizer."""
    shares = tf.nn.softplus(w.perceptron(x, 64, "net")) / 44.0
    excess = tf.reduce_sum(shares, 1) - 1.0
    price = w.bias("price", 1, 2.0)
    return {"loss": tf.reduce_mean(price * excess + 10.0 * tf.square(excess)), "excess": excess}


def closeness_of_views(w, x):
    """What the cosines of two views are below one, as losses of pairs have it."""
    view = w.perceptron(x, 8, "net")
    other = tf.stop_gradient(view + 0.1 * w.dense(x, 8, "other"))
    cosines = tf.reduce_sum(tf.nn.l2_normalize(view, 1) * tf.nn.l2_normalize(other, 1), 1)
    distances = 2.0 - 2.0 * cosines
    return {"loss": tf.reduce_mean(distances), "distances": distances}
