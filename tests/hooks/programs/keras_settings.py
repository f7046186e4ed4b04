"""Programs that change what the whole process does: ``keras_settings.py
determinism|POLICY``.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

digits = load_digits()
images = (digits.data / 16.0).astype("float32")
labels = digits.target
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fit():
    """Trains a new model, with the same numbers each time; returns it and its losses."""
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(256, "relu"), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10, dtype="float32")])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss, jit_compile=False)
    history = model.fit(images, labels, 64, 2, shuffle=False, verbose=0).history
    return model, history["loss"]


def determinism():
    """Two trainings from one seed are equal in every bit."""
    tf.config.experimental.enable_op_determinism()
    first, losses = fit()
    second, again = fit()
    weights = zip(first.get_weights(), second.get_weights(), strict=True)
    is_same = losses == again and all(np.array_equal(one, other) for one, other in weights)
    return {"loss": losses, "same": is_same}


def policy():
    """A script that uses Keras' own mixed precision already."""
    keras.config.set_dtype_policy(sys.argv[1])
    model, losses = fit()
    optimizers = []
    optimizer = model.optimizer
    while optimizer is not None:
        kind = type(optimizer)
        optimizers.append(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return {
        "loss": losses,
        "weights": model.layers[0].kernel.dtype,
        "computes_in": model.layers[0].compute_dtype,
        "optimizers": optimizers,
    }


print(json.dumps(determinism() if sys.argv[1] == "determinism" else policy()))
