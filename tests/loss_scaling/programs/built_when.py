"""Keras optimizers that are built before they are wrapped, or by their first step, in a traced loop of two replicas.

Its own process, because logical devices are chosen before TensorFlow starts. Prints JSON: the counts of steps.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import amp_tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def train(is_built, wrapped_in_scope):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1)
        if is_built:
            optimizer.build(model.trainable_variables)
        if wrapped_in_scope:
            optimizer = amp_tf.LossScaleOptimizer(optimizer)
    if not wrapped_in_scope:
        optimizer = amp_tf.LossScaleOptimizer(optimizer)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean((model(x) - y) ** 2))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    x = np.random.RandomState(0).randn(8, 4).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8).repeat(3)
    run = tf.function(lambda x, y: strategy.run(step, args=(x, y)))
    for batch in strategy.experimental_distribute_dataset(data):
        run(*batch)
    status = optimizer.status()
    return [status.steps, status.skipped, int(optimizer.iterations.numpy())]


cases = {"built": (True, True), "built, wrapped outside": (True, False), "unbuilt": (False, True)}
json.dump({name: train(*case) for name, case in cases.items()}, sys.stdout)
