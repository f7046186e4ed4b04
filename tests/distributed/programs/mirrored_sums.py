"""Sums over two replicas on the CPU, in the type that is asked for: what came out, and in which
type it went.

Behind the two types stand the parts that run; all by default.
"""

from __future__ import annotations

import collections
import itertools
import json
import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import amp_tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
precision, allreduce, *parts = sys.argv[1:]
amp_tf.enable(amp_tf.AmpConfig(precision=precision, allreduce=allreduce))
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
generator = np.random.default_rng(0)
matrix = generator.uniform(0.5, 1.0, (64, 64)).astype("float32")
with strategy.scope():
    weight = tf.Variable(tf.zeros((64, 64)))


def gradient_of_weight(wanted: tf.Tensor) -> tf.Tensor:
    """A gradient of the variable, with given values."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * wanted)
    return tape.gradient(loss, weight)


def replica(sum_of: str, magnitude: float, poison: float) -> dict[str, tf.Tensor]:
    context = tf.distribute.get_replica_context()
    number = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
    # A product, so that in float16 the values that are summed come from a converted node.
    wanted = tf.matmul(tf.constant(matrix) * number, tf.eye(64)) * magnitude
    gradient = gradient_of_weight(wanted + tf.where(number > 1.5, poison, 0.0))
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

    def merge(distribution: tf.distribute.Strategy, gradient: tf.Tensor) -> list[tf.Tensor]:
        return distribution.extended.batch_reduce_to("SUM", [(gradient, weight)])

    def replica_step() -> tf.Tensor:
        gradient = gradient_of_weight(tf.constant(matrix))
        return tf.distribute.get_replica_context().merge_call(merge, (gradient,))[0]

    step = tf.function(lambda: strategy.run(replica_step))
    return error_of(first_of(step()), 2.0 * matrix)


def others() -> dict[str, dict[str, float]]:
    """Sums of 2049 over both replicas, which is no number of either 16-bit type: of gradients, as
    programs compute them further, and of what is none.
    """
    numbers = tf.constant(2049.0, shape=(64, 64))

    @tf.function
    def both(wanted: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return gradient_of_weight(wanted), wanted + 0.0

    def replica_step() -> dict[str, dict[str, tf.Tensor]]:
        gradient = gradient_of_weight(numbers)
        clipped, norm = tf.clip_by_global_norm([gradient], 1e9)
        accumulated = tf.zeros((64, 64))
        for _ in tf.range(2):
            accumulated += gradient_of_weight(numbers) / 2.0
        conditional = accumulated
        if norm > 0.0:
            conditional = gradient + 0.0
        of_function, beside_it = both(numbers)
        of_cases = [lambda: gradient_of_weight(numbers), lambda: gradient_of_weight(2.0 * numbers)]
        halves = tf.stack([numbers, numbers]) / 2.0
        # As in meta-learning, where the weights of the model come from gradients.
        predictions = tf.argmax(tf.matmul(numbers, weight - gradient), axis=1)
        is_right = tf.cast(predictions >= 0, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(numbers)
            loss = tf.reduce_sum(numbers * numbers / 2.0)
        found = {
            "gradients": {
                "itself": gradient,
                "clipped": clipped[0],
                "accumulated": accumulated,
                "conditional": conditional,
                "of a function": of_function,
                "of a case": tf.switch_case(tf.cast(norm < 0.0, tf.int32), of_cases),
                "of examples": tf.reduce_sum(tf.vectorized_map(gradient_of_weight, halves), 0),
                "by tf.gradients": tf.gradients(weight * numbers, weight)[0],
            },
            "no gradients": {
                "constant": numbers + 0.0,
                "beside a gradient": beside_it,
                "counts": numbers * is_right[:, None],
                "of an input": tape.gradient(loss, numbers),
                "weights": weight + numbers,
            },
        }
        return tf.distribute.get_replica_context().all_reduce("SUM", found)

    sums = tf.function(lambda: strategy.run(replica_step))()
    return {
        kind: {name: float(first_of(value)[0, 0]) for name, value in values.items()}
        for kind, values in sums.items()
    }


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


def eager() -> float:
    found = strategy.run(replica, ("SUM", 1.0, 0.0))["matrix"]
    return error_of(first_of(found), 3.0 * matrix)


PARTS: dict[str, Callable[[], object]] = {
    "eager": eager,
    "sum": lambda: one_case("SUM", 1.0),
    "mean": lambda: one_case("MEAN", 1.0),
    "tiny": lambda: one_case("SUM", 1e-12),
    "huge": lambda: one_case("SUM", 1e30 if precision == "bfloat16" else 1e4),
    "nan": lambda: one_case("SUM", 1.0, float("nan")),
    "inf": lambda: one_case("SUM", 1.0, float("inf")),
    "cross_replica": cross_replica,
    "others": others,
}
if precision == "float16":
    PARTS["fit"] = fit
print(json.dumps({name: PARTS[name]() for name in parts or PARTS}))
