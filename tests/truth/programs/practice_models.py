"""Models: blocks of networks, and what is computed with them."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tests.truth.programs.practice import Weights

Results = dict[str, Any]


def _end(y: tf.Tensor, **more: Any) -> Results:
    return {"loss": tf.reduce_mean(tf.square(y - 0.3)), "output": y, **more}


def _heads(w: Weights, x: tf.Tensor, name: str) -> tf.Tensor:
    """Of two sentences of eight words: (sentence, head, word, 8)."""
    words = tf.reshape(w.dense(x, 64, name), [2, 8, 8, 8])
    return tf.transpose(words, [0, 2, 1, 3])


def _attended(w: Weights, scores: tf.Tensor, values: tf.Tensor) -> Results:
    result = tf.transpose(tf.matmul(tf.nn.softmax(scores), values), [0, 2, 1, 3])
    return _end(w.dense(tf.reshape(result, [16, 64]), 8, "out"))


def switch_routing(w: Weights, x: tf.Tensor) -> Results:
    """One expert for each token, by a one-hot product, with a capacity."""
    gates = tf.nn.softmax(w.dense(x, 4, "gate"))
    best = tf.one_hot(tf.argmax(gates, 1), 4)
    places = tf.cumsum(best, exclusive=True) * best
    best *= tf.cast(places < 6.0, tf.float32)
    slots = best[:, :, None] * tf.one_hot(tf.cast(tf.reduce_sum(places, 1), tf.int32), 6)[:, None]
    inputs = tf.einsum("bes,bd->esd", slots, x)
    outputs = tf.matmul(tf.nn.relu(tf.matmul(inputs, w("in", 4, 32, 32))), w("out", 4, 32, 8))
    return _end(tf.einsum("bes,esd->bd", slots * tf.reduce_sum(gates * best, 1)[:, None, None], outputs))


def causal_rotary_attention(w: Weights, x: tf.Tensor) -> Results:
    angles = tf.range(8.0)[:, None] * 100.0 * tf.pow(10000.0, -tf.range(4.0) / 4.0)[None]

    def turned(words: tf.Tensor) -> tf.Tensor:
        a, b = tf.split(words, 2, -1)
        return tf.concat([a * tf.cos(angles) - b * tf.sin(angles), a * tf.sin(angles) + b * tf.cos(angles)], -1)

    queries, keys = turned(_heads(w, x, "q")), turned(_heads(w, x, "k"))
    mask = tf.linalg.band_part(tf.ones([8, 8]), -1, 0)
    scores = tf.matmul(queries, keys, transpose_b=True) / math.sqrt(8.0)
    return _attended(w, tf.where(mask > 0, scores, float("-inf")), _heads(w, x, "v"))


def linear_attention(w: Weights, x: tf.Tensor) -> Results:
    """Causal, with running sums of keys times values."""
    queries, keys = (tf.nn.elu(_heads(w, x, name)) + 1.0 for name in "qk")
    sums = tf.cumsum(tf.einsum("bhtd,bhte->bhtde", keys, _heads(w, x, "v")), 2)
    norms = tf.einsum("bhtd,bhtd->bht", queries, tf.cumsum(keys, 2))
    result = tf.einsum("bhtd,bhtde->bhte", queries, sums) / (norms[..., None] + 1e-6)
    return _end(w.dense(tf.reshape(tf.transpose(result, [0, 2, 1, 3]), [16, 64]), 8, "out"))


def gated_transformer_block(w: Weights, x: tf.Tensor) -> Results:
    """Root mean square norms, queries and keys normalized, a gated perceptron, scaled residuals."""

    def normed(y: tf.Tensor, name: str) -> tf.Tensor:
        size = tf.math.rsqrt(tf.reduce_mean(tf.square(y), -1, keepdims=True) + 1e-6)
        return y * size * w.bias(name, y.shape[-1], 1.0)

    y = normed(x, "norm1")
    queries, keys = (normed(_heads(w, y, name), f"norm {name}") for name in "qk")
    scores = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True) / math.sqrt(8.0))
    mixed = tf.transpose(tf.matmul(scores, _heads(w, y, "v")), [0, 2, 1, 3])
    x += w.bias("scale1", 32, 0.1) * w.dense(tf.reshape(mixed, [16, 64]), 32, "proj")
    y = normed(x, "norm2")
    x += w.bias("scale2", 32, 0.1) * w.dense(tf.nn.silu(w.dense(y, 64, "gate")) * w.dense(y, 64, "up"), 32, "down")
    return _end(w.dense(normed(x, "norm3"), 8, "head"))


def state_space(w: Weights, x: tf.Tensor) -> Results:
    """A diagonal recurrence with steps of its own, as in selective state spaces."""
    steps = tf.nn.softplus(w.dense(x, 8, "steps") - 3.0)
    decay = tf.exp(-steps * tf.exp(w.bias("log a", 8)))
    state, states = tf.zeros([8]), []
    for turn in range(16):
        state = decay[turn] * state + steps[turn] * w.dense(x, 8, "in")[turn]
        states.append(state)
    return _end(w.dense(tf.stack(states) * tf.nn.silu(w.dense(x, 8, "gate")), 4, "out"))


def normalizing_flow(w: Weights, x: tf.Tensor) -> Results:
    """Affine couplings; the likelihood counts the logarithms of scales."""
    z, log_volume = x, tf.zeros([16])
    for number in range(4):
        kept, moved = tf.split(z, 2, 1)
        scale, shift = tf.split(w.perceptron(kept, 32, f"coupling{number}"), 2, 1)
        log_scale = tf.tanh(scale)
        z = tf.concat([moved * tf.exp(log_scale) + shift, kept], 1)
        log_volume += tf.reduce_sum(log_scale, 1)
    likelihood = -0.5 * tf.reduce_sum(tf.square(z), 1) - 16.0 * math.log(2.0 * math.pi) + log_volume
    return {"loss": -tf.reduce_mean(likelihood), "output": z}


def ordinary_differential_equation(w: Weights, x: tf.Tensor) -> Results:
    """Runge and Kutta's method of fourth order."""

    def slope(y: tf.Tensor) -> tf.Tensor:
        return w.perceptron(y, 32, "field", tf.tanh)

    for _ in range(20):
        first = slope(x)
        second = slope(x + 0.025 * first)
        third = slope(x + 0.025 * second)
        x += 0.05 / 6.0 * (first + 2.0 * second + 2.0 * third + slope(x + 0.05 * third))
    return _end(x)


def physics_informed(w: Weights, x: tf.Tensor) -> Results:
    """The residual of u'' + u = 0, by two derivatives of the network."""
    place = x[:, :1]
    with tf.GradientTape() as outer:
        outer.watch(place)
        with tf.GradientTape() as inner:
            inner.watch(place)
            value = w.dense(tf.tanh(w.dense(tf.tanh(w.dense(place, 16, "a")), 16, "b")), 1, "c")
        slope = inner.gradient(value, place)
    bend = outer.gradient(slope, place)
    return {"loss": tf.reduce_mean(tf.square(bend + value)), "output": bend}


def radiance_field(w: Weights, x: tf.Tensor) -> Results:
    """Colours along rays, by what light is left."""
    frequencies = tf.pow(2.0, tf.range(6.0))
    angles = tf.reshape(x[:, :24], [16, 8, 3])[..., None] * frequencies
    points = tf.reshape(tf.concat([tf.sin(angles), tf.cos(angles)], -1), [16, 8, 36])
    density, colour = tf.split(w.perceptron(points, 4, "net", tf.nn.relu), [1, 3], -1)
    opacity = 1.0 - tf.exp(-tf.nn.relu(density[..., 0]) * 0.25)
    left = tf.math.cumprod(1.0 - opacity + 1e-10, 1, exclusive=True)
    return _end(tf.reduce_sum((opacity * left)[..., None] * tf.sigmoid(colour), 1), left=left)


def denoising_diffusion(w: Weights, x: tf.Tensor) -> Results:
    """A noise schedule, time as sines, the loss on the noise, and a step back."""
    times = tf.cast((tf.range(16) * 61) % 1000, tf.float32)
    kept = tf.gather(tf.math.cumprod(1.0 - tf.linspace(1e-4, 0.02, 1000)), tf.cast(times, tf.int32))[:, None]
    noise = tf.random.stateless_normal([16, 32], [1, 2])
    noisy = tf.sqrt(kept) * x + tf.sqrt(1.0 - kept) * noise
    angles = times[:, None] * tf.exp(-math.log(10000.0) * tf.range(8.0) / 8.0)
    told = w.perceptron(tf.concat([tf.sin(angles), tf.cos(angles)], 1), 32, "time", tf.nn.silu)
    guess = w.perceptron(noisy + told, 32, "net", tf.nn.silu)
    clean = (noisy - tf.sqrt(1.0 - kept) * guess) / tf.sqrt(kept)
    return {"loss": tf.reduce_mean(tf.square(guess - noise)), "output": tf.clip_by_value(clean, -1.0, 1.0)}


def vector_quantization(w: Weights, x: tf.Tensor) -> Results:
    """The nearest of a book of codes, with the gradient passed straight through."""
    z, codes = w.perceptron(x, 8, "encoder"), w("codes", 32, 8)
    apart = tf.reduce_sum(z * z, 1, keepdims=True) - 2.0 * tf.matmul(z, codes, transpose_b=True)
    apart += tf.reduce_sum(codes * codes, 1)[None]
    nearest = tf.gather(codes, tf.argmin(tf.stop_gradient(apart), 1))
    losses = tf.reduce_mean(tf.square(nearest - tf.stop_gradient(z)))
    losses += 0.25 * tf.reduce_mean(tf.square(tf.stop_gradient(nearest) - z))
    results = _end(w.perceptron(z + tf.stop_gradient(nearest - z), 32, "decoder"), apart=apart)
    return {**results, "loss": results["loss"] + losses}


def gumbel_choice(w: Weights, x: tf.Tensor) -> Results:
    chance = tf.random.stateless_uniform([16, 10], [3, 4], 1e-6, 1.0)
    soft = tf.nn.softmax((w.perceptron(x, 10, "net") - tf.math.log(-tf.math.log(chance))) / 0.5)
    hard = tf.one_hot(tf.argmax(soft, 1), 10)
    return _end(tf.matmul(soft + tf.stop_gradient(hard - soft), w("table", 10, 8)))


def factorization_machine(w: Weights, x: tf.Tensor) -> Results:
    factors = w("factors", 32, 8)
    pairs = tf.square(tf.matmul(x, factors)) - tf.matmul(tf.square(x), tf.square(factors))
    logits = w.dense(x, 1, "linear")[:, 0] + 0.5 * tf.reduce_sum(pairs, 1)
    labels = tf.cast(tf.range(16) % 2, tf.float32)
    return {"loss": tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)), "output": logits}


def capsules(w: Weights, x: tf.Tensor) -> Results:
    """Routing by agreement."""
    votes = tf.reshape(w.dense(x, 96, "votes"), [16, 4, 3, 8])
    logits = tf.zeros([16, 4, 3])
    for _ in range(3):
        total = tf.einsum("bij,bijd->bjd", tf.nn.softmax(logits), votes)
        square = tf.reduce_sum(tf.square(total), -1, keepdims=True)
        result = square / (1.0 + square) * total / tf.sqrt(square + 1e-7)
        logits += tf.einsum("bjd,bijd->bij", result, votes)
    return _end(tf.norm(result + 1e-9, axis=-1))


def graph_attention(w: Weights, x: tf.Tensor) -> Results:
    """Messages along edges, weighed by a softmax over each node's neighbours."""
    sources, targets = tf.range(48) % 16, (tf.range(48) * 7 + 3) % 16
    nodes = w.dense(x, 16, "nodes")
    pairs = tf.concat([tf.gather(nodes, sources), tf.gather(nodes, targets)], 1)
    scores = tf.nn.leaky_relu(w.dense(pairs, 1, "scores")[:, 0], 0.2)
    most = tf.math.unsorted_segment_max(scores, targets, 16)
    powers = tf.exp(scores - tf.gather(most, targets))
    weights = powers / (tf.gather(tf.math.unsorted_segment_sum(powers, targets, 16), targets) + 1e-9)
    messages = weights[:, None] * tf.gather(nodes, sources)
    return _end(w.dense(tf.math.unsorted_segment_sum(messages, targets, 16), 4, "out"))


def spatial_transformer(w: Weights, x: tf.Tensor) -> Results:
    """An image that is sampled where the network says, between its pixels."""
    image = tf.reshape(x, [2, 16, 16])
    move = 0.1 * tf.tanh(w.perceptron(tf.reshape(x, [2, 256])[:, ::8], 2, "net"))
    grid = tf.linspace(0.0, 15.0, 16)
    down = tf.clip_by_value(grid[None, :, None] + 10.0 * move[:, :1, None], 0.0, 14.999) + tf.zeros([2, 16, 16])
    right = tf.clip_by_value(grid[None, None] + 10.0 * move[:, 1:, None], 0.0, 14.999) + tf.zeros([2, 16, 16])
    top, left = tf.floor(down), tf.floor(right)
    result = tf.zeros([2, 16, 16])
    for row in (0, 1):
        for column in (0, 1):
            near = tf.stack([tf.cast(top, tf.int32) + row, tf.cast(left, tf.int32) + column], -1)
            weight = (1.0 - tf.abs(down - top - row)) * (1.0 - tf.abs(right - left - column))
            result += weight * tf.gather_nd(image, near, batch_dims=1)
    return _end(result)


def key_points(w: Weights, x: tf.Tensor) -> Results:
    """The expected place of each of four heat maps, in pixels."""
    heat = w.convolution(tf.nn.relu(w.convolution(tf.reshape(x, [2, 16, 16, 1]), 8, "first")), 4, "second")
    chances = tf.nn.softmax(4.0 * tf.reshape(heat, [2, 256, 4]), 1)
    places = tf.stack([tf.range(256) // 16, tf.range(256) % 16], 1)
    where = tf.einsum("bpk,pc->bkc", chances, 40.0 * tf.cast(places, tf.float32))
    return {"loss": tf.reduce_mean(tf.abs(where - 320.0)), "output": where}


def group_norm_and_standardized_filters(w: Weights, x: tf.Tensor) -> Results:
    filters = w("filter", 3, 3, 4, 8)
    mean, variance = tf.nn.moments(filters, [0, 1, 2], keepdims=True)
    y = w.convolution(tf.reshape(x, [2, 16, 16, 1]), 4, "stem")
    y = tf.reshape(tf.nn.conv2d(y, (filters - mean) * tf.math.rsqrt(variance + 1e-5), 1, "SAME"), [2, 16, 16, 2, 4])
    mean, variance = tf.nn.moments(y, [1, 2, 4], keepdims=True)
    y = tf.reshape((y - mean) * tf.math.rsqrt(variance + 1e-5), [2, 16, 16, 8])
    return _end(w.convolution(tf.nn.relu(y), 4, "out"))


def spectral_norm(w: Weights, x: tf.Tensor) -> Results:
    """A kernel divided by its largest singular value, by two turns of power iteration."""
    kernel, vector = w("kernel", 32, 16), tf.ones([1, 16]) / 4.0
    for _ in range(2):
        other = tf.math.l2_normalize(tf.matmul(vector, kernel, transpose_b=True))
        vector = tf.math.l2_normalize(tf.matmul(other, kernel))
    size = tf.matmul(tf.matmul(tf.stop_gradient(other), kernel), tf.stop_gradient(vector), transpose_b=True)
    return _end(w.dense(tf.nn.leaky_relu(tf.matmul(x, kernel / size)), 1, "out"), size=size)


def kalman_filter(w: Weights, x: tf.Tensor) -> Results:
    """A learned linear system that follows observations."""
    step = tf.eye(4) + 0.1 * w("step", 4, 4)
    look, mean, spread = w("look", 2, 4), tf.zeros([4, 1]), tf.eye(4)
    log_likelihood = tf.zeros([])
    for turn in range(16):
        mean, spread = step @ mean, step @ spread @ tf.transpose(step) + 0.01 * tf.eye(4)
        error = x[turn, :2, None] - look @ mean
        of_error = look @ spread @ tf.transpose(look) + 0.1 * tf.eye(2)
        gain = spread @ tf.transpose(look) @ tf.linalg.inv(of_error)
        log_likelihood -= tf.linalg.logdet(of_error) + tf.squeeze(
            tf.transpose(error) @ tf.linalg.solve(of_error, error)
        )
        mean, spread = mean + gain @ error, (tf.eye(4) - gain @ look) @ spread
    return {"loss": -0.5 * log_likelihood, "output": mean, "spread": spread}


def pointer_and_copy(w: Weights, x: tf.Tensor) -> Results:
    """A distribution over words, mixed with copies from the input."""
    words = tf.nn.softmax(w.perceptron(x, 20, "words"))
    looks = tf.nn.softmax(tf.matmul(w.dense(x, 16, "query"), w.dense(x, 16, "key"), transpose_b=True) / 4.0)
    copies = tf.matmul(looks, tf.one_hot(tf.range(16) % 20, 20))
    share = tf.sigmoid(w.dense(x, 1, "share"))
    mixed = share * words + (1.0 - share) * copies
    chosen = tf.gather(mixed, tf.range(16) % 20, batch_dims=1)
    return {"loss": -tf.reduce_mean(tf.math.log(chosen + 1e-10)), "output": mixed}


def hyperbolic_embedding(w: Weights, x: tf.Tensor) -> Results:
    """Distances in Poincare's ball."""
    points = 0.9 * tf.tanh(w.perceptron(x, 4, "net")) / 2.0
    squares = tf.reduce_sum(tf.square(points), 1)
    apart = tf.reduce_sum(tf.square(points[:, None] - points[None]), -1)
    argument = 1.0 + 2.0 * apart / ((1.0 - squares)[:, None] * (1.0 - squares)[None])
    return {"loss": tf.reduce_mean(tf.acosh(argument + 1e-5)), "output": argument}


def long_convolution(w: Weights, x: tf.Tensor) -> Results:
    """By Fourier transforms, as in global convolutions."""
    y = w.dense(x, 32, "in")
    waves = tf.signal.rfft(y, [64]) * tf.signal.rfft(w.bias("filter", 32), [64])
    return _end(w.dense(tf.signal.irfft(waves, [64])[:, :32], 4, "out"))
