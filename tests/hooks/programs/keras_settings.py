"""Programs that change what the whole process does: ``keras_settings.py
tensorboard|determinism|numerics|POLICY``.
"""

import json
import pathlib
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

digits = load_digits()
images = (digits.data / 16.0).astype("float32")
labels = digits.target
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fit(data=images, **settings):
    """Trains a new model, with the same numbers each time; returns it and its losses."""
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(256, "relu"), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10, dtype="float32")])
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss, jit_compile=False)
    return model, model.fit(data, labels, 64, 2, shuffle=False, verbose=0, **settings).history[
        "loss"
    ]


def tensorboard():
    """The callback: histograms, graph, and a profile of two batches."""
    with tempfile.TemporaryDirectory() as folder:
        board = keras.callbacks.TensorBoard(
            folder, histogram_freq=1, write_graph=True, profile_batch=(3, 4)
        )
        _, losses = fit(callbacks=[board])
        files = sorted({path.suffix for path in pathlib.Path(folder).rglob("*") if path.is_file()})
    return {"loss": losses, "files": files}


def determinism():
    """Two trainings from one seed are equal in every bit."""
    tf.config.experimental.enable_op_determinism()
    runs = [
        (losses, [w.tobytes() for w in model.get_weights()]) for model, losses in (fit(), fit())
    ]
    return {"loss": runs[0][0], "same": runs[0] == runs[1]}


def numerics():
    """A healthy training passes, a NaN is found and told with its place."""
    tf.debugging.enable_check_numerics()
    broken = images.copy()
    broken[5, 3] = np.nan
    _, losses = fit()
    try:
        fit(broken)
        found = "nothing"
    except tf.errors.InvalidArgumentError as error:
        found = "NaN" if "NaN" in str(error) else str(error)
    return {"loss": losses, "found": found}


def policy():
    """A script that uses Keras' own mixed precision already."""
    keras.config.set_dtype_policy(sys.argv[1])
    model, losses = fit()
    optimizers = [model.optimizer]
    while hasattr(optimizers[-1], "inner_optimizer"):
        optimizers.append(optimizers[-1].inner_optimizer)
    return {
        "loss": losses,
        "weights": model.layers[0].kernel.dtype,
        "computes_in": model.layers[0].compute_dtype,
        "optimizers": [
            f"{type(one).__module__.partition('.')[0]}.{type(one).__name__}" for one in optimizers
        ],
    }


print(
    json.dumps(
        {"tensorboard": tensorboard, "determinism": determinism, "numerics": numerics}.get(
            sys.argv[1], policy
        )()
    )
)
