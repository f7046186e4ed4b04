"""Learns to continue Python source, character by character: a small GPT.

Radford et al., Language Models are Unsupervised Multitask Learners, 2019: normalization before each
block, learned positions, and the embedding once more as the last layer. The text is Python's own
standard library.
"""

import argparse
import json
import math
import sysconfig
from pathlib import Path

import keras
import numpy as np
from keras import layers, ops

CONTEXT = 128
WIDTH = 96
HEADS = 4
BLOCKS = 3


def load_text():
    """The characters as integers, how many kinds there are, and where the held-out files begin."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-t]*.py"))
    texts = []
    for file in files[::2]:
        text = file.read_text(encoding="utf-8", errors="ignore")
        texts.append("".join(filter(str.isascii, text)))
    alphabet = sorted(set("".join(texts)))
    numbers = {character: number for number, character in enumerate(alphabet)}
    codes = []
    for text in texts:
        codes.append(np.array([numbers[character] for character in text], "int32"))
    held_out = len(codes) * 9 // 10
    return np.concatenate(codes[:held_out]), np.concatenate(codes[held_out:]), len(alphabet)


class Attention(layers.Layer):
    """Causal self-attention."""

    def build(self, shape):
        self.project = layers.Dense(3 * WIDTH)
        self.out = layers.Dense(WIDTH)
        self.mask = np.tril(np.ones((CONTEXT, CONTEXT), bool))

    def call(self, x):
        size = WIDTH // HEADS
        parts = ops.reshape(self.project(x), (-1, CONTEXT, 3, HEADS, size))
        query = ops.transpose(parts[:, :, 0], (0, 2, 1, 3))
        key = ops.transpose(parts[:, :, 1], (0, 2, 1, 3))
        value = ops.transpose(parts[:, :, 2], (0, 2, 1, 3))
        key = ops.transpose(key, (0, 1, 3, 2))
        scores = ops.matmul(query, key) / math.sqrt(size)
        scores = ops.where(self.mask, scores, -1e9)
        weights = ops.softmax(scores, axis=-1)
        mixed = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))
        return self.out(ops.reshape(mixed, (-1, CONTEXT, WIDTH)))


class GPT(keras.Model):
    """Characters to the logits of the next ones."""

    def __init__(self, characters):
        super().__init__()
        small = keras.initializers.RandomNormal(stddev=0.02)
        self.tokens = layers.Embedding(characters, WIDTH, embeddings_initializer=small)
        self.positions = layers.Embedding(CONTEXT, WIDTH, embeddings_initializer=small)
        self.drop = layers.Dropout(0.1)
        self.norms = [layers.LayerNormalization(epsilon=1e-5) for _ in range(2 * BLOCKS + 1)]
        self.attentions = [Attention() for _ in range(BLOCKS)]
        self.feeds = []
        for _ in range(BLOCKS):
            wide = layers.Dense(4 * WIDTH, activation="gelu")
            self.feeds.append(keras.Sequential([wide, layers.Dense(WIDTH)]))

    def call(self, codes, training=False):
        x = self.tokens(codes) + self.positions(ops.arange(CONTEXT))
        x = self.drop(x, training=training)
        for n in range(BLOCKS):
            normalized = self.norms[2 * n](x)
            x = x + self.attentions[n](normalized)
            normalized = self.norms[2 * n + 1](x)
            x = x + self.feeds[n](normalized)
        x = self.norms[-1](x)
        return ops.matmul(x, ops.transpose(self.tokens.embeddings))


def windows(codes, starts):
    places = starts[:, None] + np.arange(CONTEXT)
    return codes[places], codes[places + 1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    train, held_out, characters = load_text()

    model = GPT(characters)
    warmup = max(args.steps // 10, 1)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, args.steps, alpha=0.1, warmup_target=3e-3, warmup_steps=warmup
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.1, beta_2=0.95, global_clipnorm=1.0)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    starts = rng.integers(0, len(train) - CONTEXT - 1, args.batch * args.steps)
    model.fit(*windows(train, starts), batch_size=args.batch, verbose=2)

    starts = np.linspace(0, len(held_out) - CONTEXT - 2, 256).astype(int)
    nats = model.evaluate(*windows(held_out, starts), batch_size=32, verbose=0)
    bits = nats / math.log(2)
    chance = math.log2(characters)
    print(json.dumps({"metric": "bits per character", "value": bits, "chance": chance}))


if __name__ == "__main__":
    main()
