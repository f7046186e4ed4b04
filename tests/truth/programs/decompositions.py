"""Matrices that a program makes by a product, and then inverts, factors or diagonalizes.

Values that products compute from data alone near a decomposition are as in float32.
"""

import tensorflow as tf

from tests.truth.bench import mean_square
from tests.truth.models import explained_and_volume, halves


def _features(w, x, size, name="net"):
    """Features of a network, whose mean is far from zero beside their spread."""
    return 1.5 + 0.3 * w.perceptron(x, size, name, tf.tanh)


def _data(x, size, first=0):
    """Columns that nearly depend on each other."""
    columns = tf.tanh(x[..., first : first + size])
    return 1.5 + 0.3 * columns + 0.02 * tf.reverse(columns, [-1])


def _covariance(values):
    centred = values - tf.reduce_mean(values, -2, keepdims=True)
    count = tf.cast(tf.shape(values)[-2], tf.float32)
    return _gram(centred) / count


def _inverse_root(matrix, floor):
    regular = matrix + floor * tf.eye(matrix.shape[-1])
    values, vectors = tf.linalg.eigh(regular)
    scaled = vectors * tf.math.rsqrt(values)[..., None, :]
    return tf.matmul(scaled, vectors, transpose_b=True)


def _gram(values, other=None):
    """The products of columns with columns."""
    return tf.matmul(values, values if other is None else other, transpose_a=True)


def _squared_distances(first, second):
    """By the scalar products, as libraries of kernels compute them."""
    first_sizes = tf.reduce_sum(first * first, 1)[:, None]
    sizes = first_sizes + tf.reduce_sum(second * second, 1)[None]
    return sizes - 2.0 * tf.matmul(first, second, transpose_b=True)


def _fit(prediction, x, name="output"):
    width = prediction.shape[-1]
    target = x[:, 16 : 16 + width]
    return {"loss": mean_square(prediction - target), name: prediction}


def ridge_by_cholesky(w, x):
    features = _data(x, 8)
    gram = _gram(features) + 0.01 * tf.eye(8)
    right = _gram(features, x[:, 16:18])
    factor = tf.linalg.cholesky(gram)
    solution = tf.linalg.cholesky_solve(factor, right)
    return _fit(tf.matmul(features, solution), x, "untouched output")


def normal_equations_by_solve(w, x):
    columns = [_features(w, x, 5), tf.ones([16, 1])]
    features = tf.concat(columns, 1)
    products = tf.einsum("bi,bj->ij", features, features)
    gram = products + 0.01 * tf.eye(6)
    right = tf.einsum("bi,bj->ij", features, x[:, 16:19])
    solution = tf.linalg.solve(gram, right)
    return _fit(tf.matmul(features, solution), x)


def least_squares_of_a_gram_matrix(w, x):
    features = _data(x, 6)
    gram = _gram(features) / 16.0
    right = _gram(features, x[:, 16:18]) / 16.0
    solution = tf.linalg.lstsq(gram, right, l2_regularizer=1e-3)
    return _fit(tf.matmul(features, solution), x, "untouched output")


def covariance_pooling(w, x):
    """The root of the covariance of an image's channels, by its eigenvalues."""
    channels = _data(tf.reshape(x, [2, 8, 32]), 6)
    covariance = _covariance(channels)
    values, vectors = tf.linalg.eigh(covariance + 1e-4 * tf.eye(6))
    scaled = vectors * tf.sqrt(values)[:, None]
    root = tf.matmul(scaled, vectors, transpose_b=True)
    pooled = tf.reshape(root, [2, 36])
    scores = w.dense(pooled, 4, "out")
    return {"loss": mean_square(scores - 0.3), "untouched output": root}


def canonical_correlation(w, x):
    """The sum of the correlations of two views, which is at most their width."""
    first = _data(x, 4)
    second = _data(x, 4, 2)
    first_centred = first - tf.reduce_mean(first, 0)
    second_centred = second - tf.reduce_mean(second, 0)
    across = _gram(first_centred, second_centred)
    left, right = (_inverse_root(_covariance(view), 1e-3) for view in (first, second))
    whitened = tf.matmul(left, across / 16.0)
    correlations = tf.matmul(whitened, right)
    total = tf.reduce_sum(tf.square(correlations))
    return {"loss": -total, "untouched output": correlations}


def whitening_before_a_network(w, x):
    """ZCA of the features of a batch, and two more layers."""
    features = _features(w, x, 6)
    whitener = _inverse_root(_covariance(features), 1e-3)
    centred = features - tf.reduce_mean(features, 0)
    white = tf.matmul(centred, whitener)
    prediction = w.perceptron(white, 4, "head")
    return {**_fit(prediction, x), "white": white}


def log_determinant_of_a_flow(w, x):
    """An invertible linear layer, of which two factors are trained, by their product."""
    lower = tf.linalg.band_part(w("lower", 8, 8), -1, 0)
    factor = lower + tf.eye(8)
    product = tf.matmul(factor, factor, transpose_b=True)
    matrix = product + 0.01 * tf.eye(8)
    _, volume = tf.linalg.slogdet(matrix)
    latent = tf.matmul(w.dense(x, 8, "net"), matrix)
    energy = 0.5 * tf.reduce_sum(tf.square(latent), 1)
    likelihood = volume - energy
    return {"loss": -tf.reduce_mean(likelihood), "metric": volume}


def gaussian_process_by_products(w, x):
    """A regression, whose kernel takes squared distances from scalar products."""
    places = 2.0 * _data(x, 3)
    train = places[:12]
    test = places[12:]
    similarities = tf.exp(-0.5 * _squared_distances(train, train))
    kernel = similarities + 0.01 * tf.eye(12)
    across = tf.exp(-0.5 * _squared_distances(test, train))
    factor = tf.linalg.cholesky(kernel)
    solved = tf.linalg.cholesky_solve(factor, x[:12, 16:17])
    shared = tf.linalg.triangular_solve(factor, tf.transpose(across))
    spread = 1.01 - tf.reduce_sum(tf.square(shared), 0)
    mean = tf.matmul(across, solved)
    squares = tf.square(mean - x[12:, 16:17])
    loss = tf.reduce_mean(squares / spread[:, None])
    return {"loss": loss, "untouched output": mean, "untouched spread": spread}


def marginal_likelihood(w, x):
    """A linear kernel, its log determinant and the data that it explains."""
    places = _features(w, x, 4)
    products = tf.matmul(places, places, transpose_b=True)
    kernel = products + 0.02 * tf.eye(16)
    explained, volume = explained_and_volume(kernel, x[:, :1])
    return {"loss": explained + volume, "metric": volume}


def _filtered(state, spread, measured):
    """One step of a Kalman filter: a point that moves steadily, seen nearly exactly."""
    moves = tf.constant([[1.0, 0.1, 0.0], [0.0, 1.0, 0.1], [0.0, 0.0, 1.0]])
    seen = tf.constant([[1.0, 0.0, 0.0]])
    state = tf.matmul(moves, state)
    moved = tf.matmul(moves, spread)
    spread = tf.matmul(moved, moves, transpose_b=True) + 1e-3 * tf.eye(3)
    observed = tf.matmul(seen, spread)
    noise = tf.matmul(observed, seen, transpose_b=True) + 0.01
    surprise = measured - tf.matmul(seen, state)
    factor = tf.linalg.cholesky(noise)
    observed = tf.matmul(seen, spread)
    gain = tf.transpose(tf.linalg.cholesky_solve(factor, observed))
    solved = tf.linalg.triangular_solve(factor, surprise)
    likelihood = -0.5 * tf.reduce_sum(tf.square(solved))
    diagonal = tf.linalg.diag_part(factor)
    likelihood -= tf.reduce_sum(tf.math.log(diagonal))
    state += tf.matmul(gain, surprise)
    explained = tf.matmul(gain, noise)
    spread -= tf.matmul(explained, gain, transpose_b=True)
    return state, spread, likelihood


def kalman_filter(w, x):
    measured = w.dense(x, 1, "net")
    likelihood = tf.constant(0.0)
    state = tf.zeros([3, 1])
    spread = tf.eye(3) * (10.0 + x[0, 0])
    for turn in range(5):
        state, spread, more = _filtered(state, spread, measured[turn : turn + 1])
        likelihood += more
    return {"loss": -likelihood, "output": state, "spread": spread}


def kalman_filter_in_a_loop(w, x):
    measured = w.dense(x, 1, "net")
    zero = tf.zeros([])

    def body(turn, state, spread, sum_):
        state, spread, more = _filtered(state, spread, measured[turn][None])
        return turn + 1, state, spread, sum_ + more

    begin = (0, tf.zeros([3, 1]), tf.eye(3) * (10.0 + x[0, 0]), zero)
    _, state, spread, likelihood = tf.while_loop(
        lambda turn, *_: turn < 5, body, begin, maximum_iterations=5
    )
    return {"loss": -likelihood, "output": state, "spread": spread}


def levenberg_marquardt(w, x):
    """Two damped steps of a curve fit, through which the data's network is trained."""
    heights = w.dense(x, 1, "net")[:, 0]
    places = tf.linspace(0.0, 1.0, 16)
    guess = tf.constant([1.0, 1.0, 0.1])
    for _ in range(2):
        decay = tf.exp(-guess[1] * places)
        curve = guess[0] * decay + guess[2]
        missed = heights - curve
        slope_of_rate = -guess[0] * places * decay
        slopes = tf.stack([decay, slope_of_rate, tf.ones([16])], 1)
        normal = _gram(slopes) + 0.01 * tf.eye(3)
        right = _gram(slopes, missed[:, None])
        step = tf.linalg.solve(normal, right)
        guess += step[:, 0]
    return {"loss": mean_square(missed), "output": guess}


def fisher_discriminant(w, x):
    """The direction in which two classes are apart, by the inverse of the scatter within them."""
    features = _data(x, 5)
    first, second = halves(features)
    within = _covariance(first) + _covariance(second) + 1e-3 * tf.eye(5)
    apart = tf.reduce_mean(first, 0) - tf.reduce_mean(second, 0)
    inverse = tf.linalg.inv(within)
    direction = tf.linalg.matvec(inverse, apart)
    ratio = tf.tensordot(direction, apart, 1)
    return {"loss": -tf.math.log1p(ratio), "untouched output": direction}
