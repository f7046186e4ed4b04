"""Dense models: neural collaborative filtering, a wide multilayer perceptron and a small one."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from benchmarks.models.workload import Benchmark


@dataclasses.dataclass(frozen=True)
class NcfSize:
    """The figures of NCF: ``factors`` of the product branch, ``tower`` of the dense branch."""

    users: int
    items: int
    factors: int
    tower: tuple[int, ...]
    batch: int
    batches: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class MlpSize:
    """The figures of a perceptron: ``depth`` hidden layers of ``width``."""

    features: int
    width: int
    depth: int
    classes: int
    batch: int
    batches: tuple[int, ...]


def ratings(
    figures: NcfSize, examples: int, seed: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Makes users and items; a user likes an item if their hidden traits agree.

    Returns:
        int32 users and items of shape (examples,), and float32 zeros and ones of shape (examples,).
    """
    traits = np.random.default_rng(12345)  # the same taste whatever the seed of the sample
    user_traits = traits.standard_normal((figures.users, 4), dtype=np.float32)
    item_traits = traits.standard_normal((figures.items, 4), dtype=np.float32)
    rng = np.random.default_rng(seed)
    users = rng.integers(0, figures.users, examples)
    items = rng.integers(0, figures.items, examples)
    liked = (user_traits[users] * item_traits[items]).sum(-1) > 0
    return (users.astype(np.int32), items.astype(np.int32)), liked.astype(np.float32)


def ncf(name: str, figures: NcfSize) -> Any:
    import keras
    from keras import layers

    user = keras.Input((), dtype="int32")
    item = keras.Input((), dtype="int32")
    # The branch of products.
    user_factors = layers.Embedding(figures.users, figures.factors)(user)
    item_factors = layers.Embedding(figures.items, figures.factors)(item)
    product = layers.Multiply()([user_factors, item_factors])
    # The dense branch.
    half = figures.tower[0] // 2
    user_features = layers.Embedding(figures.users, half)(user)
    item_features = layers.Embedding(figures.items, half)(item)
    x = layers.Concatenate()([user_features, item_features])
    for width in figures.tower[1:]:
        x = layers.Dense(width, activation="relu")(x)
    x = layers.Concatenate()([product, x])
    x = layers.Dense(1)(x)
    return keras.Model([user, item], layers.Reshape(())(x), name=name)


def random_teacher(figures: MlpSize, examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random points, labelled by the largest of a few fixed random directions.

    Returns:
        float32 points of shape (examples, features) and int32 labels of shape (examples,).
    """
    teacher = np.random.default_rng(12345)
    rng = np.random.default_rng(seed)
    directions = teacher.standard_normal((figures.features, figures.classes), dtype=np.float32)
    points = rng.standard_normal((examples, figures.features), dtype=np.float32)
    return points, (points @ directions).argmax(-1).astype(np.int32)


def mlp(name: str, figures: MlpSize, between: str = "float32") -> Any:
    """Dense layers; what one hands to the next is cast to the type ``between``, as programs do to
    save memory.
    """
    import keras

    x = points = keras.Input((figures.features,))
    for _ in range(figures.depth):
        x = keras.layers.Dense(figures.width, activation="relu")(x)
        if between != "float32":
            x = keras.ops.cast(x, between)
    logits = keras.layers.Dense(figures.classes)(x)
    return keras.Model(points, logits, name=name)


BENCHMARKS = (
    # Recommendation; He et al. 2017 (NeuMF).
    Benchmark(
        "ncf",
        "NCF",
        ncf,
        ratings,
        {
            "tiny": NcfSize(50, 40, 8, (32, 32, 16), 64, (64,)),
            "small": NcfSize(2000, 1000, 64, (256, 256, 128, 64), 4096, (1024, 4096, 16384)),
        },
        loss=lambda keras: keras.losses.BinaryCrossentropy(from_logits=True),
        learning_rate=2e-3,
    ),
    # The best case for a product: three dense layers of 2048.
    Benchmark(
        "wide_mlp",
        "MLP, 2048 wide",
        mlp,
        random_teacher,
        {
            "tiny": MlpSize(32, 64, 2, 4, 16, (16,)),
            "small": MlpSize(512, 2048, 3, 10, 256, (64, 256, 1024)),
        },
    ),
    # The worst case: products so small that a cast costs more than it saves.
    Benchmark(
        "small_mlp",
        "MLP, 64 wide",
        mlp,
        random_teacher,
        {
            "tiny": MlpSize(8, 16, 2, 4, 16, (16,)),
            "small": MlpSize(32, 64, 3, 10, 64, (32, 64, 256)),
        },
    ),
    # A program that casts what it keeps to bfloat16 itself: parts of the rewrite meet such casts.
    Benchmark(
        "hand_cast_mlp",
        "MLP with casts by hand",
        functools.partial(mlp, between="bfloat16"),
        random_teacher,
        {
            "tiny": MlpSize(32, 64, 2, 4, 16, (16,)),
            "small": MlpSize(512, 1024, 3, 10, 512, (512,)),
        },
        is_common=False,
    ),
)
