"""Serving under load: many threads ask several models that are loaded anew meanwhile, with amp_tf and without it.

    python -m benchmarks.serving_load [--seconds 600] [--threads 16] [--modes amp_tf float32] [--json load.json]

Three SavedModels (dense layers, convolutions, an LSTM) are served in a process of their own for each mode, with
``AMP_TF_REPORT`` under amp_tf. Each thread asks one model after the other; one more thread loads them again, one by
one, without a pause. Every answer is held against the model's first one. Resident memory is read each second; what
counts is the median of its second half less that of the quarter before, for each reload, because TensorFlow's allocator
and amp_tf's report fill up at first. Status 1 if an answer was wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.memory import resident
from benchmarks.step_time.modes import environment, modes

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("dense", "convolutions", "lstm")
TOLERANCE = 2**-8  # of the largest value: kernels may add in another order when the machine is busy
BATCH = 8


@dataclasses.dataclass(frozen=True)
class Load:
    """What one process did.

    Attributes:
        mode: ``amp_tf`` or ``float32``.
        calls, reloads: how many.
        wrong: answers further off than :data:`TOLERANCE`, and errors.
        worst: how far the worst was off, as a share of the model's largest value.
        memory: MiB of resident memory at each second.
        converted: nodes that amp_tf converted.
    """

    mode: str
    calls: int
    reloads: int
    wrong: int
    worst: float
    memory: list[float]
    converted: int

    @property
    def growth(self) -> float:
        """MiB by which the second half's memory is larger than that of the quarter before it."""
        seconds = len(self.memory)
        return statistics.median(self.memory[seconds // 2 :]) - statistics.median(
            self.memory[seconds // 4 : max(seconds // 2, seconds // 4 + 1)]
        )

    @property
    def kib_a_reload(self) -> float:
        """The growth for each reload; the medians are three eighths of the time apart."""
        return self.growth * 1024 / max(1.0, self.reloads * 3 / 8)


def make(name: str, folder: Path) -> None:
    """Writes a model as a SavedModel."""
    import keras

    layers = keras.layers
    stacks = {
        "dense": [layers.Input((256,)), layers.Dense(512, "relu"), layers.Dense(512, "relu"), layers.Dense(10)],
        "convolutions": [
            *(layers.Input((32, 32, 8)), layers.Conv2D(32, 3, activation="relu"), layers.BatchNormalization()),
            *(layers.Conv2D(32, 3, strides=2, activation="relu"), layers.GlobalAveragePooling2D(), layers.Dense(10)),
        ],
        "lstm": [layers.Input((16, 64)), layers.LSTM(128), layers.Dense(10)],
    }
    keras.utils.set_random_seed(1)
    keras.Sequential(stacks[name]).export(str(folder / name), verbose=False)


def work(options: dict[str, Any]) -> None:
    """Serves in this process and prints a :class:`Load` in JSON."""
    import numpy as np
    import tensorflow as tf

    folder, dice = Path(options["folder"]), np.random.default_rng(1)

    def load(name: str) -> Any:
        return tf.saved_model.load(str(folder / name))

    served = {name: load(name) for name in MODELS}
    first, data = {}, {}
    for name, model in served.items():
        (spec,) = model.signatures["serving_default"].structured_input_signature[1].values()
        data[name] = tf.constant(dice.standard_normal((BATCH, *spec.shape[1:])), tf.float32)
        (answer,) = model.signatures["serving_default"](data[name]).values()
        first[name] = answer.numpy()

    ends, calls, reloads, off, errors = threading.Event(), [], [], [], []

    def ask() -> None:
        count, worst = 0, [0.0]
        while not ends.is_set():
            name = MODELS[count % len(MODELS)]
            try:
                (answer,) = served[name].signatures["serving_default"](data[name]).values()
                worst.append(float(np.max(np.abs(answer.numpy() - first[name])) / np.max(np.abs(first[name]))))
                if worst[-1] > TOLERANCE:
                    errors.append(f"{name}: off by {worst[-1]:.3g}")
                worst = [max(worst)]
            except Exception as error:  # whatever it is, it is counted
                errors.append(f"{name}: {type(error).__name__}: {error}")
            count += 1
        calls.append(count)
        off.append(max(worst))

    def reload() -> None:
        while not ends.is_set():
            name = MODELS[len(reloads) % len(MODELS)]
            try:
                served[name] = load(name)
            except Exception as error:
                errors.append(f"loading {name}: {type(error).__name__}: {error}")
            reloads.append(name)

    threads = [threading.Thread(target=ask) for _ in range(options["threads"])] + [threading.Thread(target=reload)]
    for thread in threads:
        thread.start()
    memory = []
    until = time.monotonic() + options["seconds"]
    while time.monotonic() < until:
        time.sleep(1)
        memory.append(resident("VmRSS"))
    ends.set()
    for thread in threads:
        thread.join()
    for error in errors[:5]:
        print(error, file=sys.stderr)
    converted = 0
    if options["mode"] == "amp_tf":
        from amp_tf.reporting import process

        converted = process.totals().converted
    done = Load(options["mode"], sum(calls), len(reloads), len(errors), max(off), memory, converted)
    print(json.dumps(dataclasses.asdict(done)))


def measure(mode: str, folder: Path, seconds: float, threads: int, precision: str) -> Load:
    """What a process of one mode did.

    Raises:
        RuntimeError: it failed; the message is the end of what it wrote to stderr.
    """
    options = {"mode": mode, "folder": str(folder), "seconds": seconds, "threads": threads}
    environ = environment(modes(precision)[mode]) | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    if mode == "amp_tf":
        environ["AMP_TF_REPORT"] = str(folder / "reports")
        environ["AMP_TF_PRECISION"] = precision  # auto converts nothing on some CPUs
    command = [sys.executable, "-m", "benchmarks.serving_load", "--work", json.dumps(options)]
    ended = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{mode}: exit status {ended.returncode}\n{ended.stderr[-2000:]}")
    sys.stderr.writelines(f"{line}\n" for line in ended.stderr.splitlines() if "amp_tf" in line or ": off by" in line)
    return Load(**json.loads(ended.stdout.splitlines()[-1]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of each mode (default 600)")
    parser.add_argument("--threads", type=int, default=16, help="that ask (default 16)")
    parser.add_argument("--modes", nargs="+", choices=("amp_tf", "float32"), default=["amp_tf", "float32"])
    parser.add_argument("--precision", default="bfloat16", help="of amp_tf (default bfloat16)")
    parser.add_argument("--json", type=Path, help="also write the measurements")
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(options.work)
        return 0
    loads = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in MODELS:
            make(model, folder)
        print("| mode | calls | reloads | wrong | worst | converted | MiB at a quarter | at the end | KiB a reload |")
        print("|---|---|---|---|---|---|---|---|---|")
        for mode in options.modes:
            load = measure(mode, folder, options.seconds, options.threads, options.precision)
            loads.append(load)
            first, last = load.memory[len(load.memory) // 4], load.memory[-1]
            print(
                f"| {mode} | {load.calls:,} | {load.reloads:,} | {load.wrong} | {load.worst:.1e} | {load.converted:,} "
                f"| {first:,.0f} | {last:,.0f} | {load.kib_a_reload:,.0f} |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(load) for load in loads]))
    return int(any(load.wrong for load in loads))


if __name__ == "__main__":
    sys.exit(main())
