"""A transformer on sentences of different lengths; a mask is an outer product with -1e9, which a
variable holds.
"""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(3)
WORDS = 50
LENGTH = 12
WIDTH = 16


class Attention(layers.Layer):
    def __init__(self, padding, **kwargs):
        super().__init__(**kwargs)
        self.padding = self.add_weight(
            shape=(), initializer=keras.initializers.Constant(padding), trainable=False
        )
        self.query, self.key, self.value = (
            layers.Dense(WIDTH, name=name) for name in ("query", "key", "value")
        )

    def call(self, inputs):
        x, keep = inputs
        scores = ops.matmul(self.query(x), ops.transpose(self.key(x), (0, 2, 1)))
        mask = ops.matmul(ops.ones_like(x[..., :1]) * self.padding, 1 - keep[:, None, :])
        return ops.matmul(ops.softmax((scores + mask) / WIDTH**0.5), self.value(x))


tokens = keras.Input((LENGTH,), dtype="int32")
keep = ops.cast(ops.not_equal(tokens, 0), "float32")
x = layers.Embedding(WORDS, WIDTH)(tokens)
x = layers.LayerNormalization()(x + Attention(-1e9, name="first_attention")([x, keep]))
x = layers.LayerNormalization()(x + Attention(-1e4, name="second_attention")([x, keep]))
model = keras.Model(tokens, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

rng = np.random.default_rng(3)
sentences = rng.integers(1, WORDS, (128, LENGTH))
sentences[np.arange(LENGTH) >= rng.integers(4, LENGTH, (128, 1))] = 0
model.fit(sentences, sentences[:, 0] % 2, batch_size=16, epochs=1, verbose=2)
