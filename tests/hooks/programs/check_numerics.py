"""tf.debugging.enable_check_numerics: a healthy training passes, a NaN is found and told with its place."""

import json

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

tf.debugging.enable_check_numerics()
keras.utils.set_random_seed(1)
digits = load_digits()
images, labels = (digits.data / 16.0).astype("float32"), digits.target
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
model.compile(
    optimizer=keras.optimizers.SGD(0.1),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile=False,
)
history = model.fit(images, labels, 64, 2, shuffle=False, verbose=0).history
broken = images.copy()
broken[5, 3] = np.nan
try:
    model.fit(broken, labels, 64, 1, shuffle=False, verbose=0)
    found = "nothing"
except tf.errors.InvalidArgumentError as error:
    found = "NaN" if "NaN" in str(error) else str(error)
print(json.dumps({"loss": history["loss"], "found": found}))
