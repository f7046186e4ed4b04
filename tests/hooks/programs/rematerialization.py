"""``rematerialization.py POLICY``: losses and what is live at the peak; under another policy than
float32 the error.
"""

from __future__ import annotations

import json
import sys

import keras
import numpy as np

from benchmarks.memory import find_peak, record_memory

POLICY = sys.argv[1]
L = keras.layers
DATA = np.random.default_rng(0)


class Block(L.Layer):
    """Layers that are computed again in the backward pass, by ``tf.recompute_grad``."""

    def __init__(self, chain, remat=True):
        super().__init__()
        self.chain, self.remat = chain, remat

    def build(self, shape):
        self.chain.build(shape)

    def call(self, x):
        return keras.remat(self.chain.call)(x) if self.remat else self.chain.call(x)


def scoped(mode, make):
    """Keras takes the mode of a layer from where it is made."""
    with keras.RematScope(mode=mode):
        return make()


def convnet():
    """Two convolutions in the scope's mode "full"."""
    x = inputs = L.Input((16, 16, 8))
    for _ in range(2):
        x = scoped("full", lambda: L.Conv2D(16, 3, padding="same", activation="gelu"))(x)
    return keras.Model(inputs, L.Dense(10)(L.GlobalAveragePooling2D()(x)))


def mlp(remat=True, width=64, count=1):
    """Dense layers in the scope do not train in Keras 3.15, in float32 neither: blocks of four
    instead.
    """
    dense = [[L.Dense(width, activation="gelu") for _ in range(4)] for _ in range(count)]
    blocks = [Block(keras.Sequential(layers), remat) for layers in dense]
    return keras.Sequential([L.Input((64,)), *blocks, L.Dense(10)])


def train(model, batch=64, **settings):
    keras.utils.set_random_seed(0)
    data = np.random.default_rng(0)
    x = data.normal(size=(batch, *model.input_shape[1:])).astype("float32")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **settings)
    y = data.integers(0, 10, batch)
    return lambda: model.fit(x, y, batch_size=batch, epochs=4, verbose=0).history["loss"]


keras.config.set_dtype_policy(POLICY)
keras.utils.set_random_seed(0)
found = {}
if POLICY != "float32":
    try:
        train(convnet())()
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
else:
    for make, jit in ((convnet, False), (mlp, True)):
        found[make.__name__] = train(make(), jit_compile=jit)()
    for remat in (False, True):
        fit = train(mlp(remat, 256, 3), 512)
        fit()
        found[f"live {remat}"] = find_peak(record_memory(fit)).live
print(json.dumps(found))
