"""How functions are called that cannot be called with one or two tensors: shapes, sizes, axes,
other operands.

A row is a shape, and what follows ``h``, a float32 tensor of that shape which a product has just
computed; or, in place of that, a call that gets ``h``.
"""

import numpy as np
import tensorflow as tf

from tests.truth.bench import by_name

ROWS = (8, 16)
IMAGE = (2, 8, 8, 3)
SQUARE = (4, 6, 6)
VOLUME = (2, 4, 4, 4, 3)
LINE = (2, 8, 3)
IDS = np.array([0, 0, 1, 1, 1, 2, 2, 3], np.int32)
ONES = (1, 1, 1, 1)


def _fixed(*shape):
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def _positive_definite(h):
    return tf.matmul(h, h, transpose_b=True) + tf.eye(h.shape[-1])


def _regular(h):
    return h + 4 * tf.eye(6)


def _chances():
    return tf.nn.softmax(_fixed(8, 16))


def _batch_normalization(h):
    mean, variance = tf.nn.moments(h, [0])
    offset = _fixed(16)
    scale = _fixed(16)
    return tf.nn.batch_normalization(h, mean, variance, offset, scale, 1e-3)


def _average_loss(h):
    losses = tf.square(h)
    return tf.nn.compute_average_loss(losses, global_batch_size=64)


def _ctc_loss(h):
    labels = np.array([[1, 2], [3, 1]])
    label_lengths = np.array([2, 2])
    logit_lengths = np.array([8, 8])
    return tf.nn.ctc_loss(labels, h, label_lengths, logit_lengths, blank_index=0)


def _normalize_moments(h):
    total = tf.reduce_sum(h, 0)
    total_of_squares = tf.reduce_sum(h * h, 0)
    return tf.nn.normalize_moments(8.0, total, total_of_squares, None)


def _safe_embedding_lookup(h):
    ids = tf.constant([[1, 3, 4], [2, 7, 0]])
    sparse_ids = tf.sparse.from_dense(ids)
    return tf.nn.safe_embedding_lookup_sparse(h, sparse_ids)


def _sampled_softmax_loss(h):
    weights = _fixed(20, 16)
    biases = _fixed(20)
    labels = np.arange(8, dtype=np.int64)[:, None]
    sampled = tf.constant([1, 5, 9, 13], tf.int64)
    true_counts = tf.fill([8, 1], 0.4)
    sampled_counts = tf.fill([4], 0.3)
    drawn = (sampled, true_counts, sampled_counts)
    return tf.nn.sampled_softmax_loss(weights, biases, labels, h, 4, 20, sampled_values=drawn)


def _sigmoid_cross_entropy(h):
    labels = _chances()
    return tf.nn.sigmoid_cross_entropy_with_logits(labels, h)


def _softmax_cross_entropy(h):
    labels = _chances()
    return tf.nn.softmax_cross_entropy_with_logits(labels, h)


def _sparse_cross_entropy(h):
    labels = np.arange(8)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, h)


def _sufficient_statistics(h):
    statistics = tf.nn.sufficient_statistics(h, [0])
    return statistics[1:3]


def _weighted_cross_entropy(h):
    labels = _chances()
    return tf.nn.weighted_cross_entropy_with_logits(labels, h, 3.0)


def _weighted_moments(h):
    weights = _chances()
    return tf.nn.weighted_moments(h, [0], weights)


def _cholesky(h):
    matrix = _positive_definite(h)
    return tf.linalg.cholesky(matrix)


def _eigenvalues(h):
    matrix = _positive_definite(h)
    values, _ = tf.linalg.eigh(matrix)
    return values


def _eigenvalues_of_bands(h):
    diagonal = h[0]
    beside = h[1, :5]
    return tf.linalg.eigh_tridiagonal(diagonal, beside)


def _einsum(h):
    other = tf.tanh(h)
    return tf.linalg.einsum("bij,bkj->bik", h, other)


def _global_norm(h):
    other = tf.tanh(h)
    return tf.linalg.global_norm([h, other])


def _log_determinant(h):
    matrix = _positive_definite(h)
    return tf.linalg.logdet(matrix)


def _lu(h):
    matrix = _regular(h)
    return tf.linalg.lu(matrix)


def _lu_solve(h):
    factors, permutation = _lu(h)
    return tf.linalg.lu_solve(factors, permutation, _fixed(4, 6, 3))


def _matvec(h):
    vectors = h[:, 0]
    return tf.linalg.matvec(h, vectors)


def _set_diag(h):
    diagonal = tf.tanh(h[:, 0])
    return tf.linalg.set_diag(h, diagonal)


def _slogdet(h):
    matrix = _positive_definite(h)
    _, log_determinant = tf.linalg.slogdet(matrix)
    return log_determinant


def _solve(h):
    matrix = _regular(h)
    return tf.linalg.solve(matrix, _fixed(4, 6, 3))


def _singular_values(h):
    return tf.linalg.svd(h, compute_uv=False)


def _tensordot(h):
    other = tf.tanh(h)
    return tf.linalg.tensordot(h, other, [[1], [1]])


def _triangular_solve(h):
    matrix = _regular(h)
    return tf.linalg.triangular_solve(matrix, _fixed(4, 6, 3))


def _add_n(h):
    terms = [h, tf.tanh(h), h * h]
    return tf.math.add_n(terms)


def _polyval(h):
    coefficients = [tf.constant(0.3), tf.constant(-1.2), tf.constant(0.7)]
    return tf.math.polyval(coefficients, h)


def _pow(h):
    base = tf.abs(h) + 0.1
    return tf.math.pow(base, 2.5)


def _scalar_mul(h):
    return tf.math.scalar_mul(0.3, h)


def _real(h):
    complex_values = tf.complex(h, 0.5 * h)
    return tf.math.real(complex_values)


NN = {
    "atrous_conv2d": (IMAGE, _fixed(3, 3, 3, 4), 2, "SAME"),
    "atrous_conv2d_transpose": (IMAGE, _fixed(3, 3, 4, 3), [2, 8, 8, 4], 2, "SAME"),
    "avg_pool1d": (LINE, 2, 2, "SAME"),
    "avg_pool2d": (IMAGE, 2, 2, "SAME"),
    "avg_pool3d": (VOLUME, 2, 2, "SAME"),
    "batch_normalization": (ROWS, _batch_normalization),
    "bias_add": (ROWS, _fixed(16)),
    "compute_average_loss": ((64,), _average_loss),
    "conv1d": (LINE, _fixed(3, 3, 4), 1, "SAME"),
    "conv1d_transpose": (LINE, _fixed(3, 4, 3), [2, 16, 4], 2),
    "conv2d": (IMAGE, _fixed(3, 3, 3, 4), 1, "SAME"),
    "conv2d_transpose": (IMAGE, _fixed(3, 3, 4, 3), [2, 16, 16, 4], 2),
    "conv3d": (VOLUME, _fixed(2, 2, 2, 3, 4), [1] * 5, "SAME"),
    "conv3d_transpose": (VOLUME, _fixed(2, 2, 2, 4, 3), [2, 8, 8, 8, 4], [1, 2, 2, 2, 1]),
    "ctc_loss": ((8, 2, 6), _ctc_loss),
    "depth_to_space": ((2, 4, 4, 4), 2),
    "depthwise_conv2d": (IMAGE, _fixed(3, 3, 3, 2), ONES, "SAME"),
    "dropout": (ROWS, 0.3, None, 3),
    "embedding_lookup": (ROWS, np.array([0, 3, 3, 3, 7, 1], np.int32)),
    "local_response_normalization": (IMAGE,),
    "max_pool1d": (LINE, 2, 2, "SAME"),
    "max_pool2d": (IMAGE, 2, 2, "SAME"),
    "max_pool3d": (VOLUME, 2, 2, "SAME"),
    "moments": (ROWS, [0]),
    "normalize_moments": (ROWS, _normalize_moments),
    "safe_embedding_lookup_sparse": (ROWS, _safe_embedding_lookup),
    "sampled_softmax_loss": (ROWS, _sampled_softmax_loss),
    "separable_conv2d": (IMAGE, _fixed(3, 3, 3, 2), _fixed(1, 1, 6, 4), ONES, "SAME"),
    "sigmoid_cross_entropy_with_logits": (ROWS, _sigmoid_cross_entropy),
    "softmax_cross_entropy_with_logits": (ROWS, _softmax_cross_entropy),
    "space_to_batch": (IMAGE, [2, 2], [[0, 0], [0, 0]]),
    "space_to_depth": (IMAGE, 2),
    "sparse_softmax_cross_entropy_with_logits": (ROWS, _sparse_cross_entropy),
    "sufficient_statistics": (ROWS, _sufficient_statistics),
    "weighted_cross_entropy_with_logits": (ROWS, _weighted_cross_entropy),
    "weighted_moments": (ROWS, _weighted_moments),
}
LINALG = {
    "band_part": (SQUARE, 1, 2),
    "cholesky": (SQUARE, _cholesky),
    "eigh": (SQUARE, _eigenvalues),
    "eigh_tridiagonal": ((2, 6), _eigenvalues_of_bands),
    "einsum": (SQUARE, _einsum),
    "expm": (SQUARE,),
    "global_norm": (ROWS, _global_norm),
    "logdet": (SQUARE, _log_determinant),
    "lstsq": (SQUARE, _fixed(4, 6, 3), 0.1),
    "lu": (SQUARE, _lu),
    "lu_solve": (SQUARE, _lu_solve),
    "matvec": (SQUARE, _matvec),
    "set_diag": (SQUARE, _set_diag),
    "slogdet": (SQUARE, _slogdet),
    "solve": (SQUARE, _solve),
    "svd": (SQUARE, _singular_values),
    "tensordot": (ROWS, _tensordot),
    "triangular_solve": (SQUARE, _triangular_solve),
}
MATH = {
    "add_n": (ROWS, _add_n),
    "polyval": (ROWS, _polyval),
    "pow": (ROWS, _pow),
    "reduce_logsumexp": (ROWS, 1),
    "scalar_mul": (ROWS, _scalar_mul),
    **{f"segment_{kind}": (ROWS, IDS) for kind in ("max", "mean", "min", "prod", "sum")},
    **{
        f"unsorted_segment_{kind}": (ROWS, IDS[::-1], 4)
        for kind in ("max", "mean", "min", "prod", "sqrt_n", "sum")
    },
    "real": (ROWS, _real),
    "top_k": (ROWS, 3),
}


def _call(module, name, shape, *rest):
    if rest and callable(rest[0]):
        return shape, rest[0]

    def call(h):
        function = getattr(getattr(tf, module), name)
        return function(h, *rest)

    return shape, call


def _calls(module, rows):
    """The shape and the call of each row of a module's table."""
    calls = {}
    for name, row in rows.items():
        calls[name] = _call(module, name, *row)
    return calls


#: The shape and the call of each, by module and name.
EXPLICIT = {
    "nn": _calls("nn", NN),
    "linalg": _calls("linalg", LINALG),
    "math": _calls("math", MATH),
}

_LEFT_OUT = {
    "runs the ops of others, which are here": """
        nn.avg_pool nn.batch_norm_with_global_normalization nn.conv_transpose
        nn.convolution nn.depthwise_conv2d_backprop_filter
        nn.depthwise_conv2d_backprop_input nn.embedding_lookup_sparse nn.lrn nn.max_pool
        nn.nce_loss nn.pool nn.with_space_to_batch linalg.eigvalsh linalg.lu_reconstruct
        math.accumulate_n""",
    "has ops on no list, or of one kind with those of others, which are here": """
        nn.dilation2d nn.erosion2d nn.fractional_avg_pool nn.fractional_max_pool
        nn.max_pool_with_argmax linalg.banded_triangular_solve linalg.cross
        linalg.cholesky_solve linalg.eig linalg.logm linalg.lu_matrix_inverse
        linalg.pinv linalg.sqrtm linalg.tensor_diag linalg.tensor_diag_part
        linalg.tridiagonal_matmul linalg.tridiagonal_solve math.betainc math.igamma
        math.igammac math.lbeta math.polygamma math.reduce_euclidean_norm math.zeta
        math.angle math.imag""",
    "is XLA's alone": "nn.approx_min_k math.approx_min_k nn.approx_max_k math.approx_max_k",
    "has no gradient: whole numbers, truth values, steps": """
        nn.all_candidate_sampler nn.collapse_repeated nn.compute_accidental_hits
        nn.ctc_beam_search_decoder nn.ctc_greedy_decoder nn.ctc_unique_labels
        nn.fixed_unigram_candidate_sampler nn.in_top_k
        nn.learned_unigram_candidate_sampler nn.zero_fraction linalg.matrix_rank
        math.argmax math.argmin math.bincount math.ceil math.confusion_matrix
        math.count_nonzero math.equal math.floor math.floordiv math.greater
        math.greater_equal math.in_top_k math.invert_permutation math.is_finite
        math.is_inf math.is_nan math.is_non_decreasing math.is_strictly_increasing
        math.less math.less_equal math.logical_and math.logical_not math.logical_or
        math.logical_xor math.not_equal math.reduce_all math.reduce_any math.rint
        math.round math.zero_fraction""",
    "reads no float tensor": "linalg.eye math.sobol_sample",
}
#: Functions that are no program here, and why.
LEFT_OUT = by_name(_LEFT_OUT)
