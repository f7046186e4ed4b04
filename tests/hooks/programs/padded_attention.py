"""A Keras script on sentences of different lengths: attention may not look at what is padded, nor
may padding look.
"""

import json
import sys

import keras
import numpy as np

keras.utils.set_random_seed(0)
tokens = keras.Input([12], dtype="int32")
x = keras.layers.Embedding(50, 64, mask_zero=True)(tokens)
x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(4, 16)(x, x))
logits = keras.layers.Dense(50)(keras.layers.Dense(64, activation="relu")(x))
model = keras.Model(tokens, logits)
model.compile(
    optimizer=keras.optimizers.SGD(0.1),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile=sys.argv[1] == "jit",
)
sentences = np.random.default_rng(0).integers(1, 50, (64, 12)).astype("int32")
sentences[:, 8:] = 0
sentences[:5, 4:] = 0
history = model.fit(sentences, sentences, epochs=3, batch_size=16, verbose=0).history
print(json.dumps({name: [float(value) for value in values] for name, values in history.items()}))
