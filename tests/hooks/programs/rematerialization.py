"""``rematerialization.py POLICY``: losses of layers that the backward pass computes again, or the
error.
"""

from __future__ import annotations

import json
import sys

import keras
import numpy as np

L = keras.layers
IMAGES = np.random.default_rng(0).normal(size=(64, 16, 16, 8)).astype("float32")
LABELS = np.random.default_rng(1).integers(0, 10, 64)


class Block(L.Layer):
    """Two convolutions of which ``tf.recompute_grad`` keeps no result."""

    def build(self, shape):
        self.chain = keras.Sequential()
        for _ in range(2):
            self.chain.add(L.Conv2D(16, 3, padding="same", activation="gelu"))
        self.chain.build(shape)

    def call(self, x):
        return keras.remat(self.chain.call)(x)


def scoped():
    """A convolution in the scope's mode "full"; Keras takes the mode from where a layer is made."""
    with keras.RematScope(mode="full"):
        return L.Conv2D(16, 3, padding="same", activation="gelu")


def train(layer, **settings):
    keras.utils.set_random_seed(0)
    pooled = [L.GlobalAveragePooling2D(), L.Dense(10)]
    model = keras.Sequential([L.Input(IMAGES.shape[1:]), layer, *pooled])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **settings)
    return model.fit(IMAGES, LABELS, epochs=4, verbose=0).history["loss"]


keras.config.set_dtype_policy(sys.argv[1])
try:
    found = {
        "scope": train(scoped(), jit_compile=False),
        "block for XLA": train(Block(), jit_compile=True),
    }
except TypeError as error:
    found = {"error": str(error)}
print(json.dumps(found))
