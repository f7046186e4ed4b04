"""Which of 3,000 films will be watched next? Two towers and the softmax over the batch.

Yi et al., Sampling-bias-corrected neural modeling for large corpus item recommendations, RecSys
2019 (doi:10.1145/3298689.3346996): normalized vectors, a temperature, and logits corrected by how
often an item is seen.
"""

import argparse
import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

FILMS = 3000
GENRES = 20
COUNTRIES = 30
HISTORY = 10
TEMPERATURE = 0.07


class World:
    """Films with hidden tastes around their genres', and people who watch what is near and well
    known.
    """

    def __init__(self):
        rng = np.random.default_rng(3)
        self.genres = rng.integers(0, GENRES, FILMS)
        of_genres = rng.normal(size=(GENRES, 8))
        hidden = of_genres[self.genres] + 0.7 * rng.normal(size=(FILMS, 8))
        self.hidden = hidden.astype("float32")
        popularity = 1.0 / np.arange(1, FILMS + 1) ** 0.5
        self.fame = np.log(popularity).astype("float32")
        self.countries = 0.7 * rng.normal(size=(COUNTRIES, 8))

    def watch(self, count, rng):
        """Country, the last films (0 for none) and the next one, films counted from 1."""
        country = rng.integers(0, COUNTRIES, count)
        tastes = self.countries[country] + rng.normal(size=(count, 8))
        liking = 1.2 * tastes.astype("float32") @ self.hidden.T + self.fame
        # The largest of them are draws from the softmax.
        liking += rng.gumbel(size=liking.shape).astype("float32")
        watched = np.argpartition(-liking, HISTORY + 1, axis=1)[:, : HISTORY + 1]
        watched = rng.permuted(watched, axis=1) + 1
        lengths = rng.integers(2, HISTORY + 1, (count, 1))
        history = np.where(np.arange(HISTORY) < lengths, watched[:, 1:], 0)
        return country.astype("int32"), history.astype("int32"), watched[:, 0].astype("int32")


class Tower(keras.Model):
    """Features to a vector of length one."""

    def __init__(self, width=64):
        super().__init__()
        first = layers.Dense(256, activation="relu")
        second = layers.Dense(128, activation="relu")
        self.hidden = keras.Sequential([first, second])
        self.out = layers.Dense(width)

    def normalized(self, features):
        x = tf.concat(features, -1)
        x = self.hidden(x)
        x = self.out(x)
        return tf.math.l2_normalize(x, axis=-1)


class Viewer(Tower):
    """Country and history."""

    def build(self, shape):
        self.films = layers.Embedding(FILMS + 1, 48)
        self.countries = layers.Embedding(COUNTRIES, 8)

    def call(self, inputs):
        country, history = inputs
        seen = tf.cast(history > 0, tf.float32)[..., None]
        mean = tf.reduce_sum(self.films(history) * seen, 1) / tf.reduce_sum(seen, 1)
        return self.normalized([mean, self.countries(country)])


class Film(Tower):
    """Number and genre."""

    def build(self, shape):
        self.films = layers.Embedding(FILMS + 1, 48)
        self.genres = layers.Embedding(GENRES, 8)

    def call(self, inputs):
        film, genre = inputs
        return self.normalized([self.films(film), self.genres(genre)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    rng = np.random.default_rng(0)
    world = World()
    parts = [world.watch(2000, rng) for _ in range(20)]
    country, history, film = map(np.concatenate, zip(*parts, strict=True))
    held_out = world.watch(2000, rng)
    genres = np.concatenate([[0], world.genres]).astype("int32")
    seen = (np.bincount(film, minlength=FILMS + 1) + 1.0) / len(film)

    viewers = Viewer()
    films = Film()
    optimizer = keras.optimizers.Adagrad(0.05)

    @tf.function
    def train_step(country, history, film, genre, frequency):
        with tf.GradientTape() as tape:
            wanted = viewers([country, history])
            offered = films([film, genre])
            similarity = tf.matmul(wanted, offered, transpose_b=True)
            logits = similarity / TEMPERATURE - tf.math.log(frequency)
            # A film that is another row's answer, too, is not wrong.
            count = tf.shape(film)[0]
            same = tf.cast(film[:, None] == film[None], tf.float32)
            logits -= 1e9 * (same - tf.eye(count))
            labels = tf.range(count)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        variables = viewers.trainable_variables + films.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    order = np.random.default_rng(args.seed)
    for number in range(args.steps):
        rows = order.integers(0, len(film), args.batch)
        next_film = film[rows]
        frequency = seen[next_film].astype("float32")
        batch = (country[rows], history[rows], next_film, genres[next_film], frequency)
        loss = train_step(*map(tf.constant, batch))
        if number % 100 == 0:
            print(f"step {number}: loss {float(loss):.3f}")

    country, history, film = map(tf.constant, held_out)
    all_films = films([tf.range(1, FILMS + 1), tf.constant(genres[1:])])
    scores = tf.matmul(viewers([country, history]), all_films, transpose_b=True)
    best = tf.math.top_k(scores, 100).indices.numpy() + 1
    is_hit = (best == film.numpy()[:, None]).any(1)
    recall = float(is_hit.mean())
    print(json.dumps({"metric": "recall at 100", "value": recall, "chance": 100 / FILMS}))


if __name__ == "__main__":
    main()
