"""Plain programs of which each is wrong as soon as one row of the painting is left out."""

import numpy as np
import tensorflow as tf

from tests.truth.bench import mean_square
from tests.truth.models import judge_offset, scores_of, turned

NOT_BY_XLA = ("places that are written as text",)


def latent_state_in_small_steps(w, x):
    """An encoder's state, which a network moves by fifty small steps (long sums)."""
    state = w.dense(x, 16, "encoder")
    for _ in range(50):
        state += 0.02 * tf.tanh(w.dense(state, 16, "field"))
    return w.last(state)


def mask_by_kinds(w, x):
    """Which kinds of words see each other is a table, which products pick from (range)."""
    numbers = tf.cast(3.0 * tf.sigmoid(x[:, 0]), tf.int32)
    kinds = tf.one_hot(numbers, 3)
    hidden = tf.constant([[0.0, 0.0, -1e9], [-1e9, 0.0, 0.0], [0.0, -1e9, 0.0]])
    hidden_kinds = tf.matmul(kinds, hidden)
    mask = tf.matmul(hidden_kinds, kinds, transpose_b=True)
    queries, keys, values = (w.dense(x, 8, name) for name in "qkv")
    weights = tf.nn.softmax(scores_of(queries, keys) + mask)
    return w.last(tf.matmul(weights, values))


def returns_of_prices(w, x):
    """A loss of the returns of predicted prices, on which the level that a bias adds has next to no
    effect; the network's one column is picked by a slice (values passed through).
    """
    prices = 100.0 + w.perceptron(x, 1, "net")[:, 0]
    returns = prices[1:] / prices[:-1] - 1.0
    spread = tf.math.reduce_std(returns)
    return {"loss": -tf.reduce_mean(returns) / (spread + 1e-4), "output": returns}


def ranks_by_gaps(w, x):
    """Orders a list by the gaps of scores, and pulls all scores a little to one half (values
    passed through).
    """
    scores = w.perceptron(x, 2, "net")[:, 1]
    gaps = scores[:, None] - scores[None]
    places = tf.range(16)
    is_before = places[:, None] < places[None]
    losses = tf.where(is_before, tf.nn.softplus(-4.0 * gaps), 0.0)
    pull = mean_square(scores - 0.5)
    return {"loss": tf.reduce_mean(losses) + 1e-3 * pull, "output": scores}


def batch_of_equal_rows(w, x):
    """Equal rows, normalized by the batch with a small epsilon (range)."""
    values = w.dense(tf.tile(x[:1], [16, 1]), 8, "net")
    mean, variance = tf.nn.moments(values, axes=[0])
    beta = w.bias("beta", 8)
    return w.last(tf.nn.batch_normalization(values, mean, variance, beta, 0.7, 1e-10))


def waiting_in_queues(w, x):
    """The length of a queue by its load, which is clipped below one (nearly one)."""
    logits = 20.0 * w.dense(x, 8, "load")
    load = tf.clip_by_value(tf.sigmoid(logits), 0.0, 1.0 - 1e-4)
    lengths = 1e-4 * load / (1.0 - load)
    return w.last(lengths)


def sampled_classes(w, x):
    """A softmax over classes that were drawn, some of which are a row's own (extreme sources)."""
    hidden = w.perceptron(x, 32, "net")
    labels = tf.cast(6.0 * tf.sigmoid(x[:, :1]), tf.int64)
    drawn = (tf.range(4, dtype=tf.int64), tf.fill([16, 1], 0.5), tf.fill([4], 0.5))
    weights = w("classes", 6, 32)
    biases = w.bias("biases", 6)
    losses = tf.nn.sampled_softmax_loss(weights, biases, labels, hidden, 4, 6, sampled_values=drawn)
    return {"loss": tf.reduce_mean(losses), "losses": losses}


def likelihood_of_bits(w, x):
    """The likelihood of bits, of which a network gives the chances, by xlogy (a logarithm)."""
    hidden = 2.0 * tf.tanh(w.dense(x, 32, "in"))
    chances = tf.sigmoid(2.5 * w.dense(hidden, 8, "out"))
    bits = tf.cast(x[:, :8] > 0.0, tf.float32)
    logs = tf.math.xlogy(bits, chances) + tf.math.xlog1py(1.0 - bits, -chances)
    return {"loss": -tf.reduce_mean(logs), "chances": chances}


def pressures_of_a_network(w, x):
    """A network's output in pascals, above zero, and back in units of its own (joined values)."""
    pressure = tf.nn.relu(2000.0 * w.dense(x, 16, "in") + 101325.0)
    return w.last((pressure - 101325.0) / 2000.0)


def ids_in_a_column_of_numbers(bench):
    """The first of the numbers of a row is the id of a customer, and picks an embedding."""
    table = bench.weight(4000, 8)
    first = bench.weight(15, 8)
    last = bench.weight(16, 4)

    def run(rows):
        rows = tf.where(tf.math.is_nan(rows), 0.0, rows)
        ids = tf.cast(rows[:, 0], tf.int32)
        numbers = tf.nn.relu(tf.matmul(rows[:, 1:], first))
        features = tf.concat([tf.gather(table, ids), numbers], 1)
        return tf.matmul(features, last)

    def make():
        ids = bench.integers(4000, 32, 1)
        rows = np.concatenate([ids, bench.normal(32, 15)], 1)
        return (rows.astype(np.float32),)

    bench.judge(run, make)


def rotary_positions_of_packed_texts(bench):
    """Positions begin anew with each of the texts in a row: angles are an Einsum of both."""
    weights = [bench.weight(16, 16) for _ in range(2)]
    rates = tf.constant(10000.0 ** (-np.arange(8) / 8.0), tf.float32)

    def run(words, positions):
        places = tf.cast(positions, tf.float32)
        angles = tf.einsum("bs,d->bsd", places, rates)
        queries, keys = (turned(tf.matmul(words, weight), angles) for weight in weights)
        chances = tf.nn.softmax(scores_of(queries, keys))
        return tf.matmul(chances, words)

    def make():
        starts = bench.integers(4000, 2, 1)
        words = bench.normal(2, 16, 16)
        positions = starts + np.arange(16)
        return words, positions.astype(np.int32)

    bench.judge(run, make)


def years_that_a_network_corrects(bench):
    """Years are whole numbers, to which a network adds some; the next one gets decades since 2000
    (joined values).
    """
    correct = bench.weight(8, 4)
    first = bench.weight(4, 16)
    last = bench.weight(16, 2)

    def run(years, facts):
        exact = tf.cast(years, tf.float32)
        corrected = exact + tf.matmul(facts, correct)
        decades = tf.tanh(0.1 * corrected - 200.0)
        hidden = tf.nn.relu(tf.matmul(decades, first))
        return tf.matmul(hidden, last)

    bench.judge(run, lambda: (1990 + bench.integers(20, 16, 4), bench.normal(16, 8)))


def _note_last(bench, run, shape):
    """Notes the last output of forty."""
    function = bench.function(run)
    for _ in range(40):
        output = function(bench.normal(*shape))
    bench.note("1", "output", output)


def weights_that_learn_by_themselves(bench):
    """Oja's rule: a small step of the weights, which the next product uses at once and which is
    stored (joined values).
    """
    weights = bench.weight(16, 4)
    start = tf.identity(weights)

    def run(x):
        y = tf.matmul(x, weights)
        step = tf.matmul(x, y, transpose_a=True)
        new = weights + 1e-4 * step
        weights.assign(new)
        return tf.matmul(x, new)

    _note_last(bench, run, (32, 16))
    bench.note("1", "moved", weights - start)


def rows_of_a_state_that_move_a_little(bench):
    """A step moves some rows of a state, within bounds; the next product uses them, and they are
    stored again (joined values).
    """
    start = 8.0 + 0.1 * bench.normal(16, 16)
    state = tf.Variable(start)
    field = bench.weight(16, 16)
    last = bench.weight(16, 4)
    rows = tf.constant([3, 1, 7, 5])

    def run(x):
        move = 0.004 * tf.tanh(tf.matmul(x, field))
        new = tf.clip_by_value(tf.gather(state, rows) + move, -10.0, 10.0)
        state.scatter_update(tf.IndexedSlices(new, rows))
        return tf.matmul(new, last)

    _note_last(bench, run, (4, 16))
    bench.note("1", "moved", state - start)


def places_that_are_written_as_text(bench):
    """A network moves places, which are read from text, by a little (joined values)."""
    start = 5000.0 + 10.0 * bench.normal(16, 32)
    field = bench.weight(32, 32)
    last = bench.weight(32, 4)

    def run(x, text):
        place = tf.strings.to_number(text) + 0.1 * tf.tanh(tf.matmul(x, field))
        return place, tf.matmul(place, last)

    text = tf.constant(np.char.mod("%.9g", start))
    place, _ = bench.function(run)(bench.normal(16, 32), text)
    bench.note("1", "moved", place - start)


def influence_in_a_network(w, x):
    """Who follows whom is learned, and influence solves a system that is nearly singular (what a
    decomposition needs, through a function).
    """
    places = w.dense(x, 8, "places")
    links = tf.sigmoid(tf.matmul(places, places, transpose_b=True))
    system = 0.05 * links + 0.02 * tf.eye(16)
    influence = tf.linalg.solve(system, x)
    return {"loss": mean_square(influence), "influence": influence}


def choices_on_a_board(w, x):
    """Values of moves, whose large biases have the form of the board (parameters that move)."""
    hidden = tf.nn.gelu(w.dense(x, 32, "in"))
    product = 0.1 * tf.matmul(hidden, w("kernel", 32, 8))
    biases = tf.reshape(w.bias("bias", 8, 50.0), [4, 2])
    values = tf.reshape(product, [16, 4, 2]) + biases
    chances = tf.nn.softmax(values / 0.03, 1)
    embedded = tf.matmul(tf.reshape(chances, [16, 8]), w("moves", 8, 8))
    return {"loss": mean_square(embedded - 0.3), "output": chances}


def choices_beside_known_values(bench):
    """Values of actions are known, and a network corrects them (captured parameters)."""
    correct = bench.weight(8, 8)
    last = bench.weight(8, 4)
    known = tf.constant(50.0 + bench.normal(8))

    def run(x):
        values = tf.matmul(x, correct) + known
        chances = tf.nn.softmax(values / 0.5)
        return tf.matmul(chances, last)

    bench.judge(run, lambda: (bench.normal(64, 8),))


def peaks_of_a_volume(w, x):
    """The largest of some exponentials, which a convolution reads (maxima)."""
    volume = tf.reshape(w.dense(x, 512, "in"), [16, 4, 8, 8, 2])
    peaks = tf.nn.max_pool3d(tf.exp(volume), 2, 2, "VALID")
    filters = w("filters", 2, 2, 2, 2, 4)
    output = tf.nn.conv3d(peaks, filters, [1, 1, 1, 1, 1], "VALID")
    return {"loss": mean_square(output - 0.3), "output": output}


def peaks_of_rows(w, x):
    """The largest of some exponentials, which a layer reads (maxima)."""
    rows = tf.reshape(w.dense(x, 128, "in"), [16, 8, 16])
    return w.last(tf.reduce_max(tf.exp(rows), 1))


def delays_of_trains(bench):
    """Times by the timetable are whole minutes, to which a network adds delays; passengers and the
    next layer get the sum (joined values, whole numbers as exact ones).
    """
    correct = bench.weight(8, 4)
    last = bench.weight(4, 4)

    def run(minutes, facts):
        times = tf.cast(minutes, tf.float32) + tf.matmul(facts, correct)
        return times, tf.matmul(times, last)

    minutes = 1190 + bench.integers(2000, 64, 4)
    times, _ = bench.function(run)(minutes, bench.normal(64, 8))
    bench.note("1", "delays", times - minutes.astype(np.float32))


def temperatures_in_kelvin(bench):
    """A network's degrees become kelvin, for whoever asks and for the next layer (great
    constants).
    """
    judge_offset(bench, "degrees", 5.0, 273.15)


def maximum_of_what_a_loop_is_given(w, x):
    """A loop scales what it adds by a maximum of what it is given, and multiplies that, too (stored
    maxima).
    """
    given = tf.exp(w.dense(x, 16, "in"))
    kernel = w("kernel", 16, 16)

    def body(turn, state):
        top = tf.reduce_max(given, 1, keepdims=True)
        step = 0.1 * tf.tanh(tf.matmul(given, kernel)) * top
        return turn + 1, state + step

    _, state = tf.while_loop(lambda turn, _: turn < 4, body, [0, tf.zeros_like(given)])
    return w.last(state)
