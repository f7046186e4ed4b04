"""tf.config.experimental.enable_op_determinism: two trainings from one seed are equal in every bit."""

import hashlib
import json

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

tf.config.experimental.enable_op_determinism()
digits = load_digits()
images, labels = (digits.images[..., None] / 16.0).astype("float32"), digits.target


def train():
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss, jit_compile=False)
    history = model.fit(images, labels, 64, 2, verbose=0).history
    return history["loss"], hashlib.sha256(b"".join(np.asarray(w).tobytes() for w in model.get_weights())).hexdigest()


(first, first_hash), (second, second_hash) = train(), train()
print(json.dumps({"loss": first, "same": first_hash == second_hash and first == second}))
