"""``amp_tf.LossScaler`` under MirroredStrategy on two logical CPUs, with an infinity on one replica; prints JSON.

Its own process, because logical devices are chosen before TensorFlow starts.
"""

import itertools
import json
import sys

import numpy as np
import tensorflow as tf

import amp_tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def all_mean(gradients):
    return [tf.distribute.get_replica_context().all_reduce("mean", g) for g in gradients]


def local(variable):
    return [value.numpy().tolist() for value in strategy.experimental_local_results(variable)]


def train(scaler_in_scope, traced, reduced_in_apply):
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.MEAN)
        scaler = amp_tf.LossScaler(2.0**10)
    if not scaler_in_scope:
        scaler = amp_tf.LossScaler(2.0**10)

    def apply(gradients, rate):
        for gradient in all_mean(gradients) if reduced_in_apply else gradients:
            weight.assign_sub(rate * gradient)

    def step(x):
        with tf.GradientTape() as tape:
            loss = scaler.scale(tf.reduce_sum(weight * x))
        gradients = tape.gradient(loss, [weight])
        gradients = gradients if reduced_in_apply else all_mean(gradients)
        return scaler.step(apply, scaler.unscale(gradients), 0.5 * x[1])  # a rate of each replica

    def run(x):
        return strategy.run(step, args=(x,))

    run = tf.function(run) if traced else run
    taken = []
    for bad in (None, 0, 1):
        rows = [[np.inf if replica == bad else 2.0 * replica + 1.0, replica + 1.0] for replica in range(2)]
        x = strategy.experimental_distribute_values_from_function(
            lambda context, rows=rows: tf.constant(rows[context.replica_id_in_sync_group], tf.float32)
        )
        taken.append([bool(value) for value in strategy.experimental_local_results(run(x))])
    return {"taken": taken, "weight": local(weight), "scale": local(scaler.loss_scale)}


rows = [[*how, train(*how)] for how in itertools.product((True, False), repeat=3)]
json.dump(rows, sys.stdout)
