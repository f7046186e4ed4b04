"""What optimizers' state in bfloat16 saves, what it costs, and what it does to training.

    python -m benchmarks.optimizer_state [--what time loss] [--models mlp resnet50 transformer]
        [--compiler none xla] [--rounds 15] [--clock cpu] [--tasks "digits MLP" recommender …] [--seeds 3]

- *time*: what Adam keeps for the weights of a model, counted from its variables, and one training step, both states in
  turn, in a new order each round; a ratio is the median of those within a round. *update* is the optimizer's part
  alone, on gradients that are there already. Nothing is rewritten, so what differs is the state alone. ``--clock cpu``
  counts the time that the process' threads had a core, where others keep the machine busy.
- *loss*: tasks of ``python -m benchmarks.accuracy`` as amp_tf runs them in bfloat16, with the state in float32 and in
  bfloat16: means over seeds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from amp_tf.config import AmpConfig
from amp_tf.hooks import optimizer_state
from benchmarks.accuracy import __main__ as accuracy
from benchmarks.accuracy.tasks import TASKS
from benchmarks.serving import CLOCKS

STATES = ("float32", "bfloat16")
_OURS = accuracy.MODES["bfloat16, amp_tf"]
MODES = {f"state in {state}": (_OURS[0], {**_OURS[1], "AMP_TF_OPTIMIZER_STATE": state}) for state in STATES}


def build_mlp() -> tuple[Any, Any]:
    layers = [keras.layers.Input((512,)), *(keras.layers.Dense(512, activation="relu") for _ in range(4))]
    return keras.Sequential([*layers, keras.layers.Dense(10)]), np.ones((256, 512), "float32")


def build_resnet50() -> tuple[Any, Any]:
    model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation=None)
    return model, np.random.default_rng(0).random((16, 64, 64, 3), "float32")


def build_transformer() -> tuple[Any, Any]:
    """Two blocks of width 256 over 64 tokens."""
    inputs = keras.layers.Input((64, 256))
    x = inputs
    for _ in range(2):
        normal = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(4, 64)(normal, normal)
        hidden = keras.layers.Dense(1024, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dense(256)(hidden)
    x = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, x), np.random.default_rng(0).random((16, 64, 256), "float32")


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "mlp": build_mlp,
    "resnet50": build_resnet50,
    "transformer": build_transformer,
}


def make_steps(model: str, state: str, jit: bool) -> tuple[dict[str, Any], Any]:
    """A whole training step and the optimizer's part of it, traced, without arguments; and the optimizer."""
    optimizer_state.uninstall()
    if state != "float32":
        optimizer_state.install(AmpConfig(optimizer_state=state))
    keras.utils.set_random_seed(0)
    network, x = MODELS[model]()
    variables = network.trainable_variables
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(variables)
    values = [variable.value for variable in variables]
    images, labels = tf.constant(x), tf.zeros(len(x), tf.int32)
    gradients = [tf.random.stateless_normal(variable.shape, (1, 2), stddev=1e-3) for variable in variables]

    def train() -> None:
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        optimizer.apply_gradients(zip(tape.gradient(loss, values), variables, strict=True))

    def update() -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    steps = {"step": tf.function(train, jit_compile=jit, autograph=False)}
    steps["update"] = tf.function(update, jit_compile=jit, autograph=False)
    for step in steps.values():
        step()
        step()
    return steps, optimizer


def state_bytes(optimizer: Any) -> int:
    """The bytes of all the variables that an optimizer keeps."""
    variables = [getattr(variable.value, "kept_in", variable.value) for variable in optimizer.variables]
    return sum(int(variable.shape.num_elements()) * int(variable.dtype.size) for variable in variables)


def measure(model: str, jit: bool, rounds: int, clock: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    """Bytes of both states, and seconds of a step and of an update in each round."""
    made = {state: make_steps(model, state, jit) for state in STATES}
    seconds: dict[tuple[str, str], list[float]] = {(part, state): [] for part in ("step", "update") for state in STATES}
    for _ in range(rounds):
        for part, state in random.sample(sorted(seconds), len(seconds)):
            start = clock()
            made[state][0][part]()
            seconds[part, state].append(clock() - start)
    return {"bytes": {state: state_bytes(optimizer) for state, (_, optimizer) in made.items()}, "seconds": seconds}


def row(model: str, jit: bool, figures: dict[str, Any]) -> str:
    """A line of the table."""
    cells = [model, "yes" if jit else "no"]
    bytes_ = figures["bytes"]
    cells += [f"{bytes_[state] / 2**20:.1f}" for state in STATES]
    cells.append(f"{bytes_['bfloat16'] / bytes_['float32'] - 1:+.1%}")
    for part in ("step", "update"):
        wide, narrow = (figures["seconds"][part, state] for state in STATES)
        ratio = statistics.median(ours / theirs for ours, theirs in zip(narrow, wide, strict=True))
        cells += [f"{statistics.median(wide) * 1e3:.1f}", f"{ratio:.2f}"]
    return "| " + " | ".join(cells) + " |"


def losses(tasks: list[str], seeds: int) -> list[str]:
    """Markdown: means of the tasks' metrics in both states."""
    accuracy.MODES.update(MODES)
    lines = [f"| task | metric | {' | '.join(MODES)} | difference |", "|---|---|---:|---:|---:|"]
    values: dict[tuple[str, str], list[float]] = {}
    for mode in MODES:
        for found in accuracy.run_mode(mode, tasks, seeds, None):
            values.setdefault((str(found["task"]), mode), []).append(float(str(found["value"])))
    metrics = {task.name: task.figure for task in TASKS}
    for task in dict.fromkeys(task for task, _ in values):
        wide, narrow = (statistics.fmean(values[task, mode]) for mode in MODES)
        lines.append(f"| {task} | {metrics[task]} | {wide:.4f} | {narrow:.4f} | {narrow / wide - 1:+.2%} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", choices=("time", "loss"), default=["time", "loss"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--compiler", nargs="+", choices=("none", "xla"), default=["none"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="what a time is of")
    parser.add_argument("--tasks", nargs="+", default=["digits MLP", "denoising autoencoder", "recommender"])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if "time" in arguments.what:
        print(
            "| model | XLA | state, MiB | in bfloat16 | less | step, ms | ratio | update, ms | ratio |\n"
            "|---|---|---:|---:|---:|---:|---:|---:|---:|"
        )
        for model in arguments.models:
            for compiler in arguments.compiler:
                jit = compiler == "xla"
                print(row(model, jit, measure(model, jit, arguments.rounds, CLOCKS[arguments.clock])), flush=True)
                keras.backend.clear_session()
        optimizer_state.uninstall()
    if "loss" in arguments.what:
        print("\n" + "\n".join(losses(arguments.tasks, arguments.seeds)))


if __name__ == "__main__":
    main()
