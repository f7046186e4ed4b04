"""How functions are called that cannot be called with one or two tensors: shapes, sizes, axes, other operands.

A row is a shape and a call. The call gets ``h``, a float32 tensor of that shape which a product has just computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Call = Callable[[Any], Any]
Shape = tuple[int, ...]

ROWS, IMAGE, SQUARE, VOLUME = (8, 16), (2, 8, 8, 3), (4, 6, 6), (2, 4, 4, 4, 3)
IDS = np.array([0, 0, 1, 1, 1, 2, 2, 3], np.int32)


def _fixed(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(5).normal(size=shape).astype(np.float32))


def _positive_definite(h: tf.Tensor) -> tf.Tensor:
    return tf.matmul(h, h, transpose_b=True) + tf.eye(h.shape[-1])


def _chance(h: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(h)


def _complex(h: tf.Tensor) -> tf.Tensor:
    return tf.complex(h, 0.5 * h)


def _factors(h: tf.Tensor) -> Any:
    return tf.linalg.lu(h + 4 * tf.eye(6))


def _labels(classes: int = 16) -> tf.Tensor:
    return tf.constant(np.arange(8) % classes, tf.int32)


def _segment(function: Any) -> Call:
    return lambda h: function(h, IDS)


def _unsorted(function: Any) -> Call:
    return lambda h: function(h, IDS[::-1], 4)


NN: dict[str, tuple[Shape, Call]] = {
    "atrous_conv2d": (IMAGE, lambda h: tf.nn.atrous_conv2d(h, _fixed(3, 3, 3, 4), 2, "SAME")),
    "atrous_conv2d_transpose": (
        IMAGE,
        lambda h: tf.nn.atrous_conv2d_transpose(h, _fixed(3, 3, 4, 3), [2, 8, 8, 4], 2, "SAME"),
    ),
    "avg_pool": (IMAGE, lambda h: tf.nn.avg_pool(h, 2, 2, "SAME")),
    "avg_pool1d": ((2, 8, 3), lambda h: tf.nn.avg_pool1d(h, 2, 2, "SAME")),
    "avg_pool2d": (IMAGE, lambda h: tf.nn.avg_pool2d(h, 2, 2, "SAME")),
    "avg_pool3d": (VOLUME, lambda h: tf.nn.avg_pool3d(h, 2, 2, "SAME")),
    "batch_norm_with_global_normalization": (
        IMAGE,
        lambda h: tf.nn.batch_norm_with_global_normalization(
            h, *tf.nn.moments(h, [0, 1, 2]), _fixed(3), _fixed(3), 1e-3, True
        ),
    ),
    "batch_normalization": (
        ROWS,
        lambda h: tf.nn.batch_normalization(h, *tf.nn.moments(h, [0]), _fixed(16), _fixed(16), 1e-3),
    ),
    "bias_add": (ROWS, lambda h: tf.nn.bias_add(h, _fixed(16))),
    "compute_average_loss": ((64,), lambda h: tf.nn.compute_average_loss(tf.square(h), global_batch_size=64)),
    "conv1d": ((2, 8, 3), lambda h: tf.nn.conv1d(h, _fixed(3, 3, 4), 1, "SAME")),
    "conv1d_transpose": ((2, 8, 3), lambda h: tf.nn.conv1d_transpose(h, _fixed(3, 4, 3), [2, 16, 4], 2)),
    "conv2d": (IMAGE, lambda h: tf.nn.conv2d(h, _fixed(3, 3, 3, 4), 1, "SAME")),
    "conv2d_transpose": (IMAGE, lambda h: tf.nn.conv2d_transpose(h, _fixed(3, 3, 4, 3), [2, 16, 16, 4], 2)),
    "conv3d": (VOLUME, lambda h: tf.nn.conv3d(h, _fixed(2, 2, 2, 3, 4), [1] * 5, "SAME")),
    "conv3d_transpose": (
        VOLUME,
        lambda h: tf.nn.conv3d_transpose(h, _fixed(2, 2, 2, 4, 3), [2, 8, 8, 8, 4], [1, 2, 2, 2, 1]),
    ),
    "conv_transpose": (IMAGE, lambda h: tf.nn.conv_transpose(h, _fixed(3, 3, 4, 3), [2, 16, 16, 4], 2)),
    "convolution": (IMAGE, lambda h: tf.nn.convolution(h, _fixed(3, 3, 3, 4))),
    "ctc_loss": (
        (8, 2, 6),
        lambda h: tf.nn.ctc_loss(
            tf.constant([[1, 2], [3, 1]]), h, tf.constant([2, 2]), tf.constant([8, 8]), blank_index=0
        ),
    ),
    "depth_to_space": ((2, 4, 4, 4), lambda h: tf.nn.depth_to_space(h, 2)),
    "depthwise_conv2d": (IMAGE, lambda h: tf.nn.depthwise_conv2d(h, _fixed(3, 3, 3, 2), [1] * 4, "SAME")),
    "depthwise_conv2d_backprop_filter": (
        IMAGE,
        lambda h: tf.nn.depthwise_conv2d_backprop_filter(h, [3, 3, 3, 1], tf.tanh(h), [1] * 4, "SAME"),
    ),
    "depthwise_conv2d_backprop_input": (
        IMAGE,
        lambda h: tf.nn.depthwise_conv2d_backprop_input([2, 8, 8, 3], _fixed(3, 3, 3, 1), h, [1] * 4, "SAME"),
    ),
    "dilation2d": (IMAGE, lambda h: tf.nn.dilation2d(h, _fixed(3, 3, 3), [1] * 4, "SAME", "NHWC", [1] * 4)),
    "dropout": (ROWS, lambda h: tf.nn.dropout(h, 0.3, seed=3)),
    "embedding_lookup": (ROWS, lambda h: tf.nn.embedding_lookup(h, tf.constant([0, 3, 3, 3, 7, 1]))),
    "embedding_lookup_sparse": (
        ROWS,
        lambda h: tf.nn.embedding_lookup_sparse(
            h, tf.sparse.from_dense(tf.constant([[1, 3, 4], [2, 7, 0]])), None, combiner="mean"
        ),
    ),
    "erosion2d": (IMAGE, lambda h: tf.nn.erosion2d(h, _fixed(3, 3, 3), [1] * 4, "SAME", "NHWC", [1] * 4)),
    "fractional_avg_pool": (IMAGE, lambda h: tf.nn.fractional_avg_pool(h, [1.0, 1.5, 1.5, 1.0], seed=3)[0]),
    "fractional_max_pool": (IMAGE, lambda h: tf.nn.fractional_max_pool(h, [1.0, 1.5, 1.5, 1.0], seed=3)[0]),
    "local_response_normalization": (IMAGE, lambda h: tf.nn.local_response_normalization(h)),
    "lrn": (IMAGE, lambda h: tf.nn.lrn(h)),
    "max_pool": (IMAGE, lambda h: tf.nn.max_pool(h, 2, 2, "SAME")),
    "max_pool1d": ((2, 8, 3), lambda h: tf.nn.max_pool1d(h, 2, 2, "SAME")),
    "max_pool2d": (IMAGE, lambda h: tf.nn.max_pool2d(h, 2, 2, "SAME")),
    "max_pool3d": (VOLUME, lambda h: tf.nn.max_pool3d(h, 2, 2, "SAME")),
    "max_pool_with_argmax": (IMAGE, lambda h: tf.nn.max_pool_with_argmax(h, 2, 2, "SAME")[0]),
    "moments": (ROWS, lambda h: tf.nn.moments(h, [0])),
    "nce_loss": (
        ROWS,
        lambda h: tf.nn.nce_loss(
            _fixed(20, 16),
            _fixed(20),
            tf.cast(_labels()[:, None], tf.int64),
            h,
            4,
            20,
            sampled_values=_sampled(),
        ),
    ),
    "normalize_moments": (
        ROWS,
        lambda h: tf.nn.normalize_moments(8.0, tf.reduce_sum(h, 0), tf.reduce_sum(h * h, 0), None),
    ),
    "pool": (IMAGE, lambda h: tf.nn.pool(h, [2, 2], "AVG", [2, 2])),
    "safe_embedding_lookup_sparse": (
        ROWS,
        lambda h: tf.nn.safe_embedding_lookup_sparse(h, tf.sparse.from_dense(tf.constant([[1, 3, 4], [2, 7, 0]]))),
    ),
    "sampled_softmax_loss": (
        ROWS,
        lambda h: tf.nn.sampled_softmax_loss(
            _fixed(20, 16),
            _fixed(20),
            tf.cast(_labels()[:, None], tf.int64),
            h,
            4,
            20,
            sampled_values=_sampled(),
        ),
    ),
    "separable_conv2d": (
        IMAGE,
        lambda h: tf.nn.separable_conv2d(h, _fixed(3, 3, 3, 2), _fixed(1, 1, 6, 4), [1] * 4, "SAME"),
    ),
    "sigmoid_cross_entropy_with_logits": (
        ROWS,
        lambda h: tf.nn.sigmoid_cross_entropy_with_logits(labels=_chance(_fixed(8, 16)), logits=h),
    ),
    "softmax_cross_entropy_with_logits": (
        ROWS,
        lambda h: tf.nn.softmax_cross_entropy_with_logits(_chance(_fixed(8, 16)), h),
    ),
    "space_to_batch": (IMAGE, lambda h: tf.nn.space_to_batch(h, [2, 2], [[0, 0], [0, 0]])),
    "space_to_depth": (IMAGE, lambda h: tf.nn.space_to_depth(h, 2)),
    "sparse_softmax_cross_entropy_with_logits": (
        ROWS,
        lambda h: tf.nn.sparse_softmax_cross_entropy_with_logits(_labels(), h),
    ),
    "sufficient_statistics": (ROWS, lambda h: tf.nn.sufficient_statistics(h, [0])[1:3]),
    "weighted_cross_entropy_with_logits": (
        ROWS,
        lambda h: tf.nn.weighted_cross_entropy_with_logits(_chance(_fixed(8, 16)), h, 3.0),
    ),
    "weighted_moments": (ROWS, lambda h: tf.nn.weighted_moments(h, [0], _chance(_fixed(8, 16)))),
    "with_space_to_batch": (
        IMAGE,
        lambda h: tf.nn.with_space_to_batch(
            h, [2, 2], "SAME", lambda part, *_: tf.nn.conv2d(part, _fixed(3, 3, 3, 4), 1, "VALID"), [3, 3], [1, 2]
        ),
    ),
}


def _sampled() -> Any:
    return (tf.constant([1, 5, 9, 13], tf.int64), tf.fill([8, 1], 0.4), tf.fill([4], 0.3))


LINALG: dict[str, tuple[Shape, Call]] = {
    "band_part": (SQUARE, lambda h: tf.linalg.band_part(h, 1, 2)),
    "banded_triangular_solve": (
        (2, 2, 6),
        lambda h: tf.linalg.banded_triangular_solve(h + tf.constant([[4.0], [0.0]]), _fixed(2, 6, 3)),
    ),
    "cholesky": (SQUARE, lambda h: tf.linalg.cholesky(_positive_definite(h))),
    "cholesky_solve": (
        SQUARE,
        lambda h: tf.linalg.cholesky_solve(tf.linalg.cholesky(_positive_definite(h)), _fixed(4, 6, 3)),
    ),
    "cross": ((8, 3), lambda h: tf.linalg.cross(h, tf.roll(h, 1, 0))),
    "eig": (SQUARE, lambda h: tf.linalg.eigvals(_positive_definite(h))),
    "eigh": (SQUARE, lambda h: tf.linalg.eigh(_positive_definite(h))[0]),
    "eigh_tridiagonal": ((2, 6), lambda h: tf.linalg.eigh_tridiagonal(h[0], h[1, :5])),
    "eigvalsh": (SQUARE, lambda h: tf.linalg.eigvalsh(_positive_definite(h))),
    "einsum": (SQUARE, lambda h: tf.linalg.einsum("bij,bkj->bik", h, tf.tanh(h))),
    "expm": (SQUARE, lambda h: tf.linalg.expm(h)),
    "global_norm": (ROWS, lambda h: tf.linalg.global_norm([h, tf.tanh(h)])),
    "logdet": (SQUARE, lambda h: tf.linalg.logdet(_positive_definite(h))),
    "logm": (SQUARE, lambda h: tf.linalg.logm(_complex(_positive_definite(h)))),
    "lstsq": (SQUARE, lambda h: tf.linalg.lstsq(h, _fixed(4, 6, 3), l2_regularizer=0.1)),
    "lu": (SQUARE, lambda h: tf.linalg.lu(h + 4 * tf.eye(6))[0]),
    "lu_matrix_inverse": (SQUARE, lambda h: tf.linalg.lu_matrix_inverse(*_factors(h))),
    "lu_reconstruct": (SQUARE, lambda h: tf.linalg.lu_reconstruct(*_factors(h))),
    "lu_solve": (SQUARE, lambda h: tf.linalg.lu_solve(*_factors(h), _fixed(4, 6, 3))),
    "matvec": (SQUARE, lambda h: tf.linalg.matvec(h, h[:, 0])),
    "pinv": (SQUARE, lambda h: tf.linalg.pinv(h + 4 * tf.eye(6))),
    "set_diag": (SQUARE, lambda h: tf.linalg.set_diag(h, tf.tanh(h[:, 0]))),
    "slogdet": (SQUARE, lambda h: tf.linalg.slogdet(_positive_definite(h))[1]),
    "solve": (SQUARE, lambda h: tf.linalg.solve(h + 4 * tf.eye(6), _fixed(4, 6, 3))),
    "sqrtm": (SQUARE, lambda h: tf.linalg.sqrtm(_positive_definite(h))),
    "svd": (SQUARE, lambda h: tf.linalg.svd(h, compute_uv=False)),
    "tensor_diag": ((6,), lambda h: tf.linalg.tensor_diag(h)),
    "tensor_diag_part": ((6, 6), lambda h: tf.linalg.tensor_diag_part(h)),
    "tensordot": (ROWS, lambda h: tf.linalg.tensordot(h, tf.tanh(h), [[1], [1]])),
    "triangular_solve": (SQUARE, lambda h: tf.linalg.triangular_solve(h + 4 * tf.eye(6), _fixed(4, 6, 3))),
    "tridiagonal_matmul": ((2, 3, 6), lambda h: tf.linalg.tridiagonal_matmul(h, _fixed(2, 6, 3))),
    "tridiagonal_solve": (
        (2, 3, 6),
        lambda h: tf.linalg.tridiagonal_solve(h + tf.constant([[0.0], [4.0], [0.0]]), _fixed(2, 6, 3)),
    ),
}
MATH: dict[str, tuple[Shape, Call]] = {
    "accumulate_n": (ROWS, lambda h: tf.math.accumulate_n([h, tf.tanh(h), h * h])),
    "add_n": (ROWS, lambda h: tf.math.add_n([h, tf.tanh(h), h * h])),
    "betainc": (
        ROWS,
        lambda h: tf.math.betainc(tf.fill([8, 16], 1.5), tf.fill([8, 16], 2.5), tf.sigmoid(h)),
    ),
    "igamma": (ROWS, lambda h: tf.math.igamma(tf.fill([8, 16], 1.5), tf.abs(h))),
    "igammac": (ROWS, lambda h: tf.math.igammac(tf.fill([8, 16], 1.5), tf.abs(h))),
    "lbeta": (ROWS, lambda h: tf.math.lbeta(tf.abs(h) + 0.1)),
    "polygamma": (ROWS, lambda h: tf.math.polygamma(tf.ones([8, 16]), tf.abs(h) + 0.1)),
    "polyval": (ROWS, lambda h: tf.math.polyval([tf.constant(0.3), tf.constant(-1.2), tf.constant(0.7)], h)),
    "pow": (ROWS, lambda h: tf.math.pow(tf.abs(h) + 0.1, 2.5)),
    "reduce_logsumexp": (ROWS, lambda h: tf.math.reduce_logsumexp(h, 1)),
    "reduce_euclidean_norm": (ROWS, lambda h: tf.math.reduce_euclidean_norm(h, 1)),
    "scalar_mul": (ROWS, lambda h: tf.math.scalar_mul(0.3, h)),
    "segment_max": (ROWS, _segment(tf.math.segment_max)),
    "segment_mean": (ROWS, _segment(tf.math.segment_mean)),
    "segment_min": (ROWS, _segment(tf.math.segment_min)),
    "segment_prod": (ROWS, _segment(tf.math.segment_prod)),
    "segment_sum": (ROWS, _segment(tf.math.segment_sum)),
    "unsorted_segment_max": (ROWS, _unsorted(tf.math.unsorted_segment_max)),
    "unsorted_segment_mean": (ROWS, _unsorted(tf.math.unsorted_segment_mean)),
    "unsorted_segment_min": (ROWS, _unsorted(tf.math.unsorted_segment_min)),
    "unsorted_segment_prod": (ROWS, _unsorted(tf.math.unsorted_segment_prod)),
    "unsorted_segment_sqrt_n": (ROWS, _unsorted(tf.math.unsorted_segment_sqrt_n)),
    "unsorted_segment_sum": (ROWS, _unsorted(tf.math.unsorted_segment_sum)),
    "zeta": (ROWS, lambda h: tf.math.zeta(tf.fill([8, 16], 2.5), tf.abs(h) + 0.1)),
    "real": (ROWS, lambda h: tf.math.real(_complex(h))),
    "imag": (ROWS, lambda h: tf.math.imag(_complex(h))),
    "angle": (ROWS, lambda h: tf.math.angle(tf.complex(h, tf.roll(h, 1, 0)))),
    "top_k": (ROWS, lambda h: tf.math.top_k(h, 3)[0]),
}
EXPLICIT = {"nn": NN, "linalg": LINALG, "math": MATH}

_LEFT_OUT = {
    "is XLA's alone": "nn.approx_min_k math.approx_min_k nn.approx_max_k math.approx_max_k",
    "has no gradient: whole numbers, truth values, steps": """
        nn.all_candidate_sampler nn.collapse_repeated nn.compute_accidental_hits nn.ctc_beam_search_decoder
        nn.ctc_greedy_decoder nn.ctc_unique_labels nn.fixed_unigram_candidate_sampler nn.in_top_k
        nn.learned_unigram_candidate_sampler nn.zero_fraction linalg.matrix_rank math.argmax math.argmin math.bincount
        math.ceil math.confusion_matrix math.count_nonzero math.equal math.floor math.floordiv math.greater
        math.greater_equal math.in_top_k math.invert_permutation math.is_finite math.is_inf math.is_nan
        math.is_non_decreasing math.is_strictly_increasing math.less math.less_equal math.logical_and math.logical_not
        math.logical_or math.logical_xor math.not_equal math.reduce_all math.reduce_any math.rint math.round
        math.zero_fraction""",
    "reads no float tensor": "linalg.eye math.sobol_sample",
}
#: Functions that are no program here, and why.
LEFT_OUT = {name: why for why, names in _LEFT_OUT.items() for name in names.split()}
