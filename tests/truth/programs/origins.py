"""Exact values that meet products: coordinates, times, phases, states and weights, to which a
network adds a little.
"""

import itertools

import tensorflow as tf

from tests.truth.bench import mean_square


class _Mlp:
    """Two dense layers."""

    def __init__(self, bench, *widths):
        self.weights = [bench.weight(*pair) for pair in itertools.pairwise(widths)]
        self.biases = [tf.Variable(bench.normal(width, scale=0.1)) for width in widths[1:]]

    def __call__(self, x):
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            product = tf.linalg.matmul(x, weight)
            x = tf.nn.bias_add(product, bias)
            if number + 1 < len(self.weights):
                x = tf.nn.relu(x)
        return x


def moved_positions(bench):
    """Particles 5 km from the origin, moved by a network; their distances go into the next one."""
    move = _Mlp(bench, 8, 16, 3)
    energy = _Mlp(bench, 3, 16, 1)

    def run(positions, features):
        with tf.GradientTape() as tape:
            moved = positions + 0.1 * move(features)
            gaps = moved[:, None] - moved[None]
            rows = tf.reshape(gaps, (-1, 3))
            out = energy(rows)
            loss = mean_square(out)
        return {"output": out, "gradient": tape.gradient(loss, move.weights[0])}

    bench.judge(run, lambda: (5000 + bench.normal(12, 3), bench.normal(12, 8)))


def times_beside_features(bench):
    embed = _Mlp(bench, 8, 7)
    out = _Mlp(bench, 8, 16, 2)

    def run(times, features):
        with tf.GradientTape() as tape:
            rows = tf.concat([times, embed(features)], 1)
            steps = rows[1:] - rows[:-1]
            y = out(steps)
            loss = mean_square(y)
        return {"output": y, "gradient": tape.gradient(loss, out.weights[0])}

    def make():
        gaps = tf.random.stateless_uniform((64, 1), (1, 3)).numpy()
        return bench.given(1000 + gaps.cumsum(0)), bench.normal(64, 8)

    bench.judge(run, make)


def carrier_phase(bench):
    offset = _Mlp(bench, 8, 16, 4)
    out = _Mlp(bench, 4, 2)

    def run(phase, features):
        waves = tf.sin(phase + offset(features))
        return {"output": out(waves)}

    bench.judge(run, lambda: (bench.normal(32, 4, scale=2000.0), bench.normal(32, 8)))


def fraction(bench):
    first = _Mlp(bench, 8, 32)
    out = _Mlp(bench, 32, 2)

    def run(x):
        y = 0.3 * first(x) + 7.3
        fraction = y - tf.floor(y)
        return {"output": out(fraction)}

    bench.judge(run, lambda: (bench.normal(32, 8),))


def two_stored_steps(bench):
    net = _Mlp(bench, 8, 16, 2)
    variables = [*net.weights, *net.biases]
    start = [tf.identity(variable) for variable in variables]

    def run(x, y):
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = mean_square(net(x) - y)
            gradients = tape.gradient(loss, variables)
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign(variable - 1e-4 * gradient)
        moves = [now - before for now, before in zip(variables, start, strict=True)]
        return {f"moved {number}": move for number, move in enumerate(moves)}

    bench.judge(run, lambda: (bench.normal(32, 8), bench.normal(32, 2)))


def average_over_steps(bench):
    """A slow running average, which the next layer gets as soon as it is stored; after a hundred
    calls.
    """
    first = _Mlp(bench, 8, 16)
    out = _Mlp(bench, 16, 2)
    average = tf.Variable(tf.ones(16))

    @bench.function
    def run(x):
        hidden = first(x)
        kept = 0.998 * average
        new = kept + 0.002 * tf.reduce_mean(hidden, 0)
        average.assign(new)
        return out(hidden - new)

    for _ in range(100):
        value = run(bench.normal(32, 8))
    bench.note("1", "output", value)
    bench.note("1", "average", average)


def survival(bench):
    """Survival over a hundred periods, of which each has a small hazard; what is left is discounted
    by a product.
    """
    first = _Mlp(bench, 8, 100)
    out = _Mlp(bench, 100, 2)

    def run(x):
        hazard = tf.sigmoid(first(x) - 7.0)
        survival = tf.math.cumprod(1.0 - hazard, 1)
        return {"output": out(1.0 - survival)}

    bench.judge(run, lambda: (bench.normal(32, 8),))


def residual_before_norm(bench):
    """Three branches of 30,000 each are beyond float16 together; the norm that follows takes that
    away.
    """
    branches = [_Mlp(bench, 8, 16) for _ in range(3)]
    out = _Mlp(bench, 16, 2)

    def run(x):
        h = sum(branch(x) for branch in branches)
        squares = tf.reduce_mean(tf.square(h), -1, keepdims=True)
        h *= tf.math.rsqrt(squares + 1e-6)
        return {"output": out(h)}

    bench.judge(run, lambda: (bench.normal(32, 8, scale=1.5e4),))
