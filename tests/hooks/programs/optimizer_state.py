"""Trains on two replicas, by Keras 3 and by tf_keras; prints what the optimizers keep on each replica."""

from __future__ import annotations

import json

import keras
import numpy as np
import tensorflow as tf
import tf_keras

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
DATA = np.random.default_rng(0)
X, Y = DATA.normal(size=(256, 128)).astype("float32"), DATA.integers(0, 10, 256)


def train(library, wrap):
    library.utils.set_random_seed(0)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = library.Sequential([library.layers.Dense(128, activation="relu"), library.layers.Dense(10)])
        model.compile(
            wrap(library.optimizers.Adam(1e-3, clipnorm=1.0, use_ema=True)),
            library.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    losses = model.fit(X, Y, batch_size=64, epochs=3, verbose=0, shuffle=False).history["loss"]
    variables = model.optimizer.variables
    variables = variables() if callable(variables) else [getattr(v, "value", v) for v in variables]
    narrow = [v.kept_in.values for v in variables if type(v).__name__ == "NarrowVariable"]
    return {
        "losses": losses,
        "narrow": [copies[0].dtype.name for copies in narrow],
        "changed": [bool(np.any(copies[0].numpy())) for copies in narrow],
        "equal": [bool(np.array_equal(*(copy.numpy() for copy in copies))) for copies in narrow],
    }


def wrapped(optimizer):
    import amp_tf

    return amp_tf.LossScaleOptimizer(optimizer, initial_scale=1024.0)


WAYS = {"bare": lambda optimizer: optimizer, "wrapped": wrapped}
print(json.dumps({f"{k.__name__} {name}": train(k, way) for k in (keras, tf_keras) for name, way in WAYS.items()}))
