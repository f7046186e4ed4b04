"""A tf.function training step with GradientTape."""

import json

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(1)
inputs = tf.constant(rng.normal(size=(256, 256)).astype("float32"))
targets = tf.reduce_sum(inputs, axis=1, keepdims=True) / 16.0
first = tf.Variable(rng.normal(size=(256, 256)).astype("float32") / 16)
second = tf.Variable(rng.normal(size=(256, 1)).astype("float32") / 16)


@tf.function
def step():
    with tf.GradientTape() as tape:
        hidden = tf.nn.relu(inputs @ first)
        loss = tf.reduce_mean(tf.square(hidden @ second - targets))
    for variable, gradient in zip(
        [first, second], tape.gradient(loss, [first, second]), strict=True
    ):
        variable.assign_sub(0.02 * gradient)
    return loss


print(json.dumps({"loss": [float(step()) for _ in range(20)]}))
