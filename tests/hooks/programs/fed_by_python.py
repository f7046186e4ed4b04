"""A Keras library trains with what Python code computes by TensorFlow functions."""

import importlib
import itertools
import json
import sys

import numpy as np
import tensorflow as tf

keras = importlib.import_module(sys.argv[1])
rng = np.random.default_rng(0)
rows = rng.normal(size=(64, 32)).astype("float32")
weight = rng.normal(size=(32, 32)).astype("float32")
exact = np.maximum(rows @ weight, 0) @ weight
products = tf.function(lambda x: tf.matmul(tf.nn.relu(tf.matmul(x, weight)), weight))
errors = {}
counts = {}


def batch_of(name, number):
    places = slice(16 * number, 16 * number + 16)
    computed = products(rows[places]).numpy()
    errors[name] = max(errors.get(name, 0.0), float(np.abs(computed - exact[places]).max()))
    counts[name] = counts.get(name, 0) + 1
    return rows[places], computed[:, :1]


def generate(name):
    while True:
        for number in range(4):
            yield batch_of(name, number)


class Stream:
    """An endless iterator that several threads may ask."""

    def __init__(self, name):
        self.name = name
        self.numbers = itertools.count()

    def __iter__(self):
        return self

    def __next__(self):
        return batch_of(self.name, next(self.numbers) % 4)


class Batches(keras.utils.PyDataset if sys.argv[1] == "keras" else keras.utils.Sequence):
    """Batches by their number."""

    def __init__(self, name, **settings):
        super().__init__(**settings)
        self.name = name

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return batch_of(self.name, number)


model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
elsewhere = float(np.abs(products(rows[:16]) - exact[:16]).max())
how = {"steps_per_epoch": 4, "epochs": 2, "verbose": 0}
model.fit(generate("generator"), **how)
if sys.argv[1] == "keras":
    model.fit(Batches("by number"), **how)
    model.fit(Batches("by number, two workers", workers=2), **how)
else:
    model.fit(Batches("by number"), **how)
    model.fit(Batches("by number, two workers"), workers=2, **how)
    model.fit(Stream("iterator, two workers"), workers=2, **how)
print(json.dumps({"data": errors, "program": elsewhere, "batches": counts}))
