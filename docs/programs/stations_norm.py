"""A network on measurements around large means.

The weakness: its normalization is in amp_tf.scope("f16").
"""

import keras
import numpy as np
from keras import ops

import amp_tf

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
signal = rng.normal(size=(2048, 32)).astype("float32")
x = (signal + 300.0 * rng.normal(size=(2048, 1))).astype("float32")
labels = (signal[:, 0] * signal[:, 1] + signal[:, 2] > 0).astype("float32")


@keras.saving.register_keras_serializable()
class Normalized(keras.layers.Layer):
    """Takes the mean off each example and divides by the deviation, by the mean of squares."""

    def call(self, values):
        with amp_tf.scope("f16"):
            mean = ops.mean(values, -1, keepdims=True)
            square = ops.mean(values * values, -1, keepdims=True)
            return (values - mean) / ops.sqrt(ops.abs(square - mean * mean) + 1e-3)


inputs = keras.Input((32,))
h = Normalized(name="normalized")(inputs)
for number in range(3):
    h = keras.layers.Dense(96, activation="relu", name=f"hidden{number}")(h)
h = keras.layers.Dense(1, activation="sigmoid", name="answer")(h)
model = keras.Model(inputs, h)
model.compile(keras.optimizers.Adam(2e-3), "binary_crossentropy", metrics=["accuracy"])


if __name__ == "__main__":
    validation = (x[1536:1792], labels[1536:1792])
    model.fit(
        x[:1536], labels[:1536], validation_data=validation, epochs=12, batch_size=64, verbose=2
    )
