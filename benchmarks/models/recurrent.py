"""A GNMT-style translation model, LSTM encoder and decoder with attention, and a language model of
GRU layers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from benchmarks.models.workload import Benchmark, Workload


@dataclasses.dataclass(frozen=True)
class TranslationSize:
    """The figures of the translator: ``layers`` LSTM layers on each side, all of ``width`` units.

    And of the language model, whose ``layers`` are GRU layers.
    """

    tokens: int
    vocabulary: int
    width: int
    layers: int
    batch: int
    batches: tuple[int, ...]


def reversals(
    figures: TranslationSize, examples: int, seed: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Sentences whose translation is the same sentence from its end to its start, word for word
    renamed.

    Returns:
        int32 sources and (shifted) targets, and int32 targets, each of shape (examples, tokens).
    """
    rename = np.random.default_rng(12345).permutation(figures.vocabulary - 1) + 1
    source = np.random.default_rng(seed).integers(1, figures.vocabulary, (examples, figures.tokens))
    target = rename[source - 1][:, ::-1]
    shifted = np.concatenate([np.zeros((examples, 1), int), target[:, :-1]], 1)
    return (source.astype(np.int32), shifted.astype(np.int32)), target.astype(np.int32)


def gnmt(name: str, size: str, figures: TranslationSize) -> Workload:
    import keras
    from keras import layers

    def lstm() -> Any:
        return layers.LSTM(figures.width, return_sequences=True)

    def model() -> Any:
        source = keras.Input((figures.tokens,), dtype="int32")
        shifted = keras.Input((figures.tokens,), dtype="int32")
        half = layers.LSTM(figures.width // 2, return_sequences=True)
        memory = layers.Bidirectional(half)(
            layers.Embedding(figures.vocabulary, figures.width)(source)
        )
        for index in range(figures.layers - 1):
            memory = lstm()(memory) + memory if index else lstm()(memory)
        x = lstm()(layers.Embedding(figures.vocabulary, figures.width)(shifted))
        context = layers.Attention()([x, memory])
        for _ in range(
            figures.layers - 1
        ):  # every decoder layer sees the attention, as in Wu et al. 2016
            x = lstm()(layers.Concatenate()([x, context])) + x
        return keras.Model([source, shifted], layers.Dense(figures.vocabulary)(x), name=name)

    return Workload(
        name=name,
        size=size,
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        data=lambda examples, seed: reversals(figures, examples, seed),
        batch=figures.batch,
        batches=figures.batches,
        learning_rate=2e-3,
    )


def gru(name: str, size: str, figures: TranslationSize) -> Workload:
    import keras
    from keras import layers

    def model() -> Any:
        tokens = keras.Input((figures.tokens,), dtype="int32")
        x = layers.Embedding(figures.vocabulary, figures.width)(tokens)
        for _ in range(figures.layers):
            x = layers.GRU(figures.width, return_sequences=True)(x)
        return keras.Model(tokens, layers.Dense(figures.vocabulary)(x), name=name)

    def data(examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        (_, shifted), target = reversals(figures, examples, seed)
        return shifted, target

    return Workload(
        name=name,
        size=size,
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        data=data,
        batch=figures.batch,
        batches=figures.batches,
        learning_rate=2e-3,
    )


BENCHMARKS = (
    Benchmark(
        "gnmt",
        "GNMT LSTM",
        "Translation with LSTM layers; Wu et al. 2016, four layers on each side at the real size.",
        gnmt,
        {
            "tiny": TranslationSize(6, 20, 16, 2, 8, (8,)),
            "small": TranslationSize(20, 1000, 256, 2, 32, (16, 32, 64)),
            "real": TranslationSize(50, 32_320, 1024, 4, 128, (128, 192)),
        },
    ),
    Benchmark(
        "gru",
        "GRU language model",
        "Language modelling with GRU layers, Cho et al. 2014.",
        gru,
        {
            "tiny": TranslationSize(6, 20, 16, 2, 8, (8,)),
            "small": TranslationSize(20, 1000, 256, 2, 32, (16, 32, 64)),
            "real": TranslationSize(50, 10_000, 1024, 2, 64, (64, 128)),
        },
        is_common=False,
    ),
)
