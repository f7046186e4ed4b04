"""Will this user click on this ad? DLRM on made impressions.

Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems,
2019 (arXiv:1906.00091): embeddings of categories and a network of the counts, their dot products, a
network on top.
"""

import argparse
import json

import keras
import numpy as np
from keras import layers, ops

CATEGORIES = (40, 5000, 300, 2000, 12, 800, 100, 1500)  # of ad, user, site, campaign, weekday, …
COUNTS = 13
WIDTH = 16


def make_impressions(count, rng):
    """Categories are Zipf-distributed, as in click logs; hidden factors of some pairs decide on the
    click.
    """
    factors = np.random.default_rng(7)
    chosen = []
    hidden = []
    for size in CATEGORIES:
        popularity = 1.0 / np.arange(1, size + 1) ** 0.9
        rows = rng.choice(size, count, p=popularity / popularity.sum())
        chosen.append(rows)
        hidden.append(factors.normal(size=(size, 4))[rows])
    counts = rng.lognormal(1.0, 1.5, (count, COUNTS)).round()
    agreement = 0
    for i, j in ((0, 1), (1, 3), (2, 5), (6, 7)):
        agreement = agreement + (hidden[i] * hidden[j]).sum(1)
    interest = np.log1p(counts[:, :4]).sum(1)
    fatigue = np.log1p(counts[:, 4:6]).sum(1)
    logit = 0.5 * agreement + 0.4 * interest - 0.8 * fatigue - 1.5
    probability = 1 / (1 + np.exp(-logit[:, None]))
    clicks = rng.random((count, 1)) < probability
    x = (counts.astype("float32"), np.stack(chosen, 1).astype("int32"))
    return x, clicks.astype("float32")


class DotInteraction(layers.Layer):
    """The products of each pair of vectors, (batch, features, width) -> (batch, pairs)."""

    def build(self, shape):
        self.count = shape[1]
        rows, columns = np.tril_indices(self.count, -1)
        self.pairs = rows * self.count + columns

    def call(self, vectors):
        products = ops.matmul(vectors, ops.transpose(vectors, (0, 2, 1)))
        products = ops.reshape(products, (-1, self.count**2))
        return ops.take(products, self.pairs, axis=1)


def tower(*widths):
    return keras.Sequential([layers.Dense(width, activation="relu") for width in widths])


class DLRM(keras.Model):
    """Counts and categories to the logit of a click."""

    def __init__(self):
        super().__init__()
        self.tables = [layers.Embedding(size, WIDTH) for size in CATEGORIES]
        self.bottom = tower(256, 64, WIDTH)
        self.interaction = DotInteraction()
        self.top = tower(256, 128)
        self.click = layers.Dense(1)

    def call(self, inputs):
        counts, categories = inputs
        dense = self.bottom(ops.log1p(counts))
        vectors = [dense]
        for n, table in enumerate(self.tables):
            vectors.append(table(categories[:, n]))
        products = self.interaction(ops.stack(vectors, axis=1))
        x = self.top(ops.concatenate([dense, products], axis=1))
        return self.click(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    rng = np.random.default_rng(0)
    x, y = make_impressions(args.batch * min(args.steps, 250), rng)
    held_out, clicked = make_impressions(40_000, rng)

    model = DLRM()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    auc = keras.metrics.AUC(from_logits=True, name="auc")
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=[auc])
    epochs = max(args.steps // 250, 1)
    model.fit(x, y, batch_size=args.batch, epochs=epochs, verbose=2)
    _, auc = model.evaluate(held_out, clicked, batch_size=4096, verbose=0)
    print(json.dumps({"metric": "AUC", "value": auc, "chance": 0.5}))


if __name__ == "__main__":
    main()
