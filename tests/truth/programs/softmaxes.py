"""Softmaxes and logarithms of sums of exponentials, of values with a large common part."""

import tensorflow as tf

from tests.truth.bench import mean_square
from tests.truth.models import scores_of


def _values(w, x, size, name, start=50.0):
    """Returns the values of a network that was trained for long: its last bias is large."""
    hidden = tf.nn.gelu(w.dense(x, 32, f"{name}/in"))
    kernel = w(f"{name}/kernel", 32, size)
    product = 0.1 * tf.matmul(hidden, kernel)
    return product + w.bias(f"{name}/bias", size, start)


def munchausen_policy(w, x):
    """Values over a temperature of 0.03, their log policy and the soft value."""
    values = _values(w, x, 5, "q")
    logs = 0.03 * tf.nn.log_softmax(values / 0.03)
    chances = tf.nn.softmax(values / 0.03)
    soft = tf.reduce_sum(chances * (values - logs), 1)
    rewards = x[:, 0]
    rewards += 0.9 * tf.clip_by_value(logs[:, 0], -1.0, 0.0)
    told = rewards + 0.99 * soft
    missed = tf.stop_gradient(told) - values[:, 1]
    loss = mean_square(missed + 0.1 * logs[:, 2])
    return {"loss": loss, "logs": logs}


def boltzmann_exploration(w, x):
    values = _values(w, x, 6, "q")
    chances = tf.nn.softmax(values * 20.0)
    embedded = tf.matmul(chances, w("actions", 6, 8))
    return {"loss": mean_square(embedded - 0.3), "output": chances}


def energies_with_an_offset(w, x):
    """The free energy of states whose energies are near 200."""
    energies = _values(w, x, 8, "energy", 200.0)
    free = -tf.reduce_logsumexp(-energies, 1)
    weights = tf.exp(free[:, None] - energies)
    loss = mean_square(free - 198.0) + mean_square(weights)
    return {"loss": loss, "weights": weights}


def log_weights_of_particles(w, x):
    """Log likelihoods, of many observations each, become weights by a softmax."""
    columns = _values(w, x, 1, "likelihood", -120.0)
    likelihoods = tf.transpose(columns)
    weights = tf.nn.softmax(likelihoods)
    mean = tf.matmul(weights, w.dense(x, 4, "particles"))
    return {"loss": mean_square(mean - 0.3), "weights": weights, "output": mean}


def attention_with_a_key_bias(w, x):
    """One bias for each key, all of which are large."""
    queries, keys, values = (w.dense(x, 8, name) for name in "qkv")
    weights = tf.nn.softmax(scores_of(queries, keys) + w.bias("keys", 16, 60.0))
    mixed = tf.matmul(weights, values)
    result = w.dense(mixed, 4, "out")
    return {"loss": mean_square(result - 0.3), "weights": weights}


def pooling_by_scores(w, x):
    """The scores of a sentence's words by a dense layer, whose bias no softmax sees."""
    words = tf.reshape(x, [2, 8, 32])
    scores = _values(w, words, 1, "scores", 80.0)[..., 0]
    weights = tf.nn.softmax(scores)[:, None]
    pooled = tf.matmul(weights, words)[:, 0]
    result = w.dense(pooled, 4, "out")
    return {"loss": mean_square(result - 0.3), "output": pooled}


def distillation(w, x):
    """The log chances of a student and of a teacher, at one temperature."""
    logits = _values(w, x, 10, "teacher", 30.0)
    teacher = tf.nn.log_softmax(logits / 0.2)
    logits = _values(w, x, 10, "student", -30.0)
    student = tf.nn.log_softmax(logits / 0.2)
    chances = tf.exp(tf.stop_gradient(teacher))
    apart = chances * (tf.stop_gradient(teacher) - student)
    divergences = tf.reduce_sum(apart, 1)
    return {"loss": tf.reduce_mean(divergences), "logs": student}


def routing_by_a_gate(w, x):
    """The share of each expert, where the gate's biases have drifted together."""
    logits = _values(w, x, 4, "gate", 40.0)
    shares = tf.nn.softmax(logits * 5.0)
    experts = tf.einsum("bd,edf->bef", x, w("experts", 4, 32, 6))
    weighed = shares[..., None] * tf.nn.relu(experts)
    mixed = tf.reduce_sum(weighed, 1)
    result = w.dense(mixed, 4, "out")
    return {"loss": mean_square(result - 0.3), "shares": shares}


def exploration_of_a_frozen_network(bench):
    """Values over a temperature, of a network whose weights are constants."""
    kernel = tf.constant(0.3 * bench.normal(8, 6))
    bias = tf.constant(50.0 + bench.normal(6))
    last = tf.constant(bench.normal(6, 4))

    def run(x):
        values = tf.matmul(x, kernel) + bias
        return tf.matmul(tf.nn.softmax(20.0 * values), last)

    bench.judge(run, lambda: (bench.normal(16, 8),))
