"""The two classic demonstrations: gradients too small for float16, and gradients too large for it.

    python -m benchmarks.accuracy.demonstrations [--seeds 5]

The loss is multiplied by 2^-24 (or 2^24) and the learning rate of plain SGD divided by it: the same mathematics, so in
float32 nothing changes. In float16 the gradients underflow (or overflow), unless the loss scale makes up for it. The
model is one of float32, which amp_tf rewrites; a run in which it converts nothing is an error. The large case also
shows why a scale must be able to fall below 1: with a floor of 1, as tf_keras and TF1 have, every step is skipped.
Source of the idea: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import amp_tf
from benchmarks.accuracy import data

LEARNING_RATE = 0.25
Wrap = Callable[[Any], Any]


def bare(optimizer: Any) -> Any:
    """No loss scaling at all."""
    return optimizer


def dynamic(optimizer: Any) -> Any:
    """Ours. It grows often, because training is short."""
    return amp_tf.LossScaleOptimizer(optimizer, dynamic_growth_steps=10)


def floor_of_one(optimizer: Any) -> Any:
    """The rule of tf_keras and TF1."""
    return amp_tf.LossScaleOptimizer(optimizer, dynamic_growth_steps=10, min_scale=1.0)


def train(precision: str, factor: float, wrap: Wrap, seed: int, epochs: int = 15) -> tuple[float, float]:
    """Trains an MLP on digits with the loss multiplied by a factor.

    Returns:
        The test accuracy and the last loss scale.
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    x, y, test_x, test_y = data.digits()
    hidden = [keras.layers.Dense(128, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.layers.Input((64,)), *hidden, keras.layers.Dense(10)])
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = wrap(keras.optimizers.SGD(LEARNING_RATE / factor))
    order = np.random.RandomState(1)
    with contextlib.nullcontext() if precision == "float32" else amp_tf.enable(precision=precision):
        before = amp_tf.report().converted
        model.compile(optimizer, lambda t, p: entropy(t, p) * factor, metrics=["accuracy"], auto_scale_loss=False)
        for _ in range(epochs):
            chosen = order.permutation(len(x))
            model.fit(x[chosen], y[chosen], batch_size=32, shuffle=False, verbose=0)
        if precision != "float32" and amp_tf.report().converted == before:
            raise SystemExit(f"{precision}: amp_tf converted nothing")
    accuracy = float(np.mean(model.predict(test_x, verbose=0).argmax(1) == test_y))
    return accuracy, optimizer.status().scale if wrap is not bare else 1.0


ROWS: tuple[tuple[str, float, str, Wrap], ...] = (
    ("float32", 2.0**-24, "none", bare),
    ("bfloat16", 2.0**-24, "none", bare),
    ("float16", 2.0**-24, "none", bare),
    ("float16", 2.0**-24, "dynamic", dynamic),
    ("float32", 2.0**24, "none", bare),
    ("bfloat16", 2.0**24, "none", bare),
    ("float16", 2.0**24, "none", bare),
    ("float16", 2.0**24, "dynamic, floor 1", floor_of_one),
    ("float16", 2.0**24, "dynamic", dynamic),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print("| loss times | precision | loss scaling | mean accuracy | standard deviation | last scale |")
    print("|---|---|---|---:|---:|---:|")
    for precision, factor, scaling, wrap in ROWS:
        runs = [train(precision, factor, wrap, seed) for seed in seeds]
        accuracies = [accuracy for accuracy, _ in runs]
        deviation = statistics.stdev(accuracies) if len(runs) > 1 else 0.0
        print(
            f"| 2^{int(np.log2(factor))} | {precision} | {scaling} | {statistics.fmean(accuracies):.4f} | "
            f"{deviation:.4f} | 2^{int(np.log2(runs[-1][1]))} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
