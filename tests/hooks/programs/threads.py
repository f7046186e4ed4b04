"""Eight threads that each trace and call their own tf.functions."""

import json
import threading

import numpy as np
import tensorflow as tf

results = [0.0] * 8


def work(index):
    rng = np.random.default_rng(index)
    weights = tf.constant(rng.normal(size=(256, 256)).astype("float32") / 16)

    @tf.function
    def product(inputs):
        return tf.nn.relu(tf.nn.relu(inputs @ weights) @ weights) @ weights

    for rows in (128, 192, 256):  # each its own trace
        results[index] += float(tf.reduce_mean(product(tf.ones((rows, 256)))))


threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({"means": results}))
