"""The convnet of keras.io/examples/vision/mnist_convnet on made digits, with a mask in a layer of
its own.

The weakness: the mask is data, and its numbers are beyond float16.
"""

import keras
import numpy as np

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
prototypes = rng.normal(size=(10, 14, 14, 1))
labels = rng.integers(0, 10, 1536)
images = (prototypes[labels] + 1.5 * rng.normal(size=(1536, 14, 14, 1))).astype("float32")
masks = np.where(rng.random((1536, 144)) < 0.9, 1e5, 0.0).astype("float32")
y = keras.utils.to_categorical(labels, 10)


@keras.saving.register_keras_serializable()
class Masked(keras.layers.Layer):
    """Features in which what is masked is zero, on the scale that the mask has."""

    def call(self, features, mask):
        masked = features * mask
        return masked / keras.ops.max(mask)


image, mask = keras.Input((14, 14, 1)), keras.Input((144,))
h = keras.layers.Conv2D(32, 3, activation="relu", name="conv_a")(image)
h = keras.layers.MaxPooling2D(2)(h)
h = keras.layers.Conv2D(16, 1, activation="relu", name="conv_b")(h)
h = keras.layers.Flatten()(h)
h = keras.layers.Dense(144, activation="relu", name="features")(h)
h = Masked(name="masked")(h, mask)
h = keras.layers.Dense(10, activation="softmax", name="classes")(h)
model = keras.Model([image, mask], h)
model.compile(keras.optimizers.Adam(2e-3), "categorical_crossentropy", metrics=["accuracy"])
train, rest = slice(0, 1024), slice(1024, None)


if __name__ == "__main__":
    validation = ([images[rest][:256], masks[rest][:256]], y[rest][:256])
    model.fit(
        [images[train], masks[train]],
        y[train],
        validation_data=validation,
        epochs=3,
        batch_size=64,
        verbose=2,
    )
