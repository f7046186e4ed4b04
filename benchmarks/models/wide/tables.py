"""Embeddings with dense towers, as recommendation and text classification have them."""

from __future__ import annotations

from typing import Any

from benchmarks.models.wide.registry import Numbers, Values, wide

_CATEGORIES = [Numbers(1000) for _ in range(6)]


def _tower(keras: Any, x: Any, *widths: int) -> Any:
    for width in widths:
        x = keras.layers.Dense(width, activation="relu")(x)
    return x


@wide("embeddings", 256, [Values((16,)), *_CATEGORIES], Values((1,)))
def feature_interactions(keras: Any, numbers: Any, *categories: Any) -> Any:
    """DLRM (Naumov et al.

    2019): products of all pairs of embeddings and a bottom tower, then a top tower.
    """
    layers = keras.layers
    ops = keras.ops
    rows = [_tower(keras, numbers, 128, 64, 32)]
    rows += [layers.Embedding(1000, 32)(category) for category in categories]
    stacked = ops.stack(rows, axis=1)
    pairs = layers.Reshape((49,))(ops.matmul(stacked, ops.transpose(stacked, (0, 2, 1))))
    return layers.Dense(1)(_tower(keras, layers.Concatenate()([rows[0], pairs]), 256, 128))


@wide("embeddings", 512, [Values((32,)), *_CATEGORIES], Values((1,)))
def wide_and_deep(keras: Any, numbers: Any, *categories: Any) -> Any:
    """A linear part beside a tower over embeddings (Cheng et al. 2016)."""
    layers = keras.layers
    deep = [layers.Embedding(1000, 16)(category) for category in categories]
    deep_part = layers.Dense(1)(_tower(keras, layers.Concatenate()([numbers, *deep]), 256, 128, 64))
    linear = [layers.Embedding(1000, 1)(category) for category in categories]
    return layers.Add()([deep_part, layers.Dense(1)(numbers), *linear])


@wide("embeddings", 1024, [Numbers(5000), Numbers(5000)], Values((1,)))
def two_towers(keras: Any, user: Any, item: Any) -> Any:
    """Retrieval: a tower for users, one for items, and the product of what they give."""
    layers = keras.layers
    sides = [_tower(keras, layers.Embedding(5000, 64)(side), 128, 64) for side in (user, item)]
    return layers.Dot(axes=1)(sides)


@wide("embeddings", 64, [Numbers(5000, (100,))], Numbers(4))
def bag_of_words(keras: Any, tokens: Any) -> Any:
    """The mean of 100 embeddings and two small dense layers (fastText, Joulin et al. 2016)."""
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(5000, 64)(tokens))
    return keras.layers.Dense(4)(_tower(keras, x, 64))


@wide("1-D convolutions", 64, [Numbers(5000, (64,))], Numbers(4))
def text_convnet(keras: Any, tokens: Any) -> Any:
    """Convolutions of widths 3, 4 and 5 over embeddings, the largest value of each (Kim 2014)."""
    layers = keras.layers
    x = layers.Embedding(5000, 128)(tokens)
    parts = [
        layers.GlobalMaxPooling1D()(layers.Conv1D(128, width, activation="relu")(x))
        for width in (3, 4, 5)
    ]
    return layers.Dense(4)(layers.Concatenate()(parts))


@wide("embeddings", 512, [Values((32,)), *_CATEGORIES], Values((1,)))
def deep_and_cross(keras: Any, numbers: Any, *categories: Any) -> Any:
    """Crossed features beside a tower (DCN v2, Wang et al. 2020)."""
    layers = keras.layers
    start = layers.Concatenate()(
        [numbers, *(layers.Embedding(1000, 32)(category) for category in categories)]
    )
    x = start
    for _ in range(3):
        x = start * layers.Dense(start.shape[-1])(x) + x
    return layers.Dense(1)(layers.Concatenate()([x, _tower(keras, start, 256, 128)]))


@wide("dense", 128, [Values((54,))], Numbers(7))
def tabular_residual(keras: Any, x: Any) -> Any:
    """Residual dense layers with batch normalization on a table of 54 columns (Gorishniy et al.

    2021).
    """
    layers = keras.layers
    x = layers.Dense(256)(x)
    for _ in range(3):
        y = layers.Dense(512, activation="relu")(layers.BatchNormalization()(x))
        x = x + layers.Dense(256)(y)
    return layers.Dense(7)(layers.ReLU()(layers.BatchNormalization()(x)))
