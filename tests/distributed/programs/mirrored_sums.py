"""Sums over two replicas on the CPU, in the type that is asked for: what came out, and in which
type it went.
"""

from __future__ import annotations

import collections
import itertools
import json
import sys

import keras
import numpy as np
import tensorflow as tf

import amp_tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
precision, allreduce = sys.argv[1:]
amp_tf.enable(amp_tf.AmpConfig(precision=precision, allreduce=allreduce))
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
generator = np.random.default_rng(0)
matrix = generator.uniform(0.5, 1.0, (64, 64)).astype("float32")


def replica(sum_of: str, magnitude: float, poison: float) -> dict[str, tf.Tensor]:
    context = tf.distribute.get_replica_context()
    number = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
    # A product, so that in float16 the values that are summed come from a converted node.
    gradient = tf.matmul(tf.constant(matrix) * number, tf.eye(64)) * magnitude
    gradient += tf.where(number > 1.5, poison, 0.0)
    return context.all_reduce(
        sum_of, {"matrix": gradient, "row": tf.ones((2000,)) * number, "scalar": number * 1.0}
    )


def first_of(value: object) -> np.ndarray:
    """The value of the first replica."""
    return strategy.experimental_local_results(value)[0].numpy()


def error_of(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest relative error; nan where a number is none."""
    return float(np.max(np.abs(found - expected) / expected))


def types_of(graph: tf.Graph) -> dict[str, int]:
    """How many sums are of each type, functions included."""
    definition = graph.as_graph_def()
    bodies = [definition.node]
    bodies += [function.node_def for function in definition.library.function]
    counts: collections.Counter[str] = collections.Counter()
    for node in itertools.chain(*bodies):
        if node.op.startswith("CollectiveReduce"):
            counts[tf.as_dtype(node.attr["T"].type).name] += 1
    return dict(counts)


def one_case(sum_of: str, magnitude: float, poison: float = 0.0) -> dict[str, object]:
    step = tf.function(lambda: strategy.run(replica, (sum_of, magnitude, poison)))
    found = step()
    factor = 3.0 if sum_of == "SUM" else 1.5
    first, second = strategy.experimental_local_results(found["matrix"])
    return {
        "types": types_of(step.get_concrete_function().graph),
        "error": error_of(first.numpy(), matrix.astype("float64") * magnitude * factor),
        "same": bool(np.array_equal(first, second, equal_nan=True)),
        "row": float(first_of(found["row"])[0]),
        "scalar": float(first_of(found["scalar"])),
    }


def cross_replica() -> float:
    """As tf_keras and TF1 optimizers sum: for pairs of gradient and variable, from the
    cross-replica context.
    """
    with strategy.scope():
        variable = tf.Variable(tf.zeros((64, 64)))

    def merge(distribution: tf.distribute.Strategy, gradient: tf.Tensor) -> list[tf.Tensor]:
        return distribution.extended.batch_reduce_to("SUM", [(gradient, variable)])

    def replica_step() -> tf.Tensor:
        gradient = tf.constant(matrix) * 1.0
        return tf.distribute.get_replica_context().merge_call(merge, (gradient,))[0]

    step = tf.function(lambda: strategy.run(replica_step))
    return error_of(first_of(step()), 2.0 * matrix)


def fit() -> dict[str, object]:
    """Keras' own training, in float16 with the loss scale that amp_tf puts in; the third batch is
    spoilt.
    """
    keras.utils.set_random_seed(0)
    x = generator.standard_normal((512, 64)).astype("float32")
    y = (x.sum(1) > 0).astype("int64")
    x[2 * 64 + 5] = np.inf
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(2)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss, jit_compile=False)
    # Not train_on_batch: it gives the whole batch to each replica, and a sum of equal numbers is
    # exact in any type.
    history = model.fit(x[:128], y[:128], 64, shuffle=False, verbose=0).history
    model.fit(x, y, 64, shuffle=False, verbose=0)
    return {
        "loss": history["loss"],
        "weights": [float(np.abs(weight).sum()) for weight in model.get_weights()],
        "skipped": model.optimizer.status().skipped,
    }


eager = strategy.run(replica, ("SUM", 1.0, 0.0))["matrix"]
result = {
    "sum": one_case("SUM", 1.0),
    "mean": one_case("MEAN", 1.0),
    "tiny": one_case("SUM", 1e-12),
    "huge": one_case("SUM", 1e30 if precision == "bfloat16" else 1e4),
    "nan": one_case("SUM", 1.0, float("nan")),
    "inf": one_case("SUM", 1.0, float("inf")),
    "eager": error_of(first_of(eager), 3.0 * matrix),
    "cross_replica": cross_replica(),
}
if precision == "float16":
    result["fit"] = fit()
print(json.dumps(result))
