"""Embeddings with dense towers, as recommendation and text classification have them."""

from __future__ import annotations

from benchmarks.models.wide.parts import normalized_relu
from benchmarks.models.wide.registry import Numbers, Values, wide

_CATEGORIES = [Numbers(1000)] * 6


def _tower(keras, x, *widths):
    for width in widths:
        x = keras.layers.Dense(width, activation="relu")(x)
    return x


def _embedded(keras, categories, width):
    """The embeddings of values of 1,000 kinds each, with a table for each category."""
    found = []
    for category in categories:
        found.append(keras.layers.Embedding(1000, width)(category))
    return found


@wide("embeddings", 256, [Values((16,)), *_CATEGORIES], Values((1,)))
def feature_interactions(keras, numbers, *categories):
    """DLRM (Naumov et al. 2019): products of all pairs of embeddings and a bottom tower, then a top
    tower.
    """
    layers = keras.layers
    ops = keras.ops
    dense = _tower(keras, numbers, 128, 64, 32)
    rows = [dense, *_embedded(keras, categories, 32)]
    stacked = ops.stack(rows, axis=1)
    products = ops.matmul(stacked, ops.transpose(stacked, (0, 2, 1)))
    pairs = layers.Reshape((49,))(products)
    click = layers.Dense(1)
    x = layers.Concatenate()([dense, pairs])
    x = _tower(keras, x, 256, 128)
    return click(x)


@wide("embeddings", 512, [Values((32,)), *_CATEGORIES], Values((1,)))
def wide_and_deep(keras, numbers, *categories):
    """A linear part beside a tower over embeddings (Cheng et al. 2016)."""
    layers = keras.layers
    features = _embedded(keras, categories, 16)
    last = layers.Dense(1)
    deep = layers.Concatenate()([numbers, *features])
    deep = _tower(keras, deep, 256, 128, 64)
    deep = last(deep)
    linear = _embedded(keras, categories, 1)
    return layers.Add()([deep, layers.Dense(1)(numbers), *linear])


@wide("embeddings", 1024, [Numbers(5000), Numbers(5000)], Values((1,)))
def two_towers(keras, user, item):
    """Retrieval: a tower for users, one for items, and the product of what they give."""
    layers = keras.layers
    sides = []
    for side in (user, item):
        x = layers.Embedding(5000, 64)(side)
        sides.append(_tower(keras, x, 128, 64))
    return layers.Dot(axes=1)(sides)


@wide("embeddings", 64, [Numbers(5000, (100,))], Numbers(4))
def bag_of_words(keras, tokens):
    """The mean of 100 embeddings and two small dense layers (fastText, Joulin et al. 2016)."""
    layers = keras.layers
    x = layers.Embedding(5000, 64)(tokens)
    x = layers.GlobalAveragePooling1D()(x)
    logits = layers.Dense(4)
    x = _tower(keras, x, 64)
    return logits(x)


@wide("1-D convolutions", 64, [Numbers(5000, (64,))], Numbers(4))
def text_convnet(keras, tokens):
    """Convolutions of widths 3, 4 and 5 over embeddings, the largest value of each (Kim 2014)."""
    layers = keras.layers
    x = layers.Embedding(5000, 128)(tokens)
    largest = []
    for width in (3, 4, 5):
        y = layers.Conv1D(128, width, activation="relu")(x)
        largest.append(layers.GlobalMaxPooling1D()(y))
    x = layers.Concatenate()(largest)
    return layers.Dense(4)(x)


@wide("embeddings", 512, [Values((32,)), *_CATEGORIES], Values((1,)))
def deep_and_cross(keras, numbers, *categories):
    """Crossed features beside a tower (DCN v2, Wang et al. 2020)."""
    layers = keras.layers
    features = _embedded(keras, categories, 32)
    start = layers.Concatenate()([numbers, *features])
    x = start
    for _ in range(3):
        x = start * layers.Dense(start.shape[-1])(x) + x
    last = layers.Dense(1)
    deep = _tower(keras, start, 256, 128)
    x = layers.Concatenate()([x, deep])
    return last(x)


@wide("dense", 128, [Values((54,))], Numbers(7))
def tabular_residual(keras, x):
    """Residual dense layers with batch normalization on a table of 54 columns (Gorishniy et al.
    2021).
    """
    layers = keras.layers
    x = layers.Dense(256)(x)
    for _ in range(3):
        y = layers.BatchNormalization()(x)
        y = layers.Dense(512, activation="relu")(y)
        y = layers.Dense(256)(y)
        x = x + y
    x = normalized_relu(layers, x)
    return layers.Dense(7)(x)
