"""Models and objectives as people write them.

None of them was looked at when a rule was made: they only judge.
"""

import math

import tensorflow as tf

from tests.truth.bench import mean_square
from tests.truth.models import ended, explained_and_volume, scores_of, squared_gaps, turned

# Objectives: what is made of a network's output before its gradient is taken.


def _classes(x, count):
    return tf.range(x.shape[0]) % count


def lovasz_hinge(w, x):
    """Errors in order, by the growth of the Jaccard index."""
    logits = tf.reshape(w.perceptron(x, 4, "net"), [-1])
    count = logits.shape[0]
    is_positive = tf.range(count) % 3 == 0
    labels = tf.cast(is_positive, tf.float32)
    signs = 2.0 * labels - 1.0
    errors, order = tf.math.top_k(1.0 - logits * signs, count)
    sorted_labels = tf.gather(labels, order)
    total = tf.reduce_sum(sorted_labels)
    left = total - tf.cumsum(sorted_labels)
    union = total + tf.cumsum(1.0 - sorted_labels)
    jaccard = 1.0 - left / union
    growth = tf.concat([jaccard[:1], jaccard[1:] - jaccard[:-1]], 0)
    hinges = tf.nn.relu(errors)
    weights = tf.stop_gradient(growth)
    return {"loss": tf.tensordot(hinges, weights, 1)}


def arc_face(w, x):
    """A margin on the angle to the class."""
    features = tf.math.l2_normalize(w.perceptron(x, 24, "net"), 1)
    centres = tf.math.l2_normalize(w("classes", 24, 10), 0)
    cosines = tf.matmul(features, centres)
    clipped = tf.clip_by_value(cosines, -1.0 + 1e-6, 1.0 - 1e-6)
    angles = tf.acos(clipped)
    labels = tf.one_hot(_classes(x, 10), 10)
    logits = 30.0 * tf.cos(angles + 0.3 * labels)
    losses = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
    return {"loss": tf.reduce_mean(losses), "output": cosines}


def triplet_of_the_hardest(w, x):
    apart = squared_gaps(w.perceptron(x, 16, "net"))
    alike = tf.equal(_classes(x, 4)[:, None], _classes(x, 4)[None])
    farthest = tf.reduce_max(tf.where(alike, apart, 0.0), 1)
    nearest = tf.reduce_min(tf.where(alike, 1e12, apart), 1)
    margins = tf.sqrt(farthest + 1e-12) - tf.sqrt(nearest + 1e-12)
    losses = tf.nn.softplus(margins)
    return {"loss": tf.reduce_mean(losses)}


def normalized_temperature(w, x):
    """Contrastive pairs, each against all others of both views."""
    first, second = (
        tf.math.l2_normalize(w.perceptron(view, 16, "net"), 1) for view in (x, 0.9 * x + 0.01)
    )
    views = tf.concat([first, second], 0)
    count = views.shape[0]
    similarities = tf.matmul(views, views, transpose_b=True) / 0.1
    logits = similarities - 1e9 * tf.eye(count)
    pairs = (tf.range(count) + count // 2) % count
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(pairs, logits)
    return {"loss": tf.reduce_mean(losses), "output": views}


def mixture_density(w, x):
    logits, means, spreads = tf.split(w.perceptron(x, 15, "net"), 3, 1)
    target = tf.reduce_mean(x, 1, keepdims=True) * 3.0
    standardized = (target - means) * tf.exp(-spreads)
    each = -0.5 * tf.square(standardized) - spreads
    joint = tf.nn.log_softmax(logits) + each
    likelihoods = tf.reduce_logsumexp(joint, 1)
    return {"loss": -tf.reduce_mean(likelihoods)}


def proportional_hazards(w, x):
    """Cox: each risk against the risks of all who are still there."""
    risk = w.perceptron(x, 1, "net")[:, 0]
    hazards = tf.cumsum(tf.exp(risk), reverse=True)
    still_there = tf.math.log(hazards)
    return {"loss": -tf.reduce_mean(risk - still_there)}


def listwise_ranking(w, x):
    """ListMLE and an approximate NDCG."""
    scores = tf.reshape(w.perceptron(x, 1, "net"), [4, -1])
    grades = tf.cast(tf.range(x.shape[0]) % 4, tf.float32)
    gains = tf.reshape(grades, [4, -1])
    gaps = scores[:, None] - scores[:, :, None]
    is_above = tf.sigmoid(gaps / 0.1)
    ranks = 0.5 + tf.reduce_sum(is_above, 2)
    discounted = (tf.pow(2.0, gains) - 1.0) / tf.math.log(1.0 + ranks)
    ndcg = tf.reduce_mean(tf.reduce_sum(discounted, 1))
    return {"loss": -ndcg, "output": ranks}


def connectionist_classes(w, x):
    """CTC over a sequence."""
    logits = tf.reshape(w.perceptron(x, 24, "net"), [8, 8, 6])
    labels = tf.constant([[1, 2, 3]] * 8)
    label_lengths = [3] * 8
    logit_lengths = [8] * 8
    losses = tf.nn.ctc_loss(labels, logits, label_lengths, logit_lengths, logits_time_major=False)
    return {"loss": tf.reduce_mean(losses)}


def gaussian_process(w, x):
    """The marginal likelihood, on learned features."""
    z = w.perceptron(x, 4, "net")
    kernel = tf.exp(-0.5 * squared_gaps(z)) + 0.1 * tf.eye(16)
    explained, volume = explained_and_volume(kernel, x[:, :1])
    return {"loss": explained + volume}


# Models: blocks of networks, and what is computed with them.


def _heads(w, x, name):
    """Returns the heads of two sentences of eight words: (sentence, head, word, 8)."""
    words = tf.reshape(w.dense(x, 64, name), [2, 8, 8, 8])
    return tf.transpose(words, [0, 2, 1, 3])


def _attended(w, scores, values):
    weights = tf.nn.softmax(scores)
    result = tf.transpose(tf.matmul(weights, values), [0, 2, 1, 3])
    words = tf.reshape(result, [16, 64])
    return ended(w.dense(words, 8, "out"))


def switch_routing(w, x):
    """One expert for each token, by a one-hot product, with a capacity."""
    gates = tf.nn.softmax(w.dense(x, 4, "gate"))
    best = tf.one_hot(tf.argmax(gates, 1), 4)
    places = tf.cumsum(best, exclusive=True) * best
    best *= tf.cast(places < 6.0, tf.float32)
    chosen = best[:, :, None]
    numbers = tf.cast(tf.reduce_sum(places, 1), tf.int32)
    slots = chosen * tf.one_hot(numbers, 6)[:, None]
    inputs = tf.einsum("bes,bd->esd", slots, x)
    hidden = tf.nn.relu(tf.matmul(inputs, w("in", 4, 32, 32)))
    outputs = tf.matmul(hidden, w("out", 4, 32, 8))
    chances = tf.reduce_sum(gates * best, 1)
    combined = slots * chances[:, None, None]
    return ended(tf.einsum("bes,esd->bd", combined, outputs))


def causal_rotary_attention(w, x):
    places = tf.range(8.0)[:, None] * 100.0
    rates = tf.pow(10000.0, -tf.range(4.0) / 4.0)
    angles = places * rates[None]

    queries = turned(_heads(w, x, "q"), angles)
    keys = turned(_heads(w, x, "k"), angles)
    mask = tf.linalg.band_part(tf.ones([8, 8]), -1, 0)
    masked = tf.where(mask > 0, scores_of(queries, keys), float("-inf"))
    return _attended(w, masked, _heads(w, x, "v"))


def gated_transformer_block(w, x):
    """Root mean square norms, queries and keys normalized, a gated perceptron, scaled residuals."""

    def normed(y, name):
        squares = tf.reduce_mean(tf.square(y), -1, keepdims=True)
        size = tf.math.rsqrt(squares + 1e-6)
        return y * size * w.bias(name, y.shape[-1], 1.0)

    y = normed(x, "norm1")
    queries, keys = (normed(_heads(w, y, name), f"norm {name}") for name in "qk")
    chances = tf.nn.softmax(scores_of(queries, keys))
    mixed = tf.transpose(tf.matmul(chances, _heads(w, y, "v")), [0, 2, 1, 3])
    scale = w.bias("scale1", 32, 0.1)
    x += scale * w.dense(tf.reshape(mixed, [16, 64]), 32, "proj")
    y = normed(x, "norm2")
    scale = w.bias("scale2", 32, 0.1)
    gate = tf.nn.silu(w.dense(y, 64, "gate"))
    hidden = gate * w.dense(y, 64, "up")
    x += scale * w.dense(hidden, 32, "down")
    y = normed(x, "norm3")
    return ended(w.dense(y, 8, "head"))


def state_space(w, x):
    """A diagonal recurrence with steps of its own, as in selective state spaces."""
    steps = tf.nn.softplus(w.dense(x, 8, "steps") - 3.0)
    exponents = -steps * tf.exp(w.bias("log a", 8))
    decay = tf.exp(exponents)
    state = tf.zeros([8])
    states = []
    for turn in range(16):
        kept = decay[turn] * state
        state = kept + steps[turn] * w.dense(x, 8, "in")[turn]
        states.append(state)
    stacked = tf.stack(states)
    gated = stacked * tf.nn.silu(w.dense(x, 8, "gate"))
    return ended(w.dense(gated, 4, "out"))


def ordinary_differential_equation(w, x):
    """Runge and Kutta's method of fourth order."""

    def slope(y):
        return w.perceptron(y, 32, "field", tf.tanh)

    for _ in range(20):
        first = slope(x)
        second = slope(x + 0.025 * first)
        third = slope(x + 0.025 * second)
        mixed = first + 2.0 * second + 2.0 * third + slope(x + 0.05 * third)
        x += 0.05 / 6.0 * mixed
    return ended(x)


def physics_informed(w, x):
    """The residual of u'' + u = 0, by two derivatives of the network."""
    place = x[:, :1]
    with tf.GradientTape() as outer:
        outer.watch(place)
        with tf.GradientTape() as inner:
            inner.watch(place)
            first = tf.tanh(w.dense(place, 16, "a"))
            second = tf.tanh(w.dense(first, 16, "b"))
            value = w.dense(second, 1, "c")
        slope = inner.gradient(value, place)
    bend = outer.gradient(slope, place)
    return {"loss": mean_square(bend + value), "output": bend}


def denoising_diffusion(w, x):
    """A noise schedule, time as sines, the loss on the noise, and a step back."""
    times = tf.cast((tf.range(16) * 61) % 1000, tf.float32)
    schedule = tf.math.cumprod(1.0 - tf.linspace(1e-4, 0.02, 1000))
    kept = tf.gather(schedule, tf.cast(times, tf.int32))[:, None]
    noise = tf.random.stateless_normal([16, 32], [1, 2])
    noisy = tf.sqrt(kept) * x + tf.sqrt(1.0 - kept) * noise
    columns = times[:, None]
    rates = tf.exp(-math.log(10000.0) * tf.range(8.0) / 8.0)
    angles = columns * rates
    waves = tf.concat([tf.sin(angles), tf.cos(angles)], 1)
    told = w.perceptron(waves, 32, "time", tf.nn.silu)
    guess = w.perceptron(noisy + told, 32, "net", tf.nn.silu)
    signal = noisy - tf.sqrt(1.0 - kept) * guess
    clean = signal / tf.sqrt(kept)
    loss = mean_square(guess - noise)
    return {"loss": loss, "output": tf.clip_by_value(clean, -1.0, 1.0)}


def vector_quantization(w, x):
    """The nearest of a book of codes, with the gradient passed straight through."""
    z = w.perceptron(x, 8, "encoder")
    codes = w("codes", 32, 8)
    sizes = tf.reduce_sum(z * z, 1, keepdims=True)
    apart = sizes - 2.0 * tf.matmul(z, codes, transpose_b=True)
    apart += tf.reduce_sum(codes * codes, 1)[None]
    nearest = tf.gather(codes, tf.argmin(tf.stop_gradient(apart), 1))
    losses = mean_square(nearest - tf.stop_gradient(z))
    losses += 0.25 * mean_square(tf.stop_gradient(nearest) - z)
    passed = z + tf.stop_gradient(nearest - z)
    decoded = w.perceptron(passed, 32, "decoder")
    results = ended(decoded, apart=apart)
    results["loss"] += losses
    return results


def gumbel_choice(w, x):
    chance = tf.random.stateless_uniform([16, 10], [3, 4], 1e-6, 1.0)
    logits = w.perceptron(x, 10, "net")
    noisy = logits - tf.math.log(-tf.math.log(chance))
    soft = tf.nn.softmax(noisy / 0.5)
    hard = tf.one_hot(tf.argmax(soft, 1), 10)
    choice = soft + tf.stop_gradient(hard - soft)
    return ended(tf.matmul(choice, w("table", 10, 8)))


def graph_attention(w, x):
    """Messages along edges, weighed by a softmax over each node's neighbours."""
    sources = tf.range(48) % 16
    targets = (tf.range(48) * 7 + 3) % 16
    nodes = w.dense(x, 16, "nodes")
    pairs = tf.concat([tf.gather(nodes, sources), tf.gather(nodes, targets)], 1)
    logits = w.dense(pairs, 1, "scores")[:, 0]
    scores = tf.nn.leaky_relu(logits, 0.2)
    most = tf.math.unsorted_segment_max(scores, targets, 16)
    powers = tf.exp(scores - tf.gather(most, targets))
    totals = tf.math.unsorted_segment_sum(powers, targets, 16)
    weights = powers / (tf.gather(totals, targets) + 1e-9)
    messages = weights[:, None] * tf.gather(nodes, sources)
    received = tf.math.unsorted_segment_sum(messages, targets, 16)
    return ended(w.dense(received, 4, "out"))


def spatial_transformer(w, x):
    """An image that is sampled where the network says, between its pixels."""
    image = tf.reshape(x, [2, 16, 16])
    thinned = tf.reshape(x, [2, 256])[:, ::8]
    move = 0.1 * tf.tanh(w.perceptron(thinned, 2, "net"))
    grid = tf.linspace(0.0, 15.0, 16)
    rows = grid[None, :, None] + 10.0 * move[:, :1, None]
    down = tf.clip_by_value(rows, 0.0, 14.999) + tf.zeros([2, 16, 16])
    columns = grid[None, None] + 10.0 * move[:, 1:, None]
    right = tf.clip_by_value(columns, 0.0, 14.999) + tf.zeros([2, 16, 16])
    top = tf.floor(down)
    left = tf.floor(right)
    result = tf.zeros([2, 16, 16])
    for row in (0, 1):
        for column in (0, 1):
            near_row = tf.cast(top, tf.int32) + row
            near_column = tf.cast(left, tf.int32) + column
            near = tf.stack([near_row, near_column], -1)
            row_weight = 1.0 - tf.abs(down - top - row)
            weight = row_weight * (1.0 - tf.abs(right - left - column))
            result += weight * tf.gather_nd(image, near, batch_dims=1)
    return ended(result)


def hyperbolic_embedding(w, x):
    """Distances in Poincare's ball."""
    points = 0.9 * tf.tanh(w.perceptron(x, 4, "net")) / 2.0
    squares = tf.reduce_sum(tf.square(points), 1)
    doubled = 2.0 * squared_gaps(points)
    space = (1.0 - squares)[:, None] * (1.0 - squares)[None]
    argument = 1.0 + doubled / space
    distances = tf.acosh(argument + 1e-5)
    return {"loss": tf.reduce_mean(distances), "output": argument}
