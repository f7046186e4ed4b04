"""Programs of users that parity with TensorFlow's pass did not save: each gave wrong numbers
once.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from tests.truth.bench import Program, mean_square

NOT_BY_XLA = ("input pipeline",)


def programs():
    for scale in (1e-6, 1e6):
        run = functools.partial(_fit_with_scaled_loss, scale)
        yield Program(f"defects/fit with loss x {scale:g}", run)
    for function in (tf.image.ssim, tf.image.ssim_multiscale):
        for most in (1.0, 255.0):
            name = f"defects/{function.__name__} of 0-{most:g}"
            run = functools.partial(_similarity, function, most)
            yield Program(name, run)


def _fit_with_scaled_loss(scale, bench):
    """The loss is multiplied, the rate divided: float32 does not see it, and a loss scale is there
    to mend it.
    """
    model = keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(4),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.05 / scale),
        loss=lambda labels, y: scale * keras.losses.mean_squared_error(labels, y),
        jit_compile=bench.jit,
    )
    before = [weight.numpy() for weight in model.weights]
    x = bench.normal(16, 32)
    y = bench.normal(16, 4)
    for _ in range(60):  # the loss scale needs some to come down from 2^15
        model.train_on_batch(x, y)
    for variable, start in zip(model.weights, before, strict=True):
        if len(variable.shape) == 2:
            kept = variable.numpy() == start
            share = np.float32(kept.mean() > 0.1)
            bench.note("1", f"share of {variable.path} that no step moved", share)
    loss = keras.ops.convert_to_numpy(model.evaluate(x, y, verbose=0))
    bench.note("1", "state reached", loss > scale)


def increments_of_500_turns(bench):
    first = bench.weight(16, 16)
    second = bench.weight(16, 16)

    @tf.autograph.to_graph
    def body(x):
        for _ in tf.range(500):
            x = x + 1e-3 * tf.matmul(tf.tanh(tf.matmul(x, first)), second)
        return x

    bench.judge(body, lambda: (bench.normal(4, 16),))


def mean_loss_of_600_batches(bench):
    weight = bench.weight(16, 4)

    @tf.autograph.to_graph
    def body(x, y):
        total = 0.0
        for batch in tf.range(600):
            total += mean_square(tf.matmul(x[batch % 8], weight) - y[batch % 8])
        return total / 600.0

    run = bench.function(body)
    x = bench.normal(8, 32, 16)
    y = bench.normal(8, 32, 4)
    bench.note("1", "loss", run(x, y))


def _similarity(function, most, bench):
    run = bench.function(lambda first, second: function(first, second, most))
    for _ in range(3):
        rows, columns = np.meshgrid(np.linspace(0, 6, 192), np.linspace(0, 4, 192))
        waves = 0.5 + 0.4 * np.sin(rows + columns)
        image = waves + 0.02 * bench.normal(192, 192)
        other = image + 0.01 * bench.normal(192, 192)
        pair = []
        for part in (image, other):
            clipped = np.clip(part, 0, 1)[None, ..., None]
            pair.append(clipped.astype(np.float32) * np.float32(most))
        bench.note("1", "metric", run(*pair))


def ssim_of_flat_images(bench):
    """E[x²] - E[x]² of a flat part was of either sign in bfloat16, beside a constant of 0.0009: the
    loss was nan.
    """
    weight = bench.weight(64, 64)

    @bench.function
    def run(x, y):
        pixels = tf.sigmoid(0.1 * x @ weight)
        image = tf.reshape(pixels, (1, 64, 64, 1))
        return tf.image.ssim(y, image, 1.0)

    for level in (0.0, 0.5, 0.9):
        x = bench.normal(64, 64)
        flat = np.full((1, 64, 64, 1), level, np.float32)
        bench.note("1", "metric", run(x, flat))


def gates_that_have_decided(bench):
    """A softmax's gradient takes a weighted mean from values: where it is sure, they cancel, unless
    one is rounded.
    """
    weight = bench.weight(8, 8)
    weight.assign(np.eye(8))

    def run(x, experts):
        with tf.GradientTape() as tape:
            gates = tf.nn.softmax(tf.matmul(x, weight))
            mixture = tf.reduce_sum(gates * experts, 1)
            loss = mean_square(mixture)
        # The gradient itself is 1e-16, which on some CPUs is 1e-6 in float32: of a hundredth, both
        # are next to nothing.
        return {"gradient": 0.01 + tape.gradient(loss, weight)}

    decided = 40 * np.eye(8, dtype=np.float32)
    bench.judge(run, lambda: (decided, bench.normal(8, 8)))


def input_pipeline(bench):
    """tf.data computes what a user gave, which nobody asked to round."""
    images = (128 + 40 * bench.normal(16, 12, 12, 3)).astype(np.float32)
    filters = bench.normal(3, 3, 3, 4)

    def prepare(image):
        filtered = tf.nn.conv2d(image[None], filters, 1, "SAME")[0]
        edges = tf.image.per_image_standardization(filtered)
        gray = tf.image.rgb_to_grayscale(image)
        product = tf.matmul(image[..., 0], image[..., 1])
        return gray, edges, product

    given = tf.data.Dataset.from_tensor_slices(images)
    for batch in given.map(prepare).batch(4):
        for name, value in zip(("gray image", "edges", "product"), batch, strict=True):
            bench.note("1", f"untouched {name}", value)


def numbers_that_evaluate_returns(bench):
    model = keras.Sequential(
        [keras.Input((32,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(4)]
    )
    model.compile("sgd", "mse", metrics=["mae", "mape", "cosine_similarity"], jit_compile=bench.jit)
    for _ in range(6):
        x = bench.normal(64, 32)
        y = bench.normal(64, 4)
        metrics = model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
        for name, value in metrics.items():
            bench.note("evaluate", f"metric {name}", value)
        loss, *_ = model.train_on_batch(x, y)
        bench.note("train", "loss", loss)


def gradient_of_a_maximum_behind_a_residual(bench):
    """XLA left out the rounding of the values and not that of their maximum, or the other way
    round.
    """
    given = keras.Input((24, 16))
    hidden = keras.layers.Dense(32)(given)
    hidden += keras.layers.Dense(32, activation="gelu")(hidden)
    last = keras.layers.Dense(2)
    most = keras.layers.GlobalMaxPooling1D()(hidden)
    model = keras.Model(given, last(most))
    model.compile("sgd", "mse", jit_compile=bench.jit)
    for _ in range(6):
        x = bench.normal(64, 24, 16)
        y = bench.normal(64, 2)
        loss = model.train_on_batch(x, y)
        bench.note("train", "loss", loss)


def likelihoods_of_words_that_are_certain(bench):
    """Documents of one word each, which their topics expect: the logarithm of a probability near 1
    became 0.
    """

    def run(topics, expected, words):
        log_chances = tf.nn.log_softmax(tf.matmul(topics, expected))
        likelihoods = tf.matmul(log_chances, words, transpose_b=True)
        return {"likelihoods": tf.linalg.diag_part(likelihoods)}

    words = np.eye(16, dtype=np.float32)
    bench.judge(run, lambda: (words + bench.normal(16, 16, scale=0.05), 10 * words, words))
