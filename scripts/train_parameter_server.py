#!/usr/bin/env python3
"""Train one model with ParameterServerStrategy: a plain TensorFlow script with a chief, workers and
parameter servers.

Nothing here knows of mixed precision. Each process is started with its own ``TF_CONFIG``, as
TensorFlow documents it:

    TF_CONFIG='{"cluster": {"chief": ["host0:2222"], "worker": ["host1:2222", "host2:2222"], "ps":
    ["host3:2222"]},
                "task": {"type": "worker", "index": 0}}' python train_parameter_server.py

With ``--workers 2`` it starts a chief, two workers and a parameter server on this machine itself.
Workers compute gradients and apply them when they have them, so runs differ a little from each
other. The chief's last line is a JSON object with the mean loss of each epoch and the accuracy on
images that were held out. The images are scikit-learn's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import signal
import sys
import threading
import time

BATCH = 32
HELD_OUT = 297


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--steps", type=int, default=40, help="steps of each epoch, of all workers together"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=0,
        help="start a cluster with that many workers on this machine",
    )
    arguments = parser.parse_args()
    if arguments.workers:
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
        import loopback

        command = [__file__, "--epochs", str(arguments.epochs), "--steps", str(arguments.steps)]
        jobs = {"chief": 1, "worker": arguments.workers, "ps": 1}
        return loopback.run_cluster(jobs, command, served=("worker", "ps"))
    if "TF_CONFIG" not in os.environ:
        parser.error(
            "TF_CONFIG does not say which task of a cluster this is. Set it, or give --workers 2"
        )
    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief":
        coordinate(arguments)
    else:
        serve()
    return 0


def serve() -> None:
    """A worker or a parameter server: runs what the chief sends, until SIGTERM."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
    )
    # join never returns and lets no signal handler of Python run, so it gets a thread; exit
    # handlers then run, too.
    threading.Thread(target=server.join, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        time.sleep(1)


def coordinate(arguments: argparse.Namespace) -> None:
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    digits = load_digits()
    images = (digits.images / 16.0).astype("float32").reshape(-1, 64)
    labels = digits.target.astype("int64")

    with strategy.scope():
        generator = np.random.default_rng(1)
        variables = []
        for inputs, outputs in itertools.pairwise([64, 256, 128, 10]):
            weights = generator.standard_normal((inputs, outputs)) * np.sqrt(2.0 / inputs)
            variables.append(tf.Variable(weights.astype("float32")))
            variables.append(tf.Variable(np.zeros(outputs, "float32")))

    def logits_of(x: tf.Tensor) -> tf.Tensor:
        *hidden, last_weights, last_bias = variables
        for weights, bias in zip(hidden[::2], hidden[1::2], strict=True):
            x = tf.nn.relu(tf.matmul(x, weights) + bias)
        return tf.matmul(x, last_weights) + last_bias

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits_of(x)))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.05 * gradient)
        return loss

    @tf.function
    def train_step(batches: tf.data.Iterator) -> tf.Tensor:
        return strategy.run(replica_step, next(batches))

    def input_pipeline() -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((images[:-HELD_OUT], labels[:-HELD_OUT]))
        return data.shuffle(len(images), seed=1).repeat().batch(BATCH, drop_remainder=True)

    batches = iter(coordinator.create_per_worker_dataset(input_pipeline))
    epoch_losses = []
    for _ in range(arguments.epochs):
        losses = [coordinator.schedule(train_step, args=(batches,)) for _ in range(arguments.steps)]
        coordinator.join()
        epoch_losses.append(float(np.mean([loss.fetch() for loss in losses])))
    predicted = np.argmax(logits_of(tf.constant(images[-HELD_OUT:])).numpy(), axis=1)
    result = {"losses": epoch_losses, "accuracy": float(np.mean(predicted == labels[-HELD_OUT:]))}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.exit(main())
