"""An input pipeline with a product and float math, a model behind it, and a training loop over a
dataset.
"""

import json

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
weight = tf.Variable(rng.normal(size=(16, 16)).astype("float32"))
mixing = tf.constant(rng.normal(size=(16, 16)).astype("float32"))
rows = rng.normal(size=(64, 16)).astype("float32")


@tf.function
def mix(x):
    """Called by the pipeline and by the model."""
    return tf.matmul(x, mixing) * (1 / 3)


@tf.function
def model(x):
    return tf.reduce_sum(tf.matmul(tf.nn.relu(mix(x)), weight))


@tf.function
def sum_over(dataset):
    """AutoGraph makes a reduction of this loop: it is the program's own work."""
    total = 0.0
    for batch in dataset:
        total += model(batch)
    return total


prepared = tf.data.Dataset.from_tensor_slices(rows).batch(8).map(mix).prefetch(2)
batches = [batch.numpy() for batch in prepared]
raw = tf.data.Dataset.from_tensor_slices(rows).batch(8)
result = {
    "prepared": float(np.abs(np.concatenate(batches) - rows @ mixing.numpy() / 3).max()),
    "model": float(model(tf.constant(rows))),
    "loop": float(sum_over(raw)),
    "exact": float((np.maximum(rows @ mixing.numpy() / 3, 0) @ weight.numpy()).sum()),
}
print(json.dumps(result))
