"""What loss scaling costs per training step: a bare optimizer, Keras' LossScaleOptimizer and ours, interleaved.

    python benchmarks/loss_scaling_overhead.py [--models mlp resnet50 …] [--rounds 15] [--output overhead.json]

Each variant trains its own copy of the model in float32 on the same batch, so that what differs is the wrapper alone.
A round runs every variant in turn, in a new order; a variant's time is the median over rounds, and a difference is the
median of the differences within a round, which cancels what the machine does beside. ``apply`` rows time the optimizer
alone, on gradients that are there already. Also counted: traces of each step, and its operations that leave the graph.
"""

from __future__ import annotations

import argparse
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


def build_mlp() -> tuple[Any, np.ndarray, int]:
    layers = [keras.layers.Input((128,)), *(keras.layers.Dense(256, activation="relu") for _ in range(4))]
    return keras.Sequential([*layers, keras.layers.Dense(10)]), np.ones((64, 128), "float32"), 40


def build_resnet50() -> tuple[Any, np.ndarray, int]:
    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None)
    return model, np.random.RandomState(0).rand(4, 64, 64, 3).astype("float32"), 1


MODELS = {"mlp": build_mlp, "resnet50": build_resnet50}


def make_step(
    build: Callable[[], Any], wrap: Callable[[Any], Any], options: dict[str, Any], jit: bool, what: str
) -> Any:
    """One training step, or only its last part, as a traced function without arguments."""
    keras.utils.set_random_seed(0)
    model, x, repeat = build()
    optimizer = wrap(keras.optimizers.Adam(1e-4, **options))
    variables = model.trainable_variables
    optimizer.build(variables)
    values = [variable.value for variable in variables]
    images, labels = tf.constant(x), tf.zeros(len(x), tf.int32)
    constants = [tf.random.stateless_normal(value.shape, (1, 2), stddev=1e-3) for value in values]

    def train() -> None:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            loss = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(loss, values), variables, strict=True))

    def apply() -> None:
        scale = optimizer.scale_loss(tf.constant(1.0))
        optimizer.apply_gradients(zip([g * scale for g in constants], variables, strict=True))

    return tf.function({"train": train, "apply": apply}[what], jit_compile=jit, autograph=False), repeat


def seconds(step: Any, repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        step()
    return (time.perf_counter() - start) / repeat


def measure(model: str, what: str, jit: bool, options: dict[str, Any], rounds: int) -> dict[str, Any]:
    steps = {name: make_step(MODELS[model], wrap, options, jit, what) for name, wrap in VARIANTS.items()}
    repeat = {"train": 1, "apply": 10}[what] * next(iter(steps.values()))[1]
    for step, _ in steps.values():
        seconds(step, 2)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name in random.sample(sorted(steps), len(steps)):
            times[name].append(seconds(steps[name][0], repeat))
    graph = steps["amp_tf"][0].get_concrete_function().graph.as_graph_def()
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
        "variables": len(steps["amp_tf"][0].get_concrete_function().graph.trainable_variables),
        **{f"{name}_ms": statistics.median(values) * 1e3 for name, values in times.items()},
        "over_bare_ms": over_bare * 1e3,
        "over_keras_ms": over_keras * 1e3,
        "traces": steps["amp_tf"][0].experimental_get_tracing_count(),
        "ops_that_leave_the_graph": sum(op in LEAVES_GRAPH for op in ops),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--what", nargs="+", choices=("train", "apply"), default=["train", "apply"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", help="a JSON file for the rows")
    arguments = parser.parse_args()
    cases = [
        (model, what, jit, options)
        for model in arguments.models
        for what in arguments.what
        for jit in (False, True)
        for options in ({}, {"global_clipnorm": 1.0})
        if not (model == "resnet50" and (jit or options) and what == "train")  # minutes of compilation each
    ]
    print(
        "| model | part | XLA | clip | bare ms | Keras ms | amp_tf ms | amp_tf − Keras ms | amp_tf − bare ms | traces |"
    )
    print("|---|---|---|---|---:|---:|---:|---:|---:|---:|")
    rows = []
    for model, what, jit, options in cases:
        row = measure(model, what, jit, options, arguments.rounds)
        rows.append(row)
        print(
            f"| {model} | {what} | {'yes' if jit else 'no'} | {next(iter(options), '–')} | {row['bare_ms']:.3f} | "
            f"{row['keras_ms']:.3f} | {row['amp_tf_ms']:.3f} | {row['over_keras_ms']:+.3f} | "
            f"{row['over_bare_ms']:+.3f} | {row['traces']} |",
            flush=True,
        )
    if arguments.output:
        with open(arguments.output, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
