"""A TF1-style training script that sets the variable itself, as NVIDIA's do.

``own_switch.py nowhere|top|flag|late|off|"off first"``
"""

import json
import os
import sys

SWITCH, WHERE = "TF_ENABLE_AUTO_MIXED_PRECISION", sys.argv[1]
if WHERE == "top":
    os.environ[SWITCH] = "1"
elif WHERE == "off first":
    os.environ[SWITCH] = "0"

import numpy as np  # noqa: E402 - scripts set it before their imports
import tensorflow.compat.v1 as tf  # noqa: E402

tf.disable_eager_execution()


def train() -> list[float]:
    rng = np.random.default_rng(1)
    data = rng.normal(size=(64, 128)).astype("float32")
    inputs = tf.placeholder(tf.float32, [None, 128])
    first = tf.Variable(rng.normal(size=(128, 128)).astype("float32") / 11)
    second = tf.Variable(rng.normal(size=(128, 1)).astype("float32") / 11)
    outputs = tf.nn.relu(inputs @ first) @ second
    loss = tf.reduce_mean(tf.square(outputs - tf.reduce_sum(inputs, 1, keepdims=True) / 11))
    step = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
    if WHERE == "late":
        os.environ[SWITCH] = "1"
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return [float(session.run([loss, step], {inputs: data})[0]) for _ in range(10)]


if __name__ == "__main__":
    if WHERE == "flag":
        os.environ.update({SWITCH: "1"})
    elif WHERE == "off":
        os.environ[SWITCH] = "0"
    print(json.dumps({"loss": train()}))
