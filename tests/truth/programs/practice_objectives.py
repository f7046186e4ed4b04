"""Objectives: what is made of a network's output before its gradient is taken."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.truth.programs.practice import Weights

Results = dict[str, Any]


def _classes(x: tf.Tensor, count: int) -> tf.Tensor:
    return tf.range(x.shape[0]) % count


def lovasz_hinge(w: Weights, x: tf.Tensor) -> Results:
    """Errors in order, by the growth of the Jaccard index."""
    logits = tf.reshape(w.perceptron(x, 4, "net"), [-1])
    labels = tf.cast(tf.range(logits.shape[0]) % 3 == 0, tf.float32)
    errors, order = tf.math.top_k(1.0 - logits * (2.0 * labels - 1.0), logits.shape[0])
    sorted_labels = tf.gather(labels, order)
    total = tf.reduce_sum(sorted_labels)
    left = total - tf.cumsum(sorted_labels)
    jaccard = 1.0 - left / (total + tf.cumsum(1.0 - sorted_labels))
    growth = tf.concat([jaccard[:1], jaccard[1:] - jaccard[:-1]], 0)
    return {"loss": tf.tensordot(tf.nn.relu(errors), tf.stop_gradient(growth), 1)}


def generalized_iou(w: Weights, x: tf.Tensor) -> Results:
    """Boxes in pixels of a large image."""
    middle, size = tf.split(800.0 * tf.sigmoid(w.perceptron(x, 4, "net")), 2, 1)
    low, high = middle - 0.5 * size, middle + 0.5 * size
    true_low, true_high = tf.constant([[300.0, 200.0]]), tf.constant([[520.0, 610.0]])
    overlap = tf.nn.relu(tf.minimum(high, true_high) - tf.maximum(low, true_low))
    both = overlap[:, 0] * overlap[:, 1]
    union = tf.reduce_prod(size, 1) + tf.reduce_prod(true_high - true_low, 1) - both
    hull = tf.reduce_prod(tf.maximum(high, true_high) - tf.minimum(low, true_low), 1)
    return {"loss": tf.reduce_mean(1.0 - both / union + (hull - union) / hull)}


def arc_face(w: Weights, x: tf.Tensor) -> Results:
    """A margin on the angle to the class."""
    features = tf.math.l2_normalize(w.perceptron(x, 24, "net"), 1)
    cosines = tf.matmul(features, tf.math.l2_normalize(w("classes", 24, 10), 0))
    angles = tf.acos(tf.clip_by_value(cosines, -1.0 + 1e-6, 1.0 - 1e-6))
    labels = tf.one_hot(_classes(x, 10), 10)
    logits = 30.0 * tf.cos(angles + 0.3 * labels)
    return {"loss": tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, logits)), "output": cosines}


def triplet_of_the_hardest(w: Weights, x: tf.Tensor) -> Results:
    points = w.perceptron(x, 16, "net")
    apart = tf.reduce_sum(tf.square(points[:, None] - points[None]), -1)
    alike = tf.equal(_classes(x, 4)[:, None], _classes(x, 4)[None])
    farthest = tf.reduce_max(tf.where(alike, apart, 0.0), 1)
    nearest = tf.reduce_min(tf.where(alike, 1e12, apart), 1)
    return {"loss": tf.reduce_mean(tf.nn.softplus(tf.sqrt(farthest + 1e-12) - tf.sqrt(nearest + 1e-12)))}


def normalized_temperature(w: Weights, x: tf.Tensor) -> Results:
    """Contrastive pairs, each against all others of both views."""
    first, second = (tf.math.l2_normalize(w.perceptron(view, 16, "net"), 1) for view in (x, 0.9 * x + 0.01))
    views = tf.concat([first, second], 0)
    count = views.shape[0]
    logits = tf.matmul(views, views, transpose_b=True) / 0.1 - 1e9 * tf.eye(count)
    pairs = (tf.range(count) + count // 2) % count
    return {"loss": tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(pairs, logits)), "output": views}


def barlow_twins(w: Weights, x: tf.Tensor) -> Results:
    def standardized(view: tf.Tensor) -> tf.Tensor:
        z = w.perceptron(view, 12, "net")
        return (z - tf.reduce_mean(z, 0)) / (tf.math.reduce_std(z, 0) + 1e-5)

    first, second = standardized(x), standardized(x * 1.1 + 0.05 * tf.sin(40.0 * x))
    correlation = tf.matmul(first, second, transpose_a=True) / float(x.shape[0])
    unlike = tf.square(correlation - tf.eye(12)) * (0.995 * tf.eye(12) + 0.005)
    return {"loss": tf.reduce_sum(unlike), "output": correlation}


def gaussian_likelihood(w: Weights, x: tf.Tensor) -> Results:
    mean, spread = tf.split(w.perceptron(x, 2, "net"), 2, 1)
    deviation = tf.nn.softplus(spread) + 1e-3
    target = tf.reduce_sum(x, 1, keepdims=True) * 0.2
    return {"loss": tf.reduce_mean(tf.math.log(deviation) + 0.5 * tf.square((target - mean) / deviation))}


def mixture_density(w: Weights, x: tf.Tensor) -> Results:
    logits, means, spreads = tf.split(w.perceptron(x, 15, "net"), 3, 1)
    target = tf.reduce_mean(x, 1, keepdims=True) * 3.0
    each = -0.5 * tf.square((target - means) * tf.exp(-spreads)) - spreads
    return {"loss": -tf.reduce_mean(tf.reduce_logsumexp(tf.nn.log_softmax(logits) + each, 1))}


def proportional_hazards(w: Weights, x: tf.Tensor) -> Results:
    """Cox: each risk against the risks of all who are still there."""
    risk = w.perceptron(x, 1, "net")[:, 0]
    still_there = tf.math.log(tf.cumsum(tf.exp(risk), reverse=True))
    return {"loss": -tf.reduce_mean(risk - still_there)}


def actor_and_critic(w: Weights, x: tf.Tensor) -> Results:
    logits, value = w.perceptron(x, 5, "actor"), w.perceptron(x, 1, "critic")[:, 0]
    returns = tf.cumsum(x[:, 0], reverse=True)
    advantage = tf.stop_gradient(returns - value)
    advantage = (advantage - tf.reduce_mean(advantage)) / (tf.math.reduce_std(advantage) + 1e-8)
    log_chances = tf.nn.log_softmax(logits)
    taken = tf.gather(log_chances, _classes(x, 5), batch_dims=1)
    entropy = -tf.reduce_sum(tf.exp(log_chances) * log_chances, 1)
    losses = -taken * advantage + 0.5 * tf.square(returns - value) - 0.01 * entropy
    return {"loss": tf.reduce_mean(losses)}


def listwise_ranking(w: Weights, x: tf.Tensor) -> Results:
    """ListMLE and an approximate NDCG."""
    scores = tf.reshape(w.perceptron(x, 1, "net"), [4, -1])
    gains = tf.reshape(tf.cast(tf.range(x.shape[0]) % 4, tf.float32), [4, -1])
    ranks = 0.5 + tf.reduce_sum(tf.sigmoid((scores[:, None] - scores[:, :, None]) / 0.1), 2)
    ndcg = tf.reduce_mean(tf.reduce_sum((tf.pow(2.0, gains) - 1.0) / tf.math.log(1.0 + ranks), 1))
    return {"loss": -ndcg, "output": ranks}


def connectionist_classes(w: Weights, x: tf.Tensor) -> Results:
    """CTC over a sequence."""
    logits = tf.reshape(w.perceptron(x, 24, "net"), [8, 8, 6])
    labels = tf.constant([[1, 2, 3]] * 8)
    return {"loss": tf.reduce_mean(tf.nn.ctc_loss(labels, logits, [3] * 8, [8] * 8, logits_time_major=False))}


def random_field(w: Weights, x: tf.Tensor) -> Results:
    """The likelihood of a linear chain, by the forward algorithm."""
    emissions = tf.reshape(w.perceptron(x, 20, "net"), [8, 8, 5])
    steps = w("steps", 5, 5)
    alpha, score = emissions[:, 0], emissions[:, 0, 0]
    for turn in range(1, 8):
        alpha = tf.reduce_logsumexp(alpha[:, :, None] + steps[None], 1) + emissions[:, turn]
        score += steps[(turn - 1) % 5, turn % 5] + emissions[:, turn, turn % 5]
    return {"loss": tf.reduce_mean(tf.reduce_logsumexp(alpha, 1) - score), "output": alpha}


def optimal_transport(w: Weights, x: tf.Tensor) -> Results:
    """Sinkhorn's iteration, in logarithms."""
    points, others = w.perceptron(x, 8, "net"), w("others", 16, 8)
    cost = tf.reduce_sum(tf.square(points[:, None] - others[None]), -1) / 0.5
    rows, columns = tf.zeros([16]), tf.zeros([16])
    for _ in range(10):
        rows = -tf.reduce_logsumexp(columns[None] - cost, 1)
        columns = -tf.reduce_logsumexp(rows[:, None] - cost, 0)
    plan = tf.exp(rows[:, None] + columns[None] - cost)
    return {"loss": tf.reduce_sum(plan * cost), "output": plan}


def gaussian_process(w: Weights, x: tf.Tensor) -> Results:
    """The marginal likelihood, on learned features."""
    z = w.perceptron(x, 4, "net")
    apart = tf.reduce_sum(tf.square(z[:, None] - z[None]), -1)
    factor = tf.linalg.cholesky(tf.exp(-0.5 * apart) + 0.1 * tf.eye(16))
    target = x[:, :1]
    solved = tf.linalg.triangular_solve(factor, target)
    return {"loss": 0.5 * tf.reduce_sum(tf.square(solved)) + tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))}


def style_and_variation(w: Weights, x: tf.Tensor) -> Results:
    """Gram matrices of features, and the total variation of the image."""
    image = tf.reshape(x, [2, 16, 16, 1])
    features = tf.nn.relu(w.convolution(tf.nn.relu(w.convolution(image, 8, "first")), 8, "second"))
    gram = tf.einsum("bijc,bijd->bcd", features, features) / 256.0
    variation = tf.reduce_sum(tf.image.total_variation(image))
    return {"loss": tf.reduce_sum(tf.square(gram - 0.1)) + 1e-3 * variation, "output": gram}
