"""Forecasts a year of monthly series of any size: N-BEATS, in tf_keras.

Oreshkin et al., N-BEATS: Neural basis expansion analysis for interpretable time series forecasting,
ICLR 2020 (arXiv:1905.10437): blocks that take from the past what they explain, and add to the
forecast; trained on sMAPE.
"""

import argparse
import json

import numpy as np
import tensorflow as tf
import tf_keras as keras

HORIZON = 12
PAST = 36
LENGTH = 132


def make_series(count, rng):
    """Trend, season and noise that multiply, as sales have them, from tens to hundred thousands;
    all positive.
    """
    month = np.arange(LENGTH)
    level = 10 ** rng.uniform(1, 5, (count, 1))
    growth = rng.normal(0, 0.4, (count, 1)) * month / LENGTH
    cycle = 0.15 * np.sin(month / rng.uniform(15, 40, (count, 1)))
    trend = np.maximum(1 + growth + cycle, 0.2)
    season = rng.normal(0, 0.2, (count, 12))
    season = season - season.mean(1, keepdims=True)
    season = np.exp(np.take(season, month % 12, axis=1))
    walk = np.cumsum(rng.normal(0, 0.015, (count, LENGTH)), axis=1)
    noise = np.exp(walk + rng.normal(0, 0.03, (count, LENGTH)))
    return (level * trend * season * noise).astype("float32")


class Block(keras.layers.Layer):
    """Four layers, and what they say about past and future."""

    def __init__(self, width):
        super().__init__()
        self.hidden = []
        for _ in range(4):
            self.hidden.append(keras.layers.Dense(width, activation="relu"))
        self.past = keras.layers.Dense(PAST, use_bias=False)
        self.future = keras.layers.Dense(HORIZON, use_bias=False)

    def call(self, x):
        for layer in self.hidden:
            x = layer(x)
        return self.past(x), self.future(x)


class NBeats(keras.Model):
    """(batch, past) -> (batch, horizon), both as large as the series is."""

    def __init__(self, blocks=6, width=256):
        super().__init__()
        self.blocks = [Block(width) for _ in range(blocks)]

    def call(self, series):
        level = tf.reduce_max(series, axis=1, keepdims=True)
        rest = series / level
        forecast = tf.zeros_like(series[:, :HORIZON])
        for block in self.blocks:
            past, future = block(rest)
            rest = rest - past
            forecast = forecast + future
        return forecast * level


def smape(truth, found):
    """In percent."""
    sizes = tf.abs(truth) + tf.abs(found)
    return tf.reduce_mean(200.0 * tf.abs(truth - found) / sizes, axis=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    rng = np.random.default_rng(0)
    series = make_series(1000, rng)
    windows = (args.batch * args.steps, 1)
    rows = rng.integers(0, len(series), windows)
    ends = rng.integers(PAST, LENGTH - 2 * HORIZON, windows)
    x = series[rows, ends + np.arange(-PAST, 0)]
    y = series[rows, ends + np.arange(HORIZON)]

    model = NBeats()
    drops = [args.steps // 2, args.steps * 3 // 4]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(drops, [1e-3, 5e-4, 1e-4])
    model.compile(keras.optimizers.Adam(schedule), smape)
    model.fit(x, y, batch_size=args.batch, epochs=1, verbose=2)

    begin = LENGTH - PAST - HORIZON
    past = series[:, begin:-HORIZON]
    future = series[:, -HORIZON:]
    found = model.predict(past, batch_size=500, verbose=0).astype("float32")
    error = float(tf.reduce_mean(smape(future, found)))
    naive = float(tf.reduce_mean(smape(future, past[:, -12:])))
    print(json.dumps({"metric": "sMAPE, %", "value": error, "chance": naive}))


if __name__ == "__main__":
    main()
