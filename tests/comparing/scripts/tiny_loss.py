"""A hand-written loop with a loss that is weighted down, as sums of several losses are."""

import numpy as np
import tensorflow as tf

tf.random.set_seed(2)
rng = np.random.default_rng(2)
first, second = (tf.Variable(tf.random.normal((16, 16)) / 4, name=name) for name in ("first", "second"))


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        hidden = tf.nn.relu(tf.matmul(x, first, name="hidden"))
        loss = 1e-6 * tf.reduce_mean(tf.square(tf.matmul(hidden, second, name="out") - y))
    for variable, gradient in zip([first, second], tape.gradient(loss, [first, second]), strict=True):
        variable.assign_sub(1e5 * gradient)
    return loss


for _ in range(20):
    x = rng.normal(size=(32, 16)).astype("float32")
    train_step(tf.constant(x), tf.constant(np.roll(x, 1, axis=1)))
