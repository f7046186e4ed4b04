"""Every loss of Keras 3, on the result of a product."""

import functools

import keras
import numpy as np
import tensorflow as tf

from tests.truth.bench import Program, in_a_quarter, public_classes

CASES = ("1", "1e-3", "1e3", "zeros", "equal rows", "half masked", "mean 50")
_ROWS = 64
_CLASSES = 16
_DRAWS = 6

#: The predictions and labels of a loss, by words in its name, of which the first that fits counts.
_KINDS = {
    "CategoricalGeneralized": "classes",
    "Sparse": "classes",
    "Circle": "classes unit",
    "Categorical": "one-hot",
    "CTC": "sequences",
    "KLDivergence": "chances",
    "Binary": "bits",
    "Hinge": "signs",
    "Poisson": "counts",
    "Logarithmic": "counts",
    "Dice": "bits",
    "Tversky": "bits",
    "": "numbers",
}
LEFT_OUT = {"Loss": "a base class"}


def programs():
    for name in public_classes(keras.losses, keras.losses.Loss):
        if name not in LEFT_OUT:
            run = functools.partial(_loss, name)
            yield Program(f"keras.losses/{name}", run, compiled=in_a_quarter(name))


def kind_of(name):
    return next(kind for word, kind in _KINDS.items() if word in name)


def labels_of(kind, bench):
    """Labels; they do not follow the scale of the inputs."""
    classes = bench.integers(_CLASSES, _ROWS)
    if kind in ("classes", "classes unit"):
        return classes
    if kind == "one-hot":
        return np.eye(_CLASSES, dtype=np.float32)[classes]
    if kind == "sequences":
        return bench.integers(_CLASSES - 1, _ROWS // 8, 3) + 1
    numbers = bench.normal(_ROWS, _CLASSES)
    if kind == "chances":
        powers = np.exp(numbers)
        return powers / powers.sum(-1, keepdims=True)
    if kind == "bits":
        return (numbers > 0).astype(np.float32)
    if kind == "signs":
        return np.sign(numbers)
    if kind == "counts":
        return np.floor(np.abs(2 * numbers))
    return numbers


def predictions(kind, y):
    """The result of a product, as what such a loss is given."""
    if kind in ("classes", "one-hot", "chances"):
        return tf.nn.softmax(y)
    if kind == "classes unit":
        return tf.math.l2_normalize(y, -1)
    if kind == "bits":
        return tf.sigmoid(y)
    if kind == "counts":
        return tf.nn.softplus(y)
    if kind == "sequences":
        return tf.reshape(y, [_ROWS // 8, 8, _CLASSES])
    return y


def _loss(name, bench):
    kind = kind_of(name)
    loss_of = getattr(keras.losses, name)()
    weight = bench.weight(_CLASSES, _CLASSES)

    @bench.function
    def step(x, labels):
        with tf.GradientTape() as tape:
            product = tf.matmul(x, weight)
            loss = loss_of(labels, predictions(kind, product))
        gradient = tape.gradient(loss, weight)
        return loss, gradient

    for case in CASES:
        for _ in range(_DRAWS):
            x = bench.case(case, _ROWS, _CLASSES)
            labels = labels_of(kind, bench)
            loss, gradient = step(x, labels)
            bench.note(case, "loss", loss)
            bench.note(case, "gradient of w", gradient)
