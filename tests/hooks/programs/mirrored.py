"""MirroredStrategy over two logical CPUs, with a training step by strategy.run."""

import json

import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
rng = np.random.default_rng(1)
data = rng.normal(size=(512, 256)).astype("float32")
with strategy.scope():
    first = tf.Variable(rng.normal(size=(256, 256)).astype("float32") / 16)
    second = tf.Variable(rng.normal(size=(256, 1)).astype("float32") / 16)
batches = strategy.experimental_distribute_dataset(
    tf.data.Dataset.from_tensor_slices(data).batch(256).repeat(5)
)


def replica_step(inputs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.nn.relu(inputs @ first) @ second - 1.0))
    gradients = tape.gradient(loss, [first, second])
    gradients = tf.distribute.get_replica_context().all_reduce(
        tf.distribute.ReduceOp.MEAN, gradients
    )
    for variable, gradient in zip([first, second], gradients, strict=True):
        variable.assign_sub(0.02 * gradient)
    return loss


@tf.function
def step(inputs):
    return strategy.reduce(
        tf.distribute.ReduceOp.MEAN, strategy.run(replica_step, (inputs,)), axis=None
    )


print(
    json.dumps(
        {
            "replicas": strategy.num_replicas_in_sync,
            "loss": [float(step(batch)) for batch in batches],
        }
    )
)
