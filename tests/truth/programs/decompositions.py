"""Matrices that a program makes by a product, and then inverts, factors or diagonalizes.

Values that products compute from data alone near a decomposition are as in float32.
"""

from __future__ import annotations

import tensorflow as tf

from tests.truth.bench import mean_square
from tests.truth.programs.practice import models_in


def programs():
    return models_in(__name__)


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
    return tf.matmul(centred, centred, transpose_a=True) / count


def _inverse_root(matrix, floor):
    values, vectors = tf.linalg.eigh(matrix + floor * tf.eye(matrix.shape[-1]))
    return tf.matmul(vectors * tf.math.rsqrt(values)[..., None, :], vectors, transpose_b=True)


def _squared_distances(first, second):
    """By the scalar products, as libraries of kernels compute them."""
    sizes = tf.reduce_sum(first * first, 1)[:, None] + tf.reduce_sum(second * second, 1)[None]
    return sizes - 2.0 * tf.matmul(first, second, transpose_b=True)


def _fit(prediction, x, name="output"):
    target = x[:, 16 : 16 + prediction.shape[-1]]
    return {"loss": mean_square(prediction - target), name: prediction}


def ridge_by_cholesky(w, x):
    features = _data(x, 8)
    gram = tf.matmul(features, features, transpose_a=True) + 0.01 * tf.eye(8)
    right = tf.matmul(features, x[:, 16:18], transpose_a=True)
    solution = tf.linalg.cholesky_solve(tf.linalg.cholesky(gram), right)
    return _fit(tf.matmul(features, solution), x, "untouched output")


def normal_equations_by_solve(w, x):
    features = tf.concat([_features(w, x, 5), tf.ones([16, 1])], 1)
    gram = tf.einsum("bi,bj->ij", features, features) + 0.01 * tf.eye(6)
    solution = tf.linalg.solve(gram, tf.einsum("bi,bj->ij", features, x[:, 16:19]))
    return _fit(tf.matmul(features, solution), x)


def least_squares_of_a_gram_matrix(w, x):
    features = _data(x, 6)
    gram = tf.matmul(features, features, transpose_a=True) / 16.0
    right = tf.matmul(features, x[:, 16:18], transpose_a=True) / 16.0
    solution = tf.linalg.lstsq(gram, right, l2_regularizer=1e-3)
    return _fit(tf.matmul(features, solution), x, "untouched output")


def covariance_pooling(w, x):
    """The root of the covariance of an image's channels, by its eigenvalues."""
    channels = _data(tf.reshape(x, [2, 8, 32]), 6)
    values, vectors = tf.linalg.eigh(_covariance(channels) + 1e-4 * tf.eye(6))
    root = tf.matmul(vectors * tf.sqrt(values)[:, None], vectors, transpose_b=True)
    scores = w.dense(tf.reshape(root, [2, 36]), 4, "out")
    return {"loss": mean_square(scores - 0.3), "untouched output": root}


def canonical_correlation(w, x):
    """The sum of the correlations of two views, which is at most their width."""
    first = _data(x, 4)
    second = _data(x, 4, 2)
    across = tf.matmul(
        first - tf.reduce_mean(first, 0), second - tf.reduce_mean(second, 0), transpose_a=True
    )
    left, right = (_inverse_root(_covariance(view), 1e-3) for view in (first, second))
    correlations = tf.matmul(tf.matmul(left, across / 16.0), right)
    return {"loss": -tf.reduce_sum(tf.square(correlations)), "untouched output": correlations}


def whitening_before_a_network(w, x):
    """ZCA of the features of a batch, and two more layers."""
    features = _features(w, x, 6)
    whitener = _inverse_root(_covariance(features), 1e-3)
    white = tf.matmul(features - tf.reduce_mean(features, 0), whitener)
    return {**_fit(w.perceptron(white, 4, "head"), x), "white": white}


def log_determinant_of_a_flow(w, x):
    """An invertible linear layer, of which two factors are trained, by their product."""
    factor = tf.linalg.band_part(w("lower", 8, 8), -1, 0) + tf.eye(8)
    matrix = tf.matmul(factor, factor, transpose_b=True) + 0.01 * tf.eye(8)
    _, volume = tf.linalg.slogdet(matrix)
    latent = tf.matmul(w.dense(x, 8, "net"), matrix)
    likelihood = volume - 0.5 * tf.reduce_sum(tf.square(latent), 1)
    return {"loss": -tf.reduce_mean(likelihood), "metric": volume}


def gaussian_process_by_products(w, x):
    """A regression, whose kernel takes squared distances from scalar products."""
    places = 2.0 * _data(x, 3)
    train = places[:12]
    test = places[12:]
    kernel = tf.exp(-0.5 * _squared_distances(train, train)) + 0.01 * tf.eye(12)
    across = tf.exp(-0.5 * _squared_distances(test, train))
    factor = tf.linalg.cholesky(kernel)
    solved = tf.linalg.cholesky_solve(factor, x[:12, 16:17])
    shared = tf.linalg.triangular_solve(factor, tf.transpose(across))
    spread = 1.01 - tf.reduce_sum(tf.square(shared), 0)
    mean = tf.matmul(across, solved)
    return {
        "loss": tf.reduce_mean(tf.square(mean - x[12:, 16:17]) / spread[:, None]),
        "untouched output": mean,
        "untouched spread": spread,
    }


def marginal_likelihood(w, x):
    """A linear kernel, its log determinant and the data that it explains."""
    places = _features(w, x, 4)
    kernel = tf.matmul(places, places, transpose_b=True) + 0.02 * tf.eye(16)
    factor = tf.linalg.cholesky(kernel)
    solved = tf.linalg.triangular_solve(factor, x[:, :1])
    volume = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
    return {"loss": 0.5 * tf.reduce_sum(tf.square(solved)) + volume, "metric": volume}


def _filtered(state, spread, measured):
    """One step of a Kalman filter: a point that moves steadily, seen nearly exactly."""
    moves = tf.constant([[1.0, 0.1, 0.0], [0.0, 1.0, 0.1], [0.0, 0.0, 1.0]])
    seen = tf.constant([[1.0, 0.0, 0.0]])
    state = tf.matmul(moves, state)
    spread = tf.matmul(tf.matmul(moves, spread), moves, transpose_b=True) + 1e-3 * tf.eye(3)
    noise = tf.matmul(tf.matmul(seen, spread), seen, transpose_b=True) + 0.01
    surprise = measured - tf.matmul(seen, state)
    factor = tf.linalg.cholesky(noise)
    gain = tf.transpose(tf.linalg.cholesky_solve(factor, tf.matmul(seen, spread)))
    solved = tf.linalg.triangular_solve(factor, surprise)
    likelihood = -0.5 * tf.reduce_sum(tf.square(solved))
    likelihood -= tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
    state += tf.matmul(gain, surprise)
    spread -= tf.matmul(tf.matmul(gain, noise), gain, transpose_b=True)
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
        missed = heights - (guess[0] * decay + guess[2])
        slopes = tf.stack([decay, -guess[0] * places * decay, tf.ones([16])], 1)
        normal = tf.matmul(slopes, slopes, transpose_a=True) + 0.01 * tf.eye(3)
        step = tf.linalg.solve(normal, tf.matmul(slopes, missed[:, None], transpose_a=True))
        guess += step[:, 0]
    return {"loss": mean_square(missed), "output": guess}


def fisher_discriminant(w, x):
    """The direction in which two classes are apart, by the inverse of the scatter within them."""
    features = _data(x, 5)
    first = features[:8]
    second = features[8:]
    within = _covariance(first) + _covariance(second) + 1e-3 * tf.eye(5)
    apart = tf.reduce_mean(first, 0) - tf.reduce_mean(second, 0)
    direction = tf.linalg.matvec(tf.linalg.inv(within), apart)
    ratio = tf.tensordot(direction, apart, 1)
    return {"loss": -tf.math.log1p(ratio), "untouched output": direction}
