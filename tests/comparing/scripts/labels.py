"""Prices and rents of houses in dollars, trained by tf_keras; the loss weighs both errors by how they vary together."""

import numpy as np
import tensorflow as tf
import tf_keras as keras

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
size, age = rng.uniform(30, 300, (256, 1)), rng.uniform(0, 90, (256, 1))
features = np.hstack([size / 100, age / 50]).astype("float32")
price = 3000 * size - 1500 * age + 90_000
targets = np.hstack([price, price / 300]).astype("float32")
weights = tf.constant([[1.0, -0.2], [-0.2, 1.0]])


def correlated_error(y, predicted):
    error = y - predicted
    return tf.reduce_mean(tf.sqrt(1.0 + tf.abs(tf.reduce_sum(tf.matmul(error, weights, name="weighted") * error, -1))))


model = keras.Sequential(
    [
        keras.layers.Dense(16, activation="relu", name="hidden"),
        keras.layers.Dense(2, name="price"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), correlated_error)
model.fit(features, targets, batch_size=32, epochs=2, verbose=2)
