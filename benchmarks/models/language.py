"""Transformers: a BERT encoder that finds answer spans, a GPT-style decoder that predicts the next
token.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from benchmarks.models.workload import Benchmark


@dataclasses.dataclass(frozen=True)
class TransformerSize:
    """The figures of a transformer; the feed-forward layers are four times as wide as ``width``.

    Their Gelu is the exact one, by the error function, or its approximation by a tanh.
    """

    tokens: int
    vocabulary: int
    width: int
    heads: int
    layers: int
    batch: int
    batches: tuple[int, ...]
    has_exact_gelu: bool = True


def _embedded(tokens: Any, figures: TransformerSize) -> Any:
    from keras import layers, ops

    numbers = ops.arange(figures.tokens)
    places = layers.Embedding(figures.tokens, figures.width, name="places")(numbers)
    words = layers.Embedding(figures.vocabulary, figures.width, name="words")(tokens)
    return words + places


def _attention(x: Any, figures: TransformerSize, causal: bool) -> Any:
    from keras import layers

    attention = layers.MultiHeadAttention(figures.heads, figures.width // figures.heads)
    return attention(x, x, use_causal_mask=causal)


def _feed_forward(x: Any, figures: TransformerSize) -> Any:
    from keras import activations, layers

    def gelu(x: Any) -> Any:
        return activations.gelu(x, approximate=not figures.has_exact_gelu)

    narrow = layers.Dense(figures.width)
    x = layers.Dense(4 * figures.width, activation=gelu)(x)
    return narrow(x)


def marked_spans(
    figures: TransformerSize, examples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens in which token 1 opens and token 2 closes the answer.

    Returns:
        int32 tokens of shape (examples, tokens) and int32 (first, last) of shape (examples, 2).
    """
    rng = np.random.default_rng(seed)
    tokens = rng.integers(3, figures.vocabulary, (examples, figures.tokens))
    first = rng.integers(0, figures.tokens // 2, examples)
    last = first + rng.integers(1, figures.tokens // 2, examples)
    rows = np.arange(examples)
    tokens[rows, first] = 1
    tokens[rows, last] = 2
    return tokens.astype(np.int32), np.stack([first, last], -1).astype(np.int32)


def span_loss(target: Any, prediction: Any) -> Any:
    """Cross entropy of where a span starts and where it ends, the mean of both.

    Args:
        target: int32 of shape (batch, 2).
        prediction: logits of shape (batch, tokens, 2).

    Returns:
        A value per example, shape (batch,).
    """
    from keras import ops

    logits = ops.transpose(ops.cast(prediction, "float32"), (0, 2, 1))
    places = ops.cast(target, "int32")
    entropy = ops.sparse_categorical_crossentropy(places, logits, from_logits=True)
    return ops.mean(entropy, axis=-1)


def bert(name: str, figures: TransformerSize) -> Any:
    import keras
    from keras import layers

    def normalized(x: Any) -> Any:
        return layers.LayerNormalization(epsilon=1e-12)(x)

    tokens = keras.Input((figures.tokens,), dtype="int32")
    x = normalized(_embedded(tokens, figures))
    for _ in range(figures.layers):
        x = normalized(x + _attention(x, figures, causal=False))
        x = normalized(x + _feed_forward(x, figures))
    return keras.Model(tokens, layers.Dense(2)(x), name=name)


def walks(figures: TransformerSize, examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Walks on a fixed graph in which each token has two followers: the next token is one bit away
    from certain.

    Returns:
        int32 tokens of shape (examples, tokens) and, shifted by one, the int32 tokens that follow
        them.
    """
    graph = np.random.default_rng(12345)
    followers = graph.integers(0, figures.vocabulary, (figures.vocabulary, 2))
    rng = np.random.default_rng(seed)
    token = rng.integers(0, figures.vocabulary, examples)
    steps = [token]
    for _ in range(figures.tokens):
        token = followers[token, rng.integers(0, 2, examples)]
        steps.append(token)
    tokens = np.stack(steps, 1).astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:]


def gpt(name: str, figures: TransformerSize) -> Any:
    import keras
    from keras import layers

    tokens = keras.Input((figures.tokens,), dtype="int32")
    x = _embedded(tokens, figures)
    for _ in range(figures.layers):
        normalized = layers.LayerNormalization()(x)
        x = x + _attention(normalized, figures, causal=True)
        normalized = layers.LayerNormalization()(x)
        x = x + _feed_forward(normalized, figures)
    x = layers.LayerNormalization()(x)
    logits = layers.Dense(figures.vocabulary, use_bias=False)(x)
    return keras.Model(tokens, logits, name=name)


BENCHMARKS = (
    # Question answering by spans; Devlin et al. 2018.
    Benchmark(
        "bert",
        "BERT encoder",
        bert,
        marked_spans,
        {
            "tiny": TransformerSize(16, 50, 32, 2, 2, 4, (4,)),
            "small": TransformerSize(64, 2000, 256, 4, 4, 16, (4, 16, 32)),
        },
        loss=lambda keras: span_loss,
        learning_rate=3e-4,
    ),
    # Language modelling; Radford et al. 2019.
    Benchmark(
        "gpt",
        "GPT decoder",
        gpt,
        walks,
        {
            "tiny": TransformerSize(16, 32, 32, 2, 2, 4, (4,)),
            "small": TransformerSize(64, 2000, 256, 4, 4, 16, (4, 16, 32)),
        },
    ),
)
