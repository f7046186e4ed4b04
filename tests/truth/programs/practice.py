"""Models and objectives as people write them.

None of them was looked at when a rule was made: they only judge.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys

import tensorflow as tf

from tests.truth.bench import Program, mean_square

_DRAWS = 3
_ROWS = 16
_WIDTH = 32


class Weights:
    """Variables by name, made where they are first asked for."""

    def __init__(self, bench):
        self._bench = bench
        self.variables = {}

    def __call__(self, name, *shape):
        if name not in self.variables:
            self.variables[name] = self._bench.weight(*shape, name=name)
        return self.variables[name]

    def bias(self, name, size, start=0.0):
        if name not in self.variables:
            self.variables[name] = tf.Variable(
                self._bench.normal(size, scale=0.1) + start, name=name
            )
        return self.variables[name]

    def dense(self, x, size, name):
        """A product and a bias, over the last axis."""
        result = tf.tensordot(x, self(f"{name}/kernel", x.shape[-1], size), 1)
        return result + self.bias(f"{name}/bias", size)

    def convolution(self, x, channels, name, size=3):
        return tf.nn.conv2d(x, self(f"{name}/filter", size, size, x.shape[-1], channels), 1, "SAME")

    def perceptron(self, x, size, name, activation=tf.nn.gelu):
        """Two dense layers."""
        return self.dense(
            activation(self.dense(x, 2 * x.shape[-1], f"{name}/in")), size, f"{name}/out"
        )


def programs():
    return models_in(__name__)


def models_in(module):
    """A program for each function of a module that takes weights and inputs: it trains that
    model.
    """
    group = module.rpartition(".")[-1]
    found = sys.modules[module]
    for name, model in inspect.getmembers(found, inspect.isfunction):
        parameters = [*inspect.signature(model).parameters]
        if parameters == ["w", "x"] and not name.startswith("_"):
            yield Program(f"{group}/{name.replace('_', ' ')}", functools.partial(_train, model))


def _train(model, bench):
    """Trains a model once: its results, its loss, and the gradients are outputs."""
    weights = Weights(bench)
    model(weights, tf.constant(bench.normal(_ROWS, _WIDTH)))

    @bench.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = model(weights, x)
        return results, tape.gradient(results["loss"], {**weights.variables, "x": x})

    for _ in range(_DRAWS):
        results, gradients = step(tf.constant(bench.normal(_ROWS, _WIDTH)))
        for name, value in results.items():
            bench.note("1", name, value)
        bench.note_gradients("1", gradients)


# Objectives: what is made of a network's output before its gradient is taken.


def _classes(x, count):
    return tf.range(x.shape[0]) % count


def lovasz_hinge(w, x):
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


def arc_face(w, x):
    """A margin on the angle to the class."""
    features = tf.math.l2_normalize(w.perceptron(x, 24, "net"), 1)
    cosines = tf.matmul(features, tf.math.l2_normalize(w("classes", 24, 10), 0))
    angles = tf.acos(tf.clip_by_value(cosines, -1.0 + 1e-6, 1.0 - 1e-6))
    labels = tf.one_hot(_classes(x, 10), 10)
    logits = 30.0 * tf.cos(angles + 0.3 * labels)
    return {
        "loss": tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, logits)),
        "output": cosines,
    }


def triplet_of_the_hardest(w, x):
    points = w.perceptron(x, 16, "net")
    apart = tf.reduce_sum(tf.square(points[:, None] - points[None]), -1)
    alike = tf.equal(_classes(x, 4)[:, None], _classes(x, 4)[None])
    farthest = tf.reduce_max(tf.where(alike, apart, 0.0), 1)
    nearest = tf.reduce_min(tf.where(alike, 1e12, apart), 1)
    return {
        "loss": tf.reduce_mean(tf.nn.softplus(tf.sqrt(farthest + 1e-12) - tf.sqrt(nearest + 1e-12)))
    }


def normalized_temperature(w, x):
    """Contrastive pairs, each against all others of both views."""
    first, second = (
        tf.math.l2_normalize(w.perceptron(view, 16, "net"), 1) for view in (x, 0.9 * x + 0.01)
    )
    views = tf.concat([first, second], 0)
    count = views.shape[0]
    logits = tf.matmul(views, views, transpose_b=True) / 0.1 - 1e9 * tf.eye(count)
    pairs = (tf.range(count) + count // 2) % count
    return {
        "loss": tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(pairs, logits)),
        "output": views,
    }


def mixture_density(w, x):
    logits, means, spreads = tf.split(w.perceptron(x, 15, "net"), 3, 1)
    target = tf.reduce_mean(x, 1, keepdims=True) * 3.0
    each = -0.5 * tf.square((target - means) * tf.exp(-spreads)) - spreads
    return {"loss": -tf.reduce_mean(tf.reduce_logsumexp(tf.nn.log_softmax(logits) + each, 1))}


def proportional_hazards(w, x):
    """Cox: each risk against the risks of all who are still there."""
    risk = w.perceptron(x, 1, "net")[:, 0]
    still_there = tf.math.log(tf.cumsum(tf.exp(risk), reverse=True))
    return {"loss": -tf.reduce_mean(risk - still_there)}


def listwise_ranking(w, x):
    """ListMLE and an approximate NDCG."""
    scores = tf.reshape(w.perceptron(x, 1, "net"), [4, -1])
    gains = tf.reshape(tf.cast(tf.range(x.shape[0]) % 4, tf.float32), [4, -1])
    ranks = 0.5 + tf.reduce_sum(tf.sigmoid((scores[:, None] - scores[:, :, None]) / 0.1), 2)
    ndcg = tf.reduce_mean(tf.reduce_sum((tf.pow(2.0, gains) - 1.0) / tf.math.log(1.0 + ranks), 1))
    return {"loss": -ndcg, "output": ranks}


def connectionist_classes(w, x):
    """CTC over a sequence."""
    logits = tf.reshape(w.perceptron(x, 24, "net"), [8, 8, 6])
    labels = tf.constant([[1, 2, 3]] * 8)
    return {
        "loss": tf.reduce_mean(
            tf.nn.ctc_loss(labels, logits, [3] * 8, [8] * 8, logits_time_major=False)
        )
    }


def gaussian_process(w, x):
    """The marginal likelihood, on learned features."""
    z = w.perceptron(x, 4, "net")
    apart = tf.reduce_sum(tf.square(z[:, None] - z[None]), -1)
    factor = tf.linalg.cholesky(tf.exp(-0.5 * apart) + 0.1 * tf.eye(16))
    target = x[:, :1]
    solved = tf.linalg.triangular_solve(factor, target)
    return {
        "loss": 0.5 * tf.reduce_sum(tf.square(solved))
        + tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
    }


# Models: blocks of networks, and what is computed with them.


def _end(y, **more):
    return {"loss": mean_square(y - 0.3), "output": y, **more}


def _heads(w, x, name):
    """Returns the heads of two sentences of eight words: (sentence, head, word, 8)."""
    words = tf.reshape(w.dense(x, 64, name), [2, 8, 8, 8])
    return tf.transpose(words, [0, 2, 1, 3])


def _attended(w, scores, values):
    result = tf.transpose(tf.matmul(tf.nn.softmax(scores), values), [0, 2, 1, 3])
    return _end(w.dense(tf.reshape(result, [16, 64]), 8, "out"))


def switch_routing(w, x):
    """One expert for each token, by a one-hot product, with a capacity."""
    gates = tf.nn.softmax(w.dense(x, 4, "gate"))
    best = tf.one_hot(tf.argmax(gates, 1), 4)
    places = tf.cumsum(best, exclusive=True) * best
    best *= tf.cast(places < 6.0, tf.float32)
    slots = best[:, :, None] * tf.one_hot(tf.cast(tf.reduce_sum(places, 1), tf.int32), 6)[:, None]
    inputs = tf.einsum("bes,bd->esd", slots, x)
    outputs = tf.matmul(tf.nn.relu(tf.matmul(inputs, w("in", 4, 32, 32))), w("out", 4, 32, 8))
    return _end(
        tf.einsum("bes,esd->bd", slots * tf.reduce_sum(gates * best, 1)[:, None, None], outputs)
    )


def causal_rotary_attention(w, x):
    angles = tf.range(8.0)[:, None] * 100.0 * tf.pow(10000.0, -tf.range(4.0) / 4.0)[None]

    def turned(words):
        a, b = tf.split(words, 2, -1)
        return tf.concat(
            [a * tf.cos(angles) - b * tf.sin(angles), a * tf.sin(angles) + b * tf.cos(angles)], -1
        )

    queries = turned(_heads(w, x, "q"))
    keys = turned(_heads(w, x, "k"))
    mask = tf.linalg.band_part(tf.ones([8, 8]), -1, 0)
    scores = tf.matmul(queries, keys, transpose_b=True) / math.sqrt(8.0)
    return _attended(w, tf.where(mask > 0, scores, float("-inf")), _heads(w, x, "v"))


def gated_transformer_block(w, x):
    """Root mean square norms, queries and keys normalized, a gated perceptron, scaled residuals."""

    def normed(y, name):
        size = tf.math.rsqrt(tf.reduce_mean(tf.square(y), -1, keepdims=True) + 1e-6)
        return y * size * w.bias(name, y.shape[-1], 1.0)

    y = normed(x, "norm1")
    queries, keys = (normed(_heads(w, y, name), f"norm {name}") for name in "qk")
    scores = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True) / math.sqrt(8.0))
    mixed = tf.transpose(tf.matmul(scores, _heads(w, y, "v")), [0, 2, 1, 3])
    x += w.bias("scale1", 32, 0.1) * w.dense(tf.reshape(mixed, [16, 64]), 32, "proj")
    y = normed(x, "norm2")
    x += w.bias("scale2", 32, 0.1) * w.dense(
        tf.nn.silu(w.dense(y, 64, "gate")) * w.dense(y, 64, "up"), 32, "down"
    )
    return _end(w.dense(normed(x, "norm3"), 8, "head"))


def state_space(w, x):
    """A diagonal recurrence with steps of its own, as in selective state spaces."""
    steps = tf.nn.softplus(w.dense(x, 8, "steps") - 3.0)
    decay = tf.exp(-steps * tf.exp(w.bias("log a", 8)))
    state = tf.zeros([8])
    states = []
    for turn in range(16):
        state = decay[turn] * state + steps[turn] * w.dense(x, 8, "in")[turn]
        states.append(state)
    return _end(w.dense(tf.stack(states) * tf.nn.silu(w.dense(x, 8, "gate")), 4, "out"))


def ordinary_differential_equation(w, x):
    """Runge and Kutta's method of fourth order."""

    def slope(y):
        return w.perceptron(y, 32, "field", tf.tanh)

    for _ in range(20):
        first = slope(x)
        second = slope(x + 0.025 * first)
        third = slope(x + 0.025 * second)
        x += 0.05 / 6.0 * (first + 2.0 * second + 2.0 * third + slope(x + 0.05 * third))
    return _end(x)


def physics_informed(w, x):
    """The residual of u'' + u = 0, by two derivatives of the network."""
    place = x[:, :1]
    with tf.GradientTape() as outer:
        outer.watch(place)
        with tf.GradientTape() as inner:
            inner.watch(place)
            value = w.dense(tf.tanh(w.dense(tf.tanh(w.dense(place, 16, "a")), 16, "b")), 1, "c")
        slope = inner.gradient(value, place)
    bend = outer.gradient(slope, place)
    return {"loss": mean_square(bend + value), "output": bend}


def denoising_diffusion(w, x):
    """A noise schedule, time as sines, the loss on the noise, and a step back."""
    times = tf.cast((tf.range(16) * 61) % 1000, tf.float32)
    kept = tf.gather(
        tf.math.cumprod(1.0 - tf.linspace(1e-4, 0.02, 1000)), tf.cast(times, tf.int32)
    )[:, None]
    noise = tf.random.stateless_normal([16, 32], [1, 2])
    noisy = tf.sqrt(kept) * x + tf.sqrt(1.0 - kept) * noise
    angles = times[:, None] * tf.exp(-math.log(10000.0) * tf.range(8.0) / 8.0)
    told = w.perceptron(tf.concat([tf.sin(angles), tf.cos(angles)], 1), 32, "time", tf.nn.silu)
    guess = w.perceptron(noisy + told, 32, "net", tf.nn.silu)
    clean = (noisy - tf.sqrt(1.0 - kept) * guess) / tf.sqrt(kept)
    return {
        "loss": mean_square(guess - noise),
        "output": tf.clip_by_value(clean, -1.0, 1.0),
    }


def vector_quantization(w, x):
    """The nearest of a book of codes, with the gradient passed straight through."""
    z = w.perceptron(x, 8, "encoder")
    codes = w("codes", 32, 8)
    apart = tf.reduce_sum(z * z, 1, keepdims=True) - 2.0 * tf.matmul(z, codes, transpose_b=True)
    apart += tf.reduce_sum(codes * codes, 1)[None]
    nearest = tf.gather(codes, tf.argmin(tf.stop_gradient(apart), 1))
    losses = mean_square(nearest - tf.stop_gradient(z))
    losses += 0.25 * mean_square(tf.stop_gradient(nearest) - z)
    results = _end(w.perceptron(z + tf.stop_gradient(nearest - z), 32, "decoder"), apart=apart)
    return {**results, "loss": results["loss"] + losses}


def gumbel_choice(w, x):
    chance = tf.random.stateless_uniform([16, 10], [3, 4], 1e-6, 1.0)
    soft = tf.nn.softmax((w.perceptron(x, 10, "net") - tf.math.log(-tf.math.log(chance))) / 0.5)
    hard = tf.one_hot(tf.argmax(soft, 1), 10)
    return _end(tf.matmul(soft + tf.stop_gradient(hard - soft), w("table", 10, 8)))


def graph_attention(w, x):
    """Messages along edges, weighed by a softmax over each node's neighbours."""
    sources = tf.range(48) % 16
    targets = (tf.range(48) * 7 + 3) % 16
    nodes = w.dense(x, 16, "nodes")
    pairs = tf.concat([tf.gather(nodes, sources), tf.gather(nodes, targets)], 1)
    scores = tf.nn.leaky_relu(w.dense(pairs, 1, "scores")[:, 0], 0.2)
    most = tf.math.unsorted_segment_max(scores, targets, 16)
    powers = tf.exp(scores - tf.gather(most, targets))
    weights = powers / (
        tf.gather(tf.math.unsorted_segment_sum(powers, targets, 16), targets) + 1e-9
    )
    messages = weights[:, None] * tf.gather(nodes, sources)
    return _end(w.dense(tf.math.unsorted_segment_sum(messages, targets, 16), 4, "out"))


def spatial_transformer(w, x):
    """An image that is sampled where the network says, between its pixels."""
    image = tf.reshape(x, [2, 16, 16])
    move = 0.1 * tf.tanh(w.perceptron(tf.reshape(x, [2, 256])[:, ::8], 2, "net"))
    grid = tf.linspace(0.0, 15.0, 16)
    down = tf.clip_by_value(grid[None, :, None] + 10.0 * move[:, :1, None], 0.0, 14.999) + tf.zeros(
        [2, 16, 16]
    )
    right = tf.clip_by_value(grid[None, None] + 10.0 * move[:, 1:, None], 0.0, 14.999) + tf.zeros(
        [2, 16, 16]
    )
    top = tf.floor(down)
    left = tf.floor(right)
    result = tf.zeros([2, 16, 16])
    for row in (0, 1):
        for column in (0, 1):
            near = tf.stack([tf.cast(top, tf.int32) + row, tf.cast(left, tf.int32) + column], -1)
            weight = (1.0 - tf.abs(down - top - row)) * (1.0 - tf.abs(right - left - column))
            result += weight * tf.gather_nd(image, near, batch_dims=1)
    return _end(result)


def hyperbolic_embedding(w, x):
    """Distances in Poincare's ball."""
    points = 0.9 * tf.tanh(w.perceptron(x, 4, "net")) / 2.0
    squares = tf.reduce_sum(tf.square(points), 1)
    apart = tf.reduce_sum(tf.square(points[:, None] - points[None]), -1)
    argument = 1.0 + 2.0 * apart / ((1.0 - squares)[:, None] * (1.0 - squares)[None])
    return {"loss": tf.reduce_mean(tf.acosh(argument + 1e-5)), "output": argument}
