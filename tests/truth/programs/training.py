"""Hand-written training: accumulation, scaled losses, second order, per-example gradients."""

import functools

import tensorflow as tf

from tests.truth.bench import Program, mean_square, title_of

_ROWS = 32
_WIDTH = 16
_STEPS = 6


class Net:
    """Three dense layers."""

    def __init__(self, bench):
        self.weights = []
        self.biases = []
        for number, width in enumerate((_WIDTH, _WIDTH, 4)):
            self.weights.append(bench.weight(_WIDTH, width, name=f"w{number}"))
            self.biases.append(tf.Variable(tf.zeros(width), name=f"b{number}"))
        self.variables = [*self.weights, *self.biases]

    def __call__(self, x):
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = tf.matmul(x, weight) + bias
            if number < 2:
                x = tf.tanh(x)
        return x

    def loss(self, x, y):
        return mean_square(self(x) - y)

    def gradients(self, x, y, scale=1.0):
        with tf.GradientTape() as tape:
            loss = scale * self.loss(x, y)
        gradients = tape.gradient(loss, self.variables)
        return loss, gradients

    def descend(self, gradients, rate=0.05):
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.assign_sub(rate * gradient)


def _numbered(gradients):
    return {f"gradient {number}": gradient for number, gradient in enumerate(gradients)}


def _scaled(scale, net, x, y):
    loss, gradients = net.gradients(x, y, scale)
    net.descend(gradients, 0.05 / scale)
    return {"loss": loss, **_numbered(gradients)}


def _unscaled_by_hand(scale, net, x, y):
    """A loss scale of the program's own: the gradients of the scaled loss are representable, the
    unscaled ones not.
    """
    with tf.GradientTape() as tape:
        loss = 1e-7 * net.loss(x, y)
        scaled = loss * scale
    scaled_gradients = tape.gradient(scaled, net.variables)
    gradients = [gradient / scale for gradient in scaled_gradients]
    net.descend(gradients, 0.05e7)
    return {"loss": loss, **_numbered(gradients)}


def _accumulated_in_loop(net, x, y):
    def turn(part, *totals):
        _, gradients = net.gradients(x[part : part + 1], y[part : part + 1])
        sums = [total + gradient for total, gradient in zip(totals, gradients, strict=True)]
        return part + 1, *sums

    start = [tf.constant(0), *map(tf.zeros_like, net.variables)]
    _, *totals = tf.while_loop(lambda part, *_: part < _ROWS, turn, start)
    net.descend([total / 32.0 for total in totals])
    return _numbered(totals)


def _gradient_penalty(net, x, y):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            score = tf.reduce_sum(net(x))
        slopes = inner.gradient(score, x)
        norms = tf.norm(slopes, axis=1)
        loss = net.loss(x, y) + 10.0 * mean_square(norms - 1.0)
    gradients = outer.gradient(loss, net.variables)
    net.descend(gradients, 1e-3)
    return {"loss": loss, "metric penalty": tf.reduce_mean(norms)}


def _per_example(net, x, y):
    """Each example's gradient, clipped, as private training does."""

    def clipped(row, label):
        _, gradients = net.gradients(row[None], label[None])
        return tf.clip_by_global_norm(gradients, 0.1)[0]

    each = tf.vectorized_map(lambda pair: clipped(*pair), (x, y))
    net.descend([tf.reduce_mean(gradient, 0) for gradient in each])
    return _numbered(each)


SCALES = (1e-7, 1e-5, 1e-3, 1e3, 1e5)


def programs():
    steps = {
        title_of(step): step for step in (_accumulated_in_loop, _gradient_penalty, _per_example)
    }
    for scale in SCALES:
        steps[f"loss x {scale:g}"] = functools.partial(_scaled, scale)
    for scale in (2.0**10, 2.0**20):
        steps[f"unscaled by hand {scale:g}"] = functools.partial(_unscaled_by_hand, scale)
    for name, step in steps.items():
        yield Program(f"training/{name}", functools.partial(_train, step))


def _train(step, bench):
    net = Net(bench)
    before = [variable.numpy() for variable in net.variables]
    run = bench.function(functools.partial(step, net))
    for _ in range(_STEPS):
        x = bench.normal(_ROWS, _WIDTH)
        y = bench.normal(_ROWS, 4)
        bench.note_all("1", run(tf.constant(x), tf.constant(y)))
    for variable, start in zip(net.variables, before, strict=True):
        bench.note("1", f"move of {variable.name}", variable.numpy() - start)
