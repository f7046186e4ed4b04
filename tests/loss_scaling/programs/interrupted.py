"""Trains with a checkpoint after each step, and kills itself in the middle if asked to; prints JSON.

Arguments: the checkpoint folder, and the step before which to die, or -1. Started again, it goes on where it was. With
TF_CONFIG it is one worker of MultiWorkerMirroredStrategy; the poisoned data are the last worker's alone, and all
workers go on from the first one's checkpoint.
"""

import json
import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import amp_tf

STEPS, POISONED = 12, (3, 4, 9)


def main(folder, die_before):
    strategy, worker, workers = tf.distribute.get_strategy(), 0, 1
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        resolver = strategy.cluster_resolver
        worker, workers = resolver.task_id, resolver.cluster_spec().num_tasks("worker")
    keras.utils.set_random_seed(5)
    with strategy.scope():
        layers = [keras.layers.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        optimizer = amp_tf.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=2)
        optimizer.build(model.trainable_variables)
    done = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    manager = tf.train.CheckpointManager(checkpoint, f"{folder}/{worker}", max_to_keep=2)
    saved = tf.train.latest_checkpoint(f"{folder}/0")
    if saved:
        checkpoint.restore(saved).assert_existing_objects_matched()

    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean((model(x) - tf.reduce_sum(x, 1, keepdims=True)) ** 2))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, [v.value for v in variables]), variables, strict=True))

    run = tf.function(lambda x: strategy.run(step, args=(x,)))
    for i in range(int(done), STEPS):
        if i == die_before:
            os.kill(os.getpid(), signal.SIGKILL)
        x = np.random.RandomState(100 * i + worker).randn(8, 4).astype("float32")
        run(tf.constant(x * np.nan if i in POISONED and worker == workers - 1 else x))
        done.assign_add(1)
        manager.save()
    status = optimizer.status()
    json.dump(
        {
            "weights": [w.tolist() for w in model.get_weights()],
            "optimizer": [np.asarray(w).tolist() for w in optimizer.get_weights()],
            "status": [status.scale, status.good_steps, status.skipped, status.steps, status.last_change],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
