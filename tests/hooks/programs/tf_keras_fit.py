"""tf_keras: fit, evaluate, predict."""

import json
import random

import numpy as np
import tensorflow as tf
import tf_keras

# Not tf_keras' own set_random_seed: up to 2.18 it does not work on Python 3.12.
random.seed(1)
tf.random.set_seed(1)
rng = np.random.default_rng(1)
inputs = rng.normal(size=(512, 256)).astype("float32")
labels = (inputs.sum(axis=1) > 0).astype("int32")
model = tf_keras.Sequential([tf_keras.layers.Dense(256, activation="relu"), tf_keras.layers.Dense(2)])
model.compile("adam", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(inputs, labels, batch_size=128, epochs=3, verbose=0)
print(
    json.dumps(
        {
            "loss": history.history["loss"],
            "evaluated": float(model.evaluate(inputs, labels, verbose=0)),
            "predicted": model.predict(inputs[:4], verbose=0).tolist(),
        }
    )
)
