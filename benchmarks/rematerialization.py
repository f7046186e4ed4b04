"""Rematerialization and mixed precision together: time and memory of float32 and amp_tf, each without and with it.

    python -m benchmarks.rematerialization [--models mlp …] [--way fit fit_jit] [--rounds 5] [--rows 0]
        [--clock cpu]

A model is a chain of blocks; with rematerialization each is wrapped by ``tf.recompute_grad`` (``keras.remat``): what it
computes in the forward pass is dropped and computed again in the backward pass. Each combination is a process of its
own that trains by Keras' fit. *Live* is what was live at the peak of a step, without weights and the optimizer's state,
as ``python -m benchmarks.memory_peak`` counts it (not with XLA, which allocates by itself: there it is the growth of
resident memory, as in ``python -m benchmarks.memory``). The processes make their rounds of steps in turn; a time is the
median over rounds, and a ratio the median of those within a round; ``--clock cpu`` counts the time that the threads of
a process had a core, where others keep the machine busy. Under the Keras policy the blocks raise a TypeError
(Keras 3.15): what is recomputed is not cast. ``--rows`` shows the largest tensors at the peak.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.memory import resident
from benchmarks.memory_peak import find_peak, record_memory
from benchmarks.serving import CLOCKS
from benchmarks.step_time.modes import environment, modes

ROOT = Path(__file__).resolve().parents[1]
MODES = ("float32", "all listed")
TITLES = {"float32": "float32", "all listed": "amp_tf", "policy": "Keras policy"}
COMBINATIONS = tuple((mode, remat) for mode in MODES for remat in (False, True))


def new_model(name: str, remat: bool) -> tuple[Any, Any]:
    """A model of blocks and a batch for it, with or without rematerialization of each block."""
    import keras
    import numpy as np

    class Block(keras.layers.Layer):  # type: ignore[misc]
        """Layers one after the other, the first input added to the last output where the shapes allow."""

        def __init__(self, *chain: Any) -> None:
            super().__init__()
            self.chain = list(chain)

        def build(self, shape: Any) -> None:
            for layer in self.chain:
                layer.build(shape)
                shape = layer.compute_output_shape(shape)

        def call(self, x: Any) -> Any:
            return keras.remat(self.through)(x) if remat else self.through(x)

        def through(self, x: Any) -> Any:
            y = x
            for layer in self.chain:
                y = layer(y)
            return x + y if y.shape == x.shape else y

    class Attention(keras.layers.MultiHeadAttention):  # type: ignore[misc]
        """Of a sequence to itself."""

        def build(self, shape: Any) -> None:
            super().build(shape, shape)

        def call(self, x: Any) -> Any:
            return super().call(x, x)

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    def dense(units: int, activation: str | None = None) -> Any:
        return keras.layers.Dense(units, activation=activation)

    def conv(filters: int) -> Any:
        return keras.layers.Conv2D(filters, 3, padding="same", activation="gelu")

    if name == "mlp":
        shape: tuple[int, ...] = (256,)
        blocks = [Block(dense(512, "gelu"), dense(512, "gelu"), dense(256)) for _ in range(4)]
        batch, tail = 1024, []
    elif name == "convnet":
        shape, batch, tail = (16, 16, 32), 32, [keras.layers.GlobalAveragePooling2D()]
        blocks = [Block(conv(32), conv(32), conv(32)) for _ in range(4)]
    else:
        shape, batch, tail = (64, 128), 32, [keras.layers.GlobalAveragePooling1D()]
        normal = keras.layers.LayerNormalization
        blocks = []
        for _ in range(4):
            blocks += [Block(normal(), Attention(4, 32)), Block(normal(), dense(512, "gelu"), dense(128))]
    model = keras.Sequential([keras.layers.Input(shape), *blocks, *tail, dense(10)])
    rng = np.random.default_rng(0)
    return model, (rng.normal(size=(batch, *shape)).astype("float32"), rng.integers(0, 10, batch))


class Worker:
    """One combination in this process: makes the model and a first step."""

    def __init__(self, options: dict[str, Any]) -> None:
        from benchmarks.step_time import worker

        mode = modes("bfloat16")[options["mode"]]
        worker.set_up(mode)
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy(mode.policy)
        self.model, (x, y) = new_model(options["model"], options["remat"])
        self.clock = CLOCKS[options["clock"]]
        self.jit = options["way"] == "fit_jit"
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile("adam", loss, jit_compile=self.jit)
        self.data = tf.data.Dataset.from_tensors((x, y)).repeat()
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        self.losses = [self.steps(2)]
        self.grown = resident("VmHWM") - before

    def steps(self, count: int) -> float:
        return float(self.model.fit(self.data, steps_per_epoch=count, verbose=0).history["loss"][-1])

    def time(self) -> float:
        """Seconds of a step."""
        start = self.clock()
        self.losses.append(self.steps(3))
        return (self.clock() - start) / 3

    def memory(self) -> dict[str, Any]:
        if self.jit:
            return {"live": self.grown, "tensors": [], "losses": self.losses}
        peak = find_peak(record_memory(lambda: self.steps(3)))
        tensors = [(tensor.mib, tensor.dtype, tensor.node) for tensor in peak.tensors[:20]]
        return {"live": peak.live, "tensors": tensors, "losses": self.losses}


def serve(options: dict[str, Any]) -> None:
    """Does what the lines of stdin ask for, and answers with a line of JSON each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to stderr
    worker = Worker(options)
    for line in sys.stdin:
        print(json.dumps(getattr(worker, line.strip())()), file=answers, flush=True)


def start(options: dict[str, Any]) -> Callable[[str], Any]:
    """Starts a process; what it returns asks for ``"time"`` or ``"memory"``, and ends the process with ``""``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.rematerialization", "--work", json.dumps(options)],
        env=environment(modes("bfloat16")[options["mode"]]) | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def ask(question: str) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        if question:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            if answer := process.stdout.readline():
                return json.loads(answer)
        _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{options}: exit status {process.returncode}\n{errors[-2000:]}")
        return None

    return ask


def measure(model: str, way: str, rounds: int, clock: str = "wall") -> dict[tuple[str, bool], dict[str, Any]]:
    """Of each combination: seconds of a step in each round, MiB live at the peak, the largest tensors, losses."""
    options = {"model": model, "way": way, "clock": clock}
    asking = {(mode, remat): start({**options, "mode": mode, "remat": remat}) for mode, remat in COMBINATIONS}
    seconds: dict[tuple[str, bool], list[float]] = {combination: [] for combination in COMBINATIONS}
    for _ in range(rounds):
        for combination, ask in asking.items():
            seconds[combination].append(ask("time"))
    found = {combination: {**ask("memory"), "seconds": seconds[combination]} for combination, ask in asking.items()}
    for ask in asking.values():
        ask("")
    return found


def table(model: str, way: str, found: dict[tuple[str, bool], dict[str, Any]]) -> list[str]:
    """Markdown: a line for each combination."""
    first = found[COMBINATIONS[0]]
    lines = []
    for (mode, remat), figures in found.items():
        ratio = statistics.median(a / b for a, b in zip(figures["seconds"], first["seconds"], strict=True))
        cells = [
            model,
            way,
            TITLES[mode],
            "yes" if remat else "no",
            f"{statistics.median(figures['seconds']) * 1e3:.0f}",
        ]
        cells += [f"{ratio:.2f}", f"{figures['live']:.0f}", f"{figures['live'] / first['live']:.2f}"]
        lines.append("| " + " | ".join([*cells, f"{figures['losses'][-1]:.4f}"]) + " |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("mlp", "convnet", "transformer")
    parser.add_argument("--models", nargs="+", choices=names, default=list(names))
    parser.add_argument("--way", nargs="+", choices=("fit", "fit_jit"), default=["fit"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="what a time is of")
    parser.add_argument("--rows", type=int, default=0, help="how many of the largest tensors at the peak to show")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        serve(json.loads(arguments.work))
        return 0
    print("| model | way | precision | remat | step, ms | ratio | live, MiB | ratio | last loss |")
    print("|---|---|---|---|---:|---:|---:|---:|---:|")
    for model in arguments.models:
        for way in arguments.way:
            found = measure(model, way, arguments.rounds, arguments.clock)
            print("\n".join(table(model, way, found)), flush=True)
            for combination, figures in found.items():
                for mib, dtype, node in figures["tensors"][: arguments.rows]:
                    print(f"{combination} {mib:.1f} {dtype} {node}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
