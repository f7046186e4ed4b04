"""A network that counts events over a long sequence.

The weakness: its user has put Cumsum on the infer list.
"""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
LENGTH = 2048
labels = rng.integers(0, 2, 768).astype("float32")
rates = 0.4 + 0.2 * labels[:, None, None]
events = (rng.random((768, LENGTH, 4)) < rates).astype("float32")


@keras.saving.register_keras_serializable()
class Count(keras.layers.Layer):
    """The running sum of each channel, and its last value."""

    def call(self, x):
        return tf.cumsum(x, axis=1)[:, -1]


inputs = keras.Input((LENGTH, 4))
h = keras.layers.Dense(4, kernel_initializer="identity", activation="relu", name="features")(inputs)
h = Count(name="count")(h)
h = keras.layers.Rescaling(4.0 / LENGTH, name="scaled")(h)
h = keras.layers.Dense(16, activation="relu", name="hidden")(h)
h = keras.layers.Dense(1, activation="sigmoid", name="answer")(h)
model = keras.Model(inputs, h)
model.compile(keras.optimizers.Adam(2e-2), "binary_crossentropy", metrics=["accuracy"])


if __name__ == "__main__":
    validation = (events[512:640], labels[512:640])
    model.fit(
        events[:512], labels[:512], validation_data=validation, epochs=12, batch_size=64, verbose=2
    )
