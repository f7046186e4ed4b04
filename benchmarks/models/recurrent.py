"""A GNMT-style translation model, LSTM encoder and decoder with attention, and a language model of
GRU layers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from benchmarks.models.workload import Benchmark


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
    rng = np.random.default_rng(seed)
    source = rng.integers(1, figures.vocabulary, (examples, figures.tokens))
    target = rename[source - 1][:, ::-1]
    start = np.zeros((examples, 1), int)
    shifted = np.concatenate([start, target[:, :-1]], 1)
    return (source.astype(np.int32), shifted.astype(np.int32)), target.astype(np.int32)


def gnmt(name: str, figures: TranslationSize) -> Any:
    import keras
    from keras import layers

    def lstm(x: Any) -> Any:
        return layers.LSTM(figures.width, return_sequences=True)(x)

    def embedded(tokens: Any) -> Any:
        return layers.Embedding(figures.vocabulary, figures.width)(tokens)

    source = keras.Input((figures.tokens,), dtype="int32")
    shifted = keras.Input((figures.tokens,), dtype="int32")
    # The encoder: one layer in both directions, the others with residuals but for the second.
    half = layers.LSTM(figures.width // 2, return_sequences=True)
    both = layers.Bidirectional(half)
    memory = both(embedded(source))
    for index in range(figures.layers - 1):
        above = lstm(memory)
        memory = above + memory if index else above
    # Every layer of the decoder sees the attention, as in Wu et al. 2016.
    first = layers.LSTM(figures.width, return_sequences=True)
    x = first(embedded(shifted))
    context = layers.Attention()([x, memory])
    for _ in range(figures.layers - 1):
        joined = layers.Concatenate()([x, context])
        x = lstm(joined) + x
    logits = layers.Dense(figures.vocabulary)(x)
    return keras.Model([source, shifted], logits, name=name)


def gru(name: str, figures: TranslationSize) -> Any:
    import keras
    from keras import layers

    tokens = keras.Input((figures.tokens,), dtype="int32")
    x = layers.Embedding(figures.vocabulary, figures.width)(tokens)
    for _ in range(figures.layers):
        x = layers.GRU(figures.width, return_sequences=True)(x)
    logits = layers.Dense(figures.vocabulary)(x)
    return keras.Model(tokens, logits, name=name)


def reversed_sentences(
    figures: TranslationSize, examples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The targets of :func:`reversals`, which follow from the shifted ones."""
    (_, shifted), target = reversals(figures, examples, seed)
    return shifted, target


BENCHMARKS = (
    # Translation with LSTM layers; Wu et al. 2016.
    Benchmark(
        "gnmt",
        "GNMT LSTM",
        gnmt,
        reversals,
        {
            "tiny": TranslationSize(6, 20, 16, 2, 8, (8,)),
            "small": TranslationSize(20, 1000, 256, 2, 32, (16, 32, 64)),
        },
        learning_rate=2e-3,
    ),
    # Language modelling with GRU layers; Cho et al. 2014.
    Benchmark(
        "gru",
        "GRU language model",
        gru,
        reversed_sentences,
        {
            "tiny": TranslationSize(6, 20, 16, 2, 8, (8,)),
            "small": TranslationSize(20, 1000, 256, 2, 32, (16, 32, 64)),
        },
        learning_rate=2e-3,
        is_common=False,
    ),
)
