"""How functions are called that cannot be called with one or two tensors: shapes, sizes, axes,
other operands.

A row is a shape, and what follows ``h``, a float32 tensor of that shape which a product has just
computed; or, in place of that, a call that gets ``h``.
"""

from __future__ import annotations

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


NN = {
    "atrous_conv2d": (IMAGE, _fixed(3, 3, 3, 4), 2, "SAME"),
    "atrous_conv2d_transpose": (IMAGE, _fixed(3, 3, 4, 3), [2, 8, 8, 4], 2, "SAME"),
    "avg_pool1d": (LINE, 2, 2, "SAME"),
    "avg_pool2d": (IMAGE, 2, 2, "SAME"),
    "avg_pool3d": (VOLUME, 2, 2, "SAME"),
    "batch_normalization": (
        ROWS,
        lambda h: tf.nn.batch_normalization(
            h, *tf.nn.moments(h, [0]), _fixed(16), _fixed(16), 1e-3
        ),
    ),
    "bias_add": (ROWS, _fixed(16)),
    "compute_average_loss": (
        (64,),
        lambda h: tf.nn.compute_average_loss(tf.square(h), global_batch_size=64),
    ),
    "conv1d": (LINE, _fixed(3, 3, 4), 1, "SAME"),
    "conv1d_transpose": (LINE, _fixed(3, 4, 3), [2, 16, 4], 2),
    "conv2d": (IMAGE, _fixed(3, 3, 3, 4), 1, "SAME"),
    "conv2d_transpose": (IMAGE, _fixed(3, 3, 4, 3), [2, 16, 16, 4], 2),
    "conv3d": (VOLUME, _fixed(2, 2, 2, 3, 4), [1] * 5, "SAME"),
    "conv3d_transpose": (VOLUME, _fixed(2, 2, 2, 4, 3), [2, 8, 8, 8, 4], [1, 2, 2, 2, 1]),
    "ctc_loss": (
        (8, 2, 6),
        lambda h: tf.nn.ctc_loss(
            np.array([[1, 2], [3, 1]]), h, np.array([2, 2]), np.array([8, 8]), blank_index=0
        ),
    ),
    "depth_to_space": ((2, 4, 4, 4), 2),
    "depthwise_conv2d": (IMAGE, _fixed(3, 3, 3, 2), ONES, "SAME"),
    "dropout": (ROWS, 0.3, None, 3),
    "embedding_lookup": (ROWS, np.array([0, 3, 3, 3, 7, 1], np.int32)),
    "local_response_normalization": (IMAGE,),
    "max_pool1d": (LINE, 2, 2, "SAME"),
    "max_pool2d": (IMAGE, 2, 2, "SAME"),
    "max_pool3d": (VOLUME, 2, 2, "SAME"),
    "moments": (ROWS, [0]),
    "normalize_moments": (
        ROWS,
        lambda h: tf.nn.normalize_moments(8.0, tf.reduce_sum(h, 0), tf.reduce_sum(h * h, 0), None),
    ),
    "safe_embedding_lookup_sparse": (
        ROWS,
        lambda h: tf.nn.safe_embedding_lookup_sparse(
            h, tf.sparse.from_dense(tf.constant([[1, 3, 4], [2, 7, 0]]))
        ),
    ),
    "sampled_softmax_loss": (
        ROWS,
        lambda h: tf.nn.sampled_softmax_loss(
            _fixed(20, 16),
            _fixed(20),
            np.arange(8, dtype=np.int64)[:, None],
            h,
            4,
            20,
            sampled_values=(
                tf.constant([1, 5, 9, 13], tf.int64),
                tf.fill([8, 1], 0.4),
                tf.fill([4], 0.3),
            ),
        ),
    ),
    "separable_conv2d": (IMAGE, _fixed(3, 3, 3, 2), _fixed(1, 1, 6, 4), ONES, "SAME"),
    "sigmoid_cross_entropy_with_logits": (
        ROWS,
        lambda h: tf.nn.sigmoid_cross_entropy_with_logits(_chances(), h),
    ),
    "softmax_cross_entropy_with_logits": (
        ROWS,
        lambda h: tf.nn.softmax_cross_entropy_with_logits(_chances(), h),
    ),
    "space_to_batch": (IMAGE, [2, 2], [[0, 0], [0, 0]]),
    "space_to_depth": (IMAGE, 2),
    "sparse_softmax_cross_entropy_with_logits": (
        ROWS,
        lambda h: tf.nn.sparse_softmax_cross_entropy_with_logits(np.arange(8), h),
    ),
    "sufficient_statistics": (ROWS, lambda h: tf.nn.sufficient_statistics(h, [0])[1:3]),
    "weighted_cross_entropy_with_logits": (
        ROWS,
        lambda h: tf.nn.weighted_cross_entropy_with_logits(_chances(), h, 3.0),
    ),
    "weighted_moments": (ROWS, lambda h: tf.nn.weighted_moments(h, [0], _chances())),
}
LINALG = {
    "band_part": (SQUARE, 1, 2),
    "cholesky": (SQUARE, lambda h: tf.linalg.cholesky(_positive_definite(h))),
    "eigh": (SQUARE, lambda h: tf.linalg.eigh(_positive_definite(h))[0]),
    "eigh_tridiagonal": ((2, 6), lambda h: tf.linalg.eigh_tridiagonal(h[0], h[1, :5])),
    "einsum": (SQUARE, lambda h: tf.linalg.einsum("bij,bkj->bik", h, tf.tanh(h))),
    "expm": (SQUARE,),
    "global_norm": (ROWS, lambda h: tf.linalg.global_norm([h, tf.tanh(h)])),
    "logdet": (SQUARE, lambda h: tf.linalg.logdet(_positive_definite(h))),
    "lstsq": (SQUARE, _fixed(4, 6, 3), 0.1),
    "lu": (SQUARE, lambda h: tf.linalg.lu(_regular(h))),
    "lu_solve": (SQUARE, lambda h: tf.linalg.lu_solve(*tf.linalg.lu(_regular(h)), _fixed(4, 6, 3))),
    "matvec": (SQUARE, lambda h: tf.linalg.matvec(h, h[:, 0])),
    "set_diag": (SQUARE, lambda h: tf.linalg.set_diag(h, tf.tanh(h[:, 0]))),
    "slogdet": (SQUARE, lambda h: tf.linalg.slogdet(_positive_definite(h))[1]),
    "solve": (SQUARE, lambda h: tf.linalg.solve(_regular(h), _fixed(4, 6, 3))),
    "svd": (SQUARE, lambda h: tf.linalg.svd(h, compute_uv=False)),
    "tensordot": (ROWS, lambda h: tf.linalg.tensordot(h, tf.tanh(h), [[1], [1]])),
    "triangular_solve": (
        SQUARE,
        lambda h: tf.linalg.triangular_solve(_regular(h), _fixed(4, 6, 3)),
    ),
}
MATH = {
    "add_n": (ROWS, lambda h: tf.math.add_n([h, tf.tanh(h), h * h])),
    "polyval": (
        ROWS,
        lambda h: tf.math.polyval([tf.constant(0.3), tf.constant(-1.2), tf.constant(0.7)], h),
    ),
    "pow": (ROWS, lambda h: tf.math.pow(tf.abs(h) + 0.1, 2.5)),
    "reduce_logsumexp": (ROWS, 1),
    "scalar_mul": (ROWS, lambda h: tf.math.scalar_mul(0.3, h)),
    **{f"segment_{kind}": (ROWS, IDS) for kind in ("max", "mean", "min", "prod", "sum")},
    **{
        f"unsorted_segment_{kind}": (ROWS, IDS[::-1], 4)
        for kind in ("max", "mean", "min", "prod", "sqrt_n", "sum")
    },
    "real": (ROWS, lambda h: tf.math.real(tf.complex(h, 0.5 * h))),
    "top_k": (ROWS, 3),
}


def _call(module, name, shape, *rest):
    if rest and callable(rest[0]):
        return shape, rest[0]
    return shape, lambda h: getattr(getattr(tf, module), name)(h, *rest)


#: The shape and the call of each, by module and name.
EXPLICIT = {
    module: {name: _call(module, name, *row) for name, row in rows.items()}
    for module, rows in (("nn", NN), ("linalg", LINALG), ("math", MATH))
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
