"""What loss scaling costs per training step: a bare optimizer, Keras' LossScaleOptimizer and ours, interleaved.

    python benchmarks/loss_scaling_overhead.py [--models mlp resnet50] [--what train apply]
        [--compiler none xla] [--rounds 15] [--output overhead.json]

Each variant trains its own copy of the model in float32 on the same batch, so that what differs is the wrapper alone.
A round runs every variant in turn, in a new order; a variant's time is the median over rounds, and a difference is the
median of the differences within a round, which cancels what the machine does beside. ``apply`` rows time the optimizer
alone, on gradients that are there already. Also counted: traces of each step, and its operations that leave the graph.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import amp_tf

VARIANTS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda optimizer: optimizer,
    "keras": keras.optimizers.LossScaleOptimizer,
    "amp_tf": amp_tf.LossScaleOptimizer,
}
LEAVES_GRAPH = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "PrintV2", "Assert"}


def build_mlp() -> tuple[Any, np.ndarray]:
    layers = [keras.layers.Input((128,)), *(keras.layers.Dense(256, activation="relu") for _ in range(4))]
    return keras.Sequential([*layers, keras.layers.Dense(10)]), np.ones((64, 128), "float32")


def build_resnet50() -> tuple[Any, np.ndarray]:
    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None)
    return model, np.random.RandomState(0).rand(4, 64, 64, 3).astype("float32")


MODELS = {"mlp": build_mlp, "resnet50": build_resnet50}
# steps in a row that make one sample: some tens of milliseconds
REPEATS = {("mlp", "train"): 30, ("mlp", "apply"): 100, ("resnet50", "train"): 1, ("resnet50", "apply"): 3}


@functools.cache
def weight_shapes(model: str) -> list[tuple[int, ...]]:
    """The shapes of a model's trainable variables."""
    return [tuple(variable.shape) for variable in MODELS[model]()[0].trainable_variables]


def make_train(model: str, wrap: Callable[[Any], Any], options: dict[str, Any], jit: bool) -> Any:
    """One training step, traced, without arguments."""
    keras.utils.set_random_seed(0)
    network, x = MODELS[model]()
    variables = network.trainable_variables
    optimizer = wrap(keras.optimizers.Adam(1e-4, **options))
    optimizer.build(variables)
    values = [variable.value for variable in variables]
    images, labels = tf.constant(x), tf.zeros(len(x), tf.int32)

    def train() -> None:
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            loss = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(loss, values), variables, strict=True))

    return tf.function(train, jit_compile=jit, autograph=False)


def make_apply(model: str, wrap: Callable[[Any], Any], options: dict[str, Any], jit: bool) -> Any:
    """The optimizer's part of a step alone, on gradients that are there already; traced, without arguments."""
    shapes = weight_shapes(model)
    variables = [keras.Variable(np.zeros(shape, "float32")) for shape in shapes]
    gradients = [tf.random.stateless_normal(shape, (1, 2), stddev=1e-3) for shape in shapes]
    optimizer = wrap(keras.optimizers.Adam(1e-4, **options))
    optimizer.build(variables)

    def apply() -> None:
        scale = optimizer.scale_loss(tf.constant(1.0))
        optimizer.apply_gradients(zip([g * scale for g in gradients], variables, strict=True))

    return tf.function(apply, jit_compile=jit, autograph=False)


PARTS = {"train": make_train, "apply": make_apply}


def seconds(step: Any, repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        step()
    return (time.perf_counter() - start) / repeat


def measure(model: str, what: str, jit: bool, options: dict[str, Any], rounds: int) -> dict[str, Any]:
    steps = {name: PARTS[what](model, wrap, options, jit) for name, wrap in VARIANTS.items()}
    repeat = REPEATS[model, what]
    for step in steps.values():
        seconds(step, 2)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name in random.sample(sorted(steps), len(steps)):
            times[name].append(seconds(steps[name], repeat))
    graph = steps["amp_tf"].get_concrete_function().graph.as_graph_def()
    ops = [node.op for f in (graph.node, *(fn.node_def for fn in graph.library.function)) for node in f]
    over_bare, over_keras = (
        statistics.median(a - b for a, b in zip(times["amp_tf"], times[other], strict=True))
        for other in ("bare", "keras")
    )
    return {
        "model": model,
        "what": what,
        "jit": jit,
        "options": options,
        "variables": len(steps["amp_tf"].get_concrete_function().graph.trainable_variables),
        **{f"{name}_ms": statistics.median(values) * 1e3 for name, values in times.items()},
        "over_bare_ms": over_bare * 1e3,
        "over_keras_ms": over_keras * 1e3,
        "traces": steps["amp_tf"].experimental_get_tracing_count(),
        "ops_that_leave_the_graph": sum(op in LEAVES_GRAPH for op in ops),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--what", nargs="+", choices=("train", "apply"), default=["train", "apply"])
    parser.add_argument("--compiler", nargs="+", choices=("none", "xla"), default=["none", "xla"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", help="a JSON file for the rows")
    arguments = parser.parse_args()
    cases = [
        (model, what, jit, options)
        for model in arguments.models
        for what in arguments.what
        for jit in (name == "xla" for name in arguments.compiler)
        for options in ({}, {"global_clipnorm": 1.0})
        if not (model == "resnet50" and (jit or options) and what == "train")  # minutes of compilation each
    ]
    print(
        "| model | part | XLA | clip | bare ms | Keras ms | amp_tf ms | amp_tf − Keras ms | amp_tf − bare ms | "
        "traces | leave the graph |"
    )
    print("|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|")
    rows = []
    for model, what, jit, options in cases:
        row = measure(model, what, jit, options, arguments.rounds)
        rows.append(row)
        print(
            f"| {model} | {what} | {'yes' if jit else 'no'} | {next(iter(options), '–')} | {row['bare_ms']:.3f} | "
            f"{row['keras_ms']:.3f} | {row['amp_tf_ms']:.3f} | {row['over_keras_ms']:+.3f} | "
            f"{row['over_bare_ms']:+.3f} | {row['traces']} | {row['ops_that_leave_the_graph']} |",
            flush=True,
        )
    if arguments.output:
        with open(arguments.output, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
