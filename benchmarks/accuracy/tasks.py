"""The trainings that accuracy is measured on: each builds a model, trains it and returns one figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from benchmarks.accuracy import data


@dataclasses.dataclass(frozen=True)
class Task:
    """One training.

    Attributes:
        name: for people and for ``--tasks``.
        figure: what is measured on the test data, with its unit.
        run: ``run(seed)`` trains from that seed and returns the figure. The data's order is the same for all seeds.
    """

    name: str
    figure: str
    run: Callable[[int], float]


def _fit(model: Any, x: Any, y: Any, *, epochs: int, batch: int) -> None:
    """Shuffled the same way in every run: what differs between seeds is the initialization alone."""
    order = np.random.RandomState(1)
    for _ in range(epochs):
        chosen = order.permutation(len(x))
        model.fit(x[chosen], y[chosen], batch_size=batch, shuffle=False, verbose=0)


def _float32(layer: type, *args: Any, **kwargs: Any) -> Any:
    """A head that stays in float32 under a Keras policy, as the Keras guide asks; amp_tf needs no such thing."""
    return layer(*args, dtype="float32", **kwargs)


def run_digits_mlp(seed: int) -> float:
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(128, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.layers.Input((64,)), *hidden, _float32(keras.layers.Dense, 10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    x, y, test_x, test_y = data.digits()
    _fit(model, x, y, epochs=15, batch=32)
    return float(model.evaluate(test_x, test_y, verbose=0)[1])


def run_digits_cnn(seed: int) -> float:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Input((64,)), keras.layers.Reshape((8, 8, 1))]
    for filters in (16, 32):
        layers += [
            keras.layers.Conv2D(filters, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
        ]
    model = keras.Sequential([*layers, keras.layers.Flatten(), _float32(keras.layers.Dense, 10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    x, y, test_x, test_y = data.digits()
    _fit(model, x, y, epochs=12, batch=32)
    return float(model.evaluate(test_x, test_y, verbose=0)[1])


def run_autoencoder(seed: int) -> float:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            _float32(keras.layers.Dense, 64),
        ]
    )
    model.compile(keras.optimizers.Adam(2e-3), "mse")
    x, _, test_x, _ = data.digits()
    noise = np.random.RandomState(2)
    _fit(model, x + noise.normal(0, 0.2, x.shape).astype("float32"), x, epochs=15, batch=32)
    return float(model.evaluate(test_x + noise.normal(0, 0.2, test_x.shape).astype("float32"), test_x, verbose=0))


def run_recommender(seed: int) -> float:
    keras.utils.set_random_seed(seed)
    pairs, values, test_pairs, test_values = data.ratings()
    modules, identifiers = (int(count) for count in pairs.max(0) + 1)
    pair = keras.layers.Input((2,), dtype="int32")
    vectors, biases = [], []
    for column, count in ((0, modules), (1, identifiers)):
        index = pair[:, column]
        vectors.append(keras.layers.Embedding(count, 16)(index))
        biases.append(keras.layers.Embedding(count, 1)(index))
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()(vectors))
    score = keras.layers.Add()([keras.layers.Dot(1)(vectors), *biases, keras.layers.Dense(1)(hidden)])
    model = keras.Model(pair, keras.layers.Activation("linear", dtype="float32")(score))
    model.compile(keras.optimizers.Adam(3e-3), "mse")
    _fit(model, pairs, values[:, None], epochs=3, batch=128)
    return float(model.evaluate(test_pairs, test_values[:, None], batch_size=1024, verbose=0))


def _next_character(model: Any, length: int, epochs: int) -> float:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(4e-3), loss)
    x, y, test_x, test_y = data.characters(length)
    _fit(model, x, y, epochs=epochs, batch=50)
    return float(model.evaluate(test_x, test_y, batch_size=100, verbose=0) / np.log(2))


def run_lstm(seed: int) -> float:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.layers.Input((24,), dtype="int32"),
            keras.layers.Embedding(len(data.ALPHABET), 32),
            keras.layers.LSTM(64, return_sequences=True),
            _float32(keras.layers.Dense, len(data.ALPHABET)),
        ]
    )
    return _next_character(model, 24, epochs=3)


def run_transformer(seed: int) -> float:
    keras.utils.set_random_seed(seed)
    length, width = 24, 48
    tokens = keras.layers.Input((length,), dtype="int32")
    places = keras.layers.Embedding(length, width)(keras.ops.arange(length))
    x = keras.layers.Embedding(len(data.ALPHABET), width)(tokens) + places
    for _ in range(2):
        normed = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(4, 12)(normed, normed, use_causal_mask=True)
        normed = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.Dense(width)(keras.layers.Dense(2 * width, activation="gelu")(normed))
    model = keras.Model(tokens, _float32(keras.layers.Dense, len(data.ALPHABET))(x))
    return _next_character(model, length, epochs=3)


TASKS = (
    Task("digits MLP", "test accuracy", run_digits_mlp),
    Task("digits CNN", "test accuracy", run_digits_cnn),
    Task("denoising autoencoder", "test squared error", run_autoencoder),
    Task("recommender", "test squared error", run_recommender),
    Task("character LSTM", "bits per character", run_lstm),
    Task("character transformer", "bits per character", run_transformer),
)
