"""The transformer of keras.io/examples/nlp/text_classification_with_transformer on made texts, with
sharp attention.

The weakness: one layer attends to the word that its key names, by scores in the hundreds of which
small differences count.
"""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
WORDS, LENGTH, WIDTH = 200, 24, 32
texts = rng.integers(1, WORDS, (2048, LENGTH))
wanted = rng.integers(0, LENGTH, 2048)
places = np.arange(LENGTH)
labels = texts[np.arange(2048), wanted] % 4  # the class of the word at a place that is given


@keras.saving.register_keras_serializable()
class Sharp(layers.Layer):
    """Attends to the place that is nearest to the one that is given."""

    def build(self, shape):
        self.query = self.add_weight(
            shape=(3, 3), initializer="identity", name="query", trainable=False
        )

    def call(self, values, place):
        position = ops.cast(ops.arange(LENGTH), "float32")[None, :]
        ones = ops.ones_like(place)
        query = ops.matmul(
            ops.concatenate([place * place, place, ones], -1), self.query
        )  # (batch, 3)
        rows = ops.ones_like(position)
        key = ops.concatenate([-rows, 2 * position, -position * position], 0)  # (3, length)
        scores = ops.matmul(
            query, key
        )  # minus the square of the distance, from numbers of up to 1,000
        weights = ops.softmax(4.0 * scores)
        return ops.squeeze(ops.matmul(ops.expand_dims(weights, 1), values), 1)


text, place = keras.Input((LENGTH,), dtype="int32"), keras.Input((1,))
h = layers.Embedding(WORDS, WIDTH, name="words")(text) + layers.Embedding(
    LENGTH, WIDTH, name="positions"
)(ops.arange(LENGTH))
attended = layers.MultiHeadAttention(2, WIDTH, name="attention")(h, h)
h = layers.LayerNormalization(name="norm_a")(h + attended)
h = layers.LayerNormalization(name="norm_b")(
    h + layers.Dense(WIDTH, activation="relu", name="feed")(h)
)
h = Sharp(name="sharp")(h, place)
h = layers.Dense(32, activation="relu", name="hidden")(h)
h = layers.Dense(4, activation="softmax", name="classes")(h)
model = keras.Model([text, place], h)
model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
inputs = [texts, wanted[:, None].astype("float32")]


if __name__ == "__main__":
    validation = ([part[1536:1792] for part in inputs], labels[1536:1792])
    model.fit(
        [part[:1536] for part in inputs],
        labels[:1536],
        validation_data=validation,
        epochs=6,
        verbose=2,
    )
