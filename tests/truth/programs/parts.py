"""Plain programs of which each is wrong as soon as one part of a rule is left out."""

import math

import numpy as np
import tensorflow as tf

from tests.truth.bench import mean_square
from tests.truth.models import ended, judge_offset, size_of


def tides_by_their_phases(w, x):
    """Waves with learned phases, many turns after the start (absolute sizes)."""
    phases = 0.1 * w.perceptron(x, 16, "net") + w.bias("phases", 16, 40.0)
    waves = tf.sin(phases)
    return w.last(waves, waves=waves)


def gaps_to_anchors(bench):
    """How far places are from anchors, squared (squared differences)."""
    net = bench.weight(8, 16)
    last = bench.weight(16, 4)
    centre = tf.Variable(8.0 + 0.1 * bench.normal(16))
    anchors = tf.Variable(8.0 + 0.3 * bench.normal(16))

    def run(x):
        places = tf.nn.bias_add(0.3 * tf.matmul(x, net), centre)
        return tf.matmul(tf.math.squared_difference(places, anchors), last)

    bench.judge(run, lambda: (bench.normal(64, 8),))


def attention_less_attention(w, x):
    """Differential attention of nearly even weights (differences behind a softmax)."""
    first, second, keys = (tf.matmul(x, w(name, 32, 8)) for name in "abk")
    one = tf.nn.softmax(0.02 * tf.matmul(first, keys, transpose_b=True))
    other = tf.nn.softmax(0.02 * tf.matmul(second, keys, transpose_b=True))
    left = 50.0 * (one - other)
    return w.last(tf.matmul(left, w.dense(x, 8, "values")), left=left)


def softplus_less_its_start(w, x):
    """A smooth hinge of small values, moved to zero (differences behind a softplus)."""
    y = 30.0 * (tf.nn.softplus(0.05 * w.perceptron(x, 16, "net")) - math.log(2.0))
    return w.last(y, y=y)


def heights_above_an_ellipsoid(w, x):
    """What a root of a sum of scaled squares leaves of a number (sizes)."""
    points = tf.constant([3.0, 4.0, 12.0]) + 0.05 * w.perceptron(x, 3, "net")
    stretched = tf.square(points) * tf.constant([0.5, 0.25, 0.125])
    height = tf.sqrt(tf.reduce_sum(stretched, 1)) - 5.15
    return ended(10.0 * height, 1.0)


def sizes_of_bounded_points(w, x):
    """The sizes of neighbours that a tanh keeps in a cube (sizes behind a bounded function)."""
    steps = 0.02 * w.perceptron(x, 3, "net")
    sizes = size_of(tf.tanh(w.bias("places", 3, 0.5) + steps))
    return ended(100.0 * (sizes[1:] - sizes[:-1]), 1.0)


def chance_that_none_fails(w, x):
    """The product of 64 chances, each near one (long products)."""
    chances = tf.sigmoid(w.perceptron(x, 64, "net") - 6.0)
    none = tf.reduce_prod(1.0 - chances, 1, keepdims=True)
    return w.last(none * x[:, :4], none=none)


def weighted_rows_and_a_layer(bench):
    """A covariance of rows that are weighted, which a layer reads, too (what a decomposition needs
    of factors).
    """
    net = bench.weight(8, 4)
    gate = bench.weight(8, 1)
    last = bench.weight(4, 4)

    def run(x):
        near = tf.matmul(x, net)
        rows = tf.reduce_sum(near, 1, keepdims=True) + 0.01 * near
        weighted = tf.sigmoid(tf.matmul(x, gate)) * rows
        covariance = tf.matmul(rows, weighted, transpose_a=True) / 64.0
        factor = tf.linalg.cholesky(covariance + 1e-4 * tf.eye(4))
        return {"factor": factor, "output": tf.matmul(weighted, last)}

    bench.judge(run, lambda: (bench.normal(64, 8),))


def trains_that_are_late(bench):
    """Times that a network moves are compared with the timetable's (arguments as exact values)."""
    net = bench.weight(8, 4)
    last = bench.weight(4, 4)

    def run(times, facts):
        times += tf.matmul(facts, net)
        late = tf.cast(times > 5000.0, tf.float32)
        return tf.matmul(late, last) + tf.matmul(times / 5000.0, last)

    bench.judge(run, lambda: (5000.0 + bench.normal(64, 4), bench.normal(64, 8)))


def pressures_in_pascals(bench):
    """A network's pressures above the air's, for whoever asks and for the next layer (great
    constants that are added).
    """
    judge_offset(bench, "above", 500.0, 101325.0)


def memory_that_fades(bench):
    """A stored mean that decays, which the next product uses at once (updates that scale)."""
    net = bench.weight(8, 8)
    last = bench.weight(8, 4)
    memory = tf.Variable(1.0 + bench.normal(64, 8))

    def run(x):
        seen = tf.tanh(tf.matmul(x, net))
        new = 0.999 * memory + 0.001 * seen
        memory.assign(new)
        return tf.matmul(new, last)

    step = bench.function(run)
    for _ in range(60):
        step(bench.normal(64, 8))
    bench.note("1", "memory", memory.read_value())


def state_that_a_loop_moves(w, x):
    """A network's result moves by small steps in a loop (values that come back)."""
    kernel = w("field", 16, 16)

    def body(turn, state):
        return turn + 1, state + 2e-3 * tf.tanh(tf.matmul(state, kernel))

    start = w.dense(x, 16, "in")
    _, state = tf.while_loop(lambda turn, _: turn < 200, body, [0, start])
    return w.last(state, state=state)


def shares_of_squares(bench):
    """A robust weight, by a square that is written as a product (range)."""
    net = bench.weight(8, 8)
    last = bench.weight(8, 4)

    def run(x):
        y = 300.0 * tf.matmul(x, net)
        squares = y * y
        return tf.matmul(squares / (squares + 1e4), last)

    bench.judge(run, lambda: (bench.normal(64, 8),))


def small_rows_in_a_great_loss(w, x):
    """Rows of small numbers, divided by their size; a loss in thousands, as a loss scale makes it
    (gradients of roots).
    """
    y = 1e-2 * w.dense(x, 16, "net")
    size = tf.reduce_mean(tf.square(y), 1, keepdims=True)
    found = w.last(y * tf.math.rsqrt(size + 1e-6))
    return {"loss": 1e3 * found["loss"], "output": found["output"]}


def biases_of_many_rows(w, x):
    """The gradient of a bias, which 8,192 rows share (bias gradients)."""
    rows = tf.tile(x, [512, 1])
    first = tf.nn.bias_add(tf.matmul(rows, w("first", 32, 16)), w.bias("first bias", 16))
    product = tf.matmul(tf.nn.relu(first), w("second", 16, 4))
    return {"loss": mean_square(tf.nn.bias_add(product, w.bias("second bias", 4)) - 0.3)}


def words_that_are_picked_often(w, x):
    """Sixteen words, each in 512 places of a text (sums in 16 bit)."""
    words = tf.reshape(w.dense(x, 16, "words"), [4, 4, 16])
    numbers = np.arange(8192)
    places = tf.constant(np.stack([numbers % 4, numbers // 4 % 4], 1), tf.int32)
    picked = tf.gather_nd(words, places)
    return {"loss": mean_square(tf.matmul(picked, w("kernel", 16, 4)) - 0.3)}


def shade_of_pictures(w, x):
    """The mean of 1,024 pixels, by a pooling (sums in 16 bit)."""
    pixels = tf.sigmoid(w.dense(x, 1024, "net"))
    pictures = tf.reshape(pixels, [16, 32, 32, 1])
    shade = tf.reshape(tf.nn.avg_pool2d(pictures, 32, 32, "VALID"), [16, 1])
    return w.last(shade, shade=shade)


def returns_of_a_table_of_prices(w, x):
    """A loss of the returns of predicted prices, of which a slice is a table (values passed through
    by two nodes).
    """
    prices = tf.reshape(100.0 + w.perceptron(x, 1, "net")[:, 0], [4, 4])
    returns = prices[:, 1:] / prices[:, :-1] - 1.0
    spread = tf.math.reduce_std(returns)
    return {"loss": -tf.reduce_mean(returns) / (spread + 1e-4), "output": returns}


def batch_of_equal_rows(bench):
    """Equal rows of some hundreds, normalized by the batch with an epsilon that float16 holds
    (factors of batches).
    """
    net = bench.weight(8, 8)
    last = bench.weight(8, 4)
    beta = tf.Variable(bench.normal(8))
    gamma = tf.Variable(1.0 + 0.1 * bench.normal(8))

    def run(x):
        values = 200.0 * tf.matmul(x, net)
        mean, variance = tf.nn.moments(values, axes=[0])
        normed = tf.nn.batch_normalization(values, mean, variance, beta, gamma, 1e-6)
        return tf.matmul(normed, last)

    bench.judge(run, lambda: (np.repeat(bench.normal(1, 8), 64, 0),))


def likelihood_in_a_compiled_function(bench):
    """Chances near one, whose logarithms a function takes that XLA compiles (calls that compute no
    product).
    """
    weight = bench.weight(8, 4)

    @tf.function(jit_compile=True)
    def likelihood_of(chances, bits):
        there = bits * tf.math.log(chances + 1e-7)
        absent = (1.0 - bits) * tf.math.log(1.0 - chances + 1e-7)
        return tf.reduce_mean(there + absent)

    def run(x, bits):
        logits = 3.0 * tf.matmul(x, weight) + 4.0
        return likelihood_of(tf.sigmoid(logits), bits)

    def make():
        bits = bench.normal(64, 4) > 0.0
        return bench.normal(64, 8), bits.astype(np.float32)

    bench.judge(run, make)
