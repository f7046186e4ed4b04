"""tf_keras under jit_compile."""

import json
import random

import numpy as np
import tensorflow as tf
import tf_keras

# Not tf_keras' own set_random_seed: up to 2.18 it does not work on Python 3.12.
random.seed(1)
tf.random.set_seed(1)
rng = np.random.default_rng(1)
images = rng.normal(size=(64, 8, 8, 3)).astype("float32")
labels = (images.mean(axis=(1, 2, 3)) > 0).astype("int32")
model = tf_keras.Sequential(
    [
        tf_keras.layers.Conv2D(16, 3, activation="relu", input_shape=(8, 8, 3)),
        tf_keras.layers.Flatten(),
        tf_keras.layers.Dense(2),
    ]
)
model.compile("adam", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=True)
fit = model.fit(images, labels, batch_size=16, epochs=3, verbose=0).history["loss"]

# MirroredStrategy: each replica's step is compiled on its own.
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
with strategy.scope():
    weight = tf.Variable(tf.constant(rng.normal(size=(16, 16)).astype("float32")))


@tf.function(jit_compile=True)
def replica_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weight) ** 2)
    return loss, tape.gradient(loss, weight)


loss, gradient = strategy.run(replica_step, (tf.constant(rng.normal(size=(16, 16)).astype("float32")),))
print(json.dumps({"fit": fit, "replica": [float(loss), float(tf.norm(gradient))]}))
