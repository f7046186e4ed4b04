"""Transformers: a BERT encoder that finds answer spans, a GPT-style decoder that predicts the next
token.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from benchmarks.models.workload import Benchmark, Workload


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

    places = layers.Embedding(figures.tokens, figures.width, name="places")(
        ops.arange(figures.tokens)
    )
    return layers.Embedding(figures.vocabulary, figures.width, name="words")(tokens) + places


def _attention(x: Any, figures: TransformerSize, causal: bool) -> Any:
    from keras import layers

    return layers.MultiHeadAttention(figures.heads, figures.width // figures.heads)(
        x, x, use_causal_mask=causal
    )


def _feed_forward(x: Any, figures: TransformerSize) -> Any:
    from keras import activations, layers

    def gelu(x: Any) -> Any:
        return activations.gelu(x, approximate=not figures.has_exact_gelu)

    return layers.Dense(figures.width)(layers.Dense(4 * figures.width, activation=gelu)(x))


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
    tokens[rows, first], tokens[rows, last] = 1, 2
    return tokens.astype(np.int32), np.stack([first, last], -1).astype(np.int32)


def span_loss(target: Any, prediction: Any) -> Any:
    """Cross entropy of where a span starts and where it ends, the mean of both.

    Args:
        target: int32 of shape (batch, 2).
        prediction: logits of shape (batch, tokens, 2).

    Returns:
        A value per example, shape (batch,).
    """
    import keras

    logits = keras.ops.transpose(keras.ops.cast(prediction, "float32"), (0, 2, 1))
    entropy = keras.ops.sparse_categorical_crossentropy(
        keras.ops.cast(target, "int32"), logits, from_logits=True
    )
    return keras.ops.mean(entropy, axis=-1)


def bert(name: str, size: str, figures: TransformerSize) -> Workload:
    def model() -> Any:
        import keras
        from keras import layers

        tokens = keras.Input((figures.tokens,), dtype="int32")
        x = layers.LayerNormalization(epsilon=1e-12)(_embedded(tokens, figures))
        for _ in range(figures.layers):
            x = layers.LayerNormalization(epsilon=1e-12)(x + _attention(x, figures, causal=False))
            x = layers.LayerNormalization(epsilon=1e-12)(x + _feed_forward(x, figures))
        return keras.Model(tokens, layers.Dense(2)(x), name=name)

    return Workload(
        name=name,
        size=size,
        model=model,
        loss=span_loss,
        data=lambda examples, seed: marked_spans(figures, examples, seed),
        batch=figures.batch,
        batches=figures.batches,
        learning_rate=3e-4,
    )


def walks(figures: TransformerSize, examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Walks on a fixed graph in which each token has two followers: the next token is one bit away
    from certain.

    Returns:
        int32 tokens of shape (examples, tokens) and, shifted by one, the int32 tokens that follow
        them.
    """
    followers = np.random.default_rng(12345).integers(
        0, figures.vocabulary, (figures.vocabulary, 2)
    )
    rng = np.random.default_rng(seed)
    steps = [rng.integers(0, figures.vocabulary, examples)]
    for _ in range(figures.tokens):
        steps.append(followers[steps[-1], rng.integers(0, 2, examples)])
    tokens = np.stack(steps, 1).astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:]


def gpt(name: str, size: str, figures: TransformerSize) -> Workload:
    import keras
    from keras import layers

    def model() -> Any:
        tokens = keras.Input((figures.tokens,), dtype="int32")
        x = _embedded(tokens, figures)
        for _ in range(figures.layers):
            x = x + _attention(layers.LayerNormalization()(x), figures, causal=True)
            x = x + _feed_forward(layers.LayerNormalization()(x), figures)
        logits = layers.Dense(figures.vocabulary, use_bias=False)(layers.LayerNormalization()(x))
        return keras.Model(tokens, logits, name=name)

    return Workload(
        name=name,
        size=size,
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        data=lambda examples, seed: walks(figures, examples, seed),
        batch=figures.batch,
        batches=figures.batches,
        learning_rate=1e-3,
    )


BENCHMARKS = (
    Benchmark(
        "bert",
        "BERT encoder",
        "Question answering by spans; Devlin et al. 2018, the real size is BERT-large at 384 "
        "tokens.",
        bert,
        {
            "tiny": TransformerSize(16, 50, 32, 2, 2, 4, (4,)),
            "small": TransformerSize(64, 2000, 256, 4, 4, 16, (4, 16, 32)),
            "real": TransformerSize(384, 30_522, 1024, 16, 24, 10, (4, 10, 32)),
        },
    ),
    Benchmark(
        "gpt",
        "GPT decoder",
        "Language modelling; Radford et al. 2019, the real size is GPT-2 small at 1024 tokens.",
        gpt,
        {
            "tiny": TransformerSize(16, 32, 32, 2, 2, 4, (4,)),
            "small": TransformerSize(64, 2000, 256, 4, 4, 16, (4, 16, 32)),
            "real": TransformerSize(1024, 50_304, 768, 12, 12, 8, (4, 8, 16)),
        },
    ),
)
