#!/usr/bin/env python3
"""Train one model on several machines or processes with MultiWorkerMirroredStrategy: a plain
TensorFlow script.

Nothing here knows of mixed precision. Each worker is started with its own ``TF_CONFIG``, as
TensorFlow documents it:

    TF_CONFIG='{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker",
    "index": 0}}' \
        python train_distributed.py --checkpoint /shared/run1

A chief may stand before the workers, and an evaluator beside them, which judges each checkpoint.
Under Slurm's ``srun`` nothing need be set. With ``--workers 2`` it starts that many workers on this
machine itself. A run that died goes on from its checkpoint when it is started again. The last line
of every worker is a JSON object with its losses, the accuracy on images that were held out, and a
checksum of the weights. The images are scikit-learn's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import shutil
import sys
from typing import Any

BATCH_PER_WORKER = 32
HELD_OUT = 297


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="where to save every --save-every steps, and go on from",
    )
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument(
        "--workers", type=int, default=0, help="start that many workers on this machine"
    )
    parser.add_argument(
        "--die-at", type=int, default=-1, help="the last worker ends itself, hard, before this step"
    )
    arguments = parser.parse_args()
    if arguments.workers:
        return start_workers(arguments.workers, sys.argv[1:])
    train(arguments)
    return 0


def start_workers(count: int, arguments: list[str]) -> int:
    """Run ``count`` workers on loopback; the status is the first one that is not 0."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    import loopback

    position = arguments.index("--workers")
    own = arguments[:position] + arguments[position + 2 :]
    return loopback.run_cluster({"worker": count}, [__file__, *own])


def cluster_resolver() -> Any:
    """Finds the other workers: by TF_CONFIG, or by the variables of srun's tasks."""
    import tensorflow as tf

    resolvers = tf.distribute.cluster_resolver
    if "TF_CONFIG" in os.environ or "SLURM_STEP_NODELIST" not in os.environ:
        return resolvers.TFConfigClusterResolver()
    if shutil.which("nvidia-smi"):
        return resolvers.SlurmClusterResolver()
    # It cannot describe nodes without GPUs (range() with a step of 0), so only the addresses are
    # taken from it.
    tasks = int(os.environ["SLURM_STEP_NUM_TASKS"])
    slurm = resolvers.SlurmClusterResolver(gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False)
    return resolvers.SimpleClusterResolver(
        slurm.cluster_spec(),
        task_type=slurm.task_type,
        task_id=slurm.task_id,
        num_accelerators={"GPU": 0},
        rpc_layer="grpc",
    )


def position_in_cluster(resolver: Any) -> int:
    """The number of this worker; a chief is the first one."""
    number = resolver.task_id or 0
    if resolver.task_type == "worker":
        jobs = resolver.cluster_spec().as_dict()
        number += len(jobs.get("chief", []))
    return number


def train(arguments: argparse.Namespace) -> None:
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    resolver = cluster_resolver()
    is_evaluator = resolver.task_type == "evaluator"
    if is_evaluator:  # it is in no cluster
        strategy = tf.distribute.get_strategy()
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    index = position_in_cluster(resolver)
    workers = strategy.num_replicas_in_sync
    batch = BATCH_PER_WORKER * workers

    digits = load_digits()
    images = (digits.images / 16.0).astype("float32").reshape(-1, 64)
    labels = digits.target.astype("int64")

    def input_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((images[:-HELD_OUT], labels[:-HELD_OUT]))
        data = data.shuffle(len(images), seed=1).repeat()
        data = data.batch(context.get_per_replica_batch_size(batch), drop_remainder=True)
        return data.shard(context.num_input_pipelines, context.input_pipeline_id)

    with strategy.scope():
        generator = np.random.default_rng(1)
        variables = []
        for inputs, outputs in itertools.pairwise([64, 256, 128, 10]):
            weights = generator.standard_normal((inputs, outputs)) * np.sqrt(2.0 / inputs)
            variables.append(tf.Variable(weights.astype("float32")))
            variables.append(tf.Variable(np.zeros(outputs, "float32")))
        moments = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
        step = tf.Variable(0, dtype=tf.int64)

    def logits_of(x: tf.Tensor) -> tf.Tensor:
        *hidden, last_weights, last_bias = variables
        for weights, bias in zip(hidden[::2], hidden[1::2], strict=True):
            x = tf.nn.relu(tf.matmul(x, weights) + bias)
        return tf.matmul(x, last_weights) + last_bias

    def loss_of(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits_of(x))
        return tf.reduce_sum(losses) / batch

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("sum", tape.gradient(loss, variables))
        for variable, moment, gradient in zip(variables, moments, gradients, strict=True):
            moment.assign(0.9 * moment + gradient)
            variable.assign_sub(0.05 * moment)
        step.assign_add(1)
        return loss

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("sum", strategy.run(replica_step, (x, y)), axis=None)

    @tf.function
    def predict(x: tf.Tensor) -> tf.Tensor:
        return tf.argmax(logits_of(x), axis=1)

    def accuracy() -> float:
        predicted = predict(tf.constant(images[-HELD_OUT:])).numpy()
        return float(np.mean(predicted == labels[-HELD_OUT:]))

    saved = {f"v{i}": variable for i, variable in enumerate([*variables, *moments])}
    checkpoint = tf.train.Checkpoint(step=step, **saved)
    if is_evaluator:
        folder = os.path.join(arguments.checkpoint, "worker0")
        for path in tf.train.checkpoints_iterator(folder, timeout=120):
            checkpoint.restore(path)
            number = int(step.numpy())
            print(json.dumps({"evaluated_step": number, "accuracy": accuracy()}), flush=True)
            if number + arguments.save_every > arguments.steps:
                return
    manager = None
    if arguments.checkpoint:
        # Every worker writes, because variables may be read together only; each into its own
        # folder.
        folder = pathlib.Path(arguments.checkpoint) / f"worker{index}"
        manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=2)
        checkpoint.restore(manager.latest_checkpoint)

    batches = iter(strategy.distribute_datasets_from_function(input_pipeline))
    done = int(step.numpy())
    for _ in range(done):  # a restarted run must see the data that the uninterrupted one sees
        next(batches)
    losses = []
    for number in range(done, arguments.steps):
        if number == arguments.die_at and index == workers - 1:
            os._exit(17)
        losses.append(float(train_step(*next(batches))))
        if manager is not None and (number + 1) % arguments.save_every == 0:
            manager.save()
    result = {
        "worker": index,
        "workers": workers,
        "first_step": done,
        "losses": losses,
        "accuracy": accuracy(),
        "weights": [float(tf.reduce_sum(tf.abs(variable))) for variable in variables],
    }
    sys.stdout.write(json.dumps(result) + "\n")  # in one piece: the workers may share a pipe
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
