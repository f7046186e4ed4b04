"""What AMP_TF_MONITOR costs: a reading against a training step, both in one process.

    python -m benchmarks.monitor_cost [--models mlp mobilenet transformer] [--every 500] [--rounds 5] [--output FILE]

Each model trains under amp_tf in bfloat16 by Keras' ``fit``. A round is some steps without a monitor and as many with
one that reads once in them; the step is the median of the rounds without, a reading the median of what the monitor
itself says, the first ones, which build and prepare the graph, apart. The share of a step is that of one reading every
so many steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import amp_tf
from amp_tf.comparing import readings
from amp_tf.comparing.monitor import EVERY

STEPS = 8  # of a half round


def mlp() -> tuple[Any, Any, int]:
    layers = [keras.layers.Dense(1024, activation="relu") for _ in range(6)]
    return keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(10)]), (512,), 256


def mobilenet() -> tuple[Any, Any, int]:
    shape = (96, 96, 3)
    made = keras.applications.MobileNetV2(shape, alpha=0.5, weights=None, classes=10, classifier_activation=None)
    return made, shape, 16


def transformer() -> tuple[Any, Any, int]:
    inputs = keras.Input((64, 128))
    hidden = inputs
    for _ in range(4):
        attention = keras.layers.MultiHeadAttention(4, 32)(hidden, hidden)
        hidden = keras.layers.LayerNormalization()(hidden + attention)
        wide = keras.layers.Dense(512, activation="gelu")(hidden)
        hidden = keras.layers.LayerNormalization()(hidden + keras.layers.Dense(128)(wide))
    outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(hidden))
    return keras.Model(inputs, outputs), (64, 128), 32


MODELS: dict[str, Callable[[], tuple[Any, Any, int]]] = {
    "mlp": mlp,
    "mobilenet": mobilenet,
    "transformer": transformer,
}


def measure(name: str, rounds: int, every: int) -> dict[str, Any]:
    """The figures of one model, times in seconds."""
    keras.utils.set_random_seed(0)
    model, shape, batch = MODELS[name]()
    random = np.random.default_rng(0)
    x = random.normal(size=(STEPS * batch, *shape)).astype("float32")
    y = random.integers(0, 10, size=(STEPS * batch,))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with tempfile.TemporaryDirectory() as folder:
        monitor = amp_tf.callbacks.LossScaleMonitor(ranges=folder, ranges_every=STEPS)
        model.fit(x, y, batch_size=batch, verbose=0)
        model.fit(x, y, batch_size=batch, verbose=0, callbacks=[monitor])
        steps = []
        for _ in range(rounds):
            begin = time.perf_counter()
            model.fit(x, y, batch_size=batch, verbose=0, shuffle=False)
            steps.append((time.perf_counter() - begin) / STEPS)
            model.fit(x, y, batch_size=batch, verbose=0, shuffle=False, callbacks=[monitor])
        (run,) = (readings.read(str(path)) for path in Path(folder).glob("*.jsonl"))
    first, *later = (reading.seconds for reading in run.readings)
    step, reading = statistics.median(steps), statistics.median(later[1:] or later)
    return {
        "model": name,
        "layers": len(run.readings[-1].layers),
        "step": step,
        "first_reading": first,
        "reading": reading,
        "reading_in_steps": reading / step,
        "share_of_a_step": reading / step / every,
    }


def main() -> None:
    """Measures, prints a line for each model, and writes JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--every", type=int, default=EVERY, help="steps between two readings")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", help="a file for JSON")
    args = parser.parse_args()
    amp_tf.enable(precision="bfloat16")
    rows = []
    for name in args.models:
        row = measure(name, args.rounds, args.every)
        rows.append(row)
        print(
            f"{name}: a step {1e3 * row['step']:.0f} ms, a reading {row['reading_in_steps']:.1f} steps, "
            f"{row['share_of_a_step']:.2%} of a step every {args.every}; the first {row['first_reading']:.1f} s",
            flush=True,
        )
    if args.output:
        Path(args.output).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
