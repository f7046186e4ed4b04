"""An MLP, a residual CNN, a transformer encoder and an LSTM: 20 steps of Keras fit each."""

import json

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(1)


def mlp():
    x = rng.normal(size=(320, 48)).astype("float32")
    body = [layers.Dense(64, activation="relu"), layers.Dropout(0.1, seed=1), layers.Dense(64, activation="tanh")]
    return keras.Sequential([keras.Input((48,)), *body, layers.Dense(4)]), x


def residual_cnn():
    x = rng.normal(size=(320, 16, 16, 3)).astype("float32")
    inputs = keras.Input((16, 16, 3))
    h = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    h = layers.ReLU()(layers.BatchNormalization()(h))
    for filters, strides in ((16, 1), (32, 2)):
        shortcut = layers.Conv2D(filters, 1, strides=strides, use_bias=False)(h)
        r = layers.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(h)
        r = layers.ReLU()(layers.BatchNormalization()(r))
        r = layers.Conv2D(filters, 3, padding="same", use_bias=False)(r)
        h = layers.ReLU()(layers.Add()([layers.BatchNormalization()(r), layers.BatchNormalization()(shortcut)]))
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling2D()(h))), x


def transformer_encoder():
    x = rng.integers(0, 50, size=(320, 12))
    inputs = keras.Input((12,), dtype="int32")
    h = layers.Embedding(50, 32)(inputs)
    for _ in range(2):
        h = layers.LayerNormalization()(h + layers.MultiHeadAttention(4, 8)(h, h))
        h = layers.LayerNormalization()(h + layers.Dense(32)(layers.Dense(64, activation="gelu")(h)))
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling1D()(h))), x


def lstm():
    x = rng.normal(size=(320, 10, 16)).astype("float32")
    body = [layers.LSTM(32, return_sequences=True), layers.LSTM(32)]
    return keras.Sequential([keras.Input((10, 16)), *body, layers.Dense(4)]), x


class Losses(keras.callbacks.Callback):
    """The loss of each step (Keras reports the mean since the epoch began)."""

    def on_train_batch_end(self, batch, logs=None):
        self.means = [*getattr(self, "means", []), logs["loss"]]

    def each(self):
        sums = np.cumsum(np.ones(len(self.means))) * self.means
        return np.diff(sums, prepend=0.0).tolist()


results = {}
for build in (mlp, residual_cnn, transformer_encoder, lstm):
    keras.utils.set_random_seed(1)
    model, data = build()
    labels = np.abs(data.reshape(len(data), -1)[:, :4]).argmax(axis=1)
    model.compile(keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = Losses()
    model.fit(data, labels, batch_size=16, epochs=1, shuffle=False, verbose=0, callbacks=[losses])
    results[build.__name__] = losses.each()
print(json.dumps(results))
