"""The two classic demonstrations: gradients too small for float16, and gradients too large for it.

    python -m benchmarks.accuracy.demonstrations [--seeds 5]

The loss is multiplied by 2^-24 (or 2^24) and the learning rate of plain SGD divided by it: the same mathematics, so in
float32 nothing changes. In float16 the gradients underflow (or overflow), unless the loss scale makes up for it. The
large case also shows why a scale must be able to fall below 1: with a floor of 1, as tf_keras and TF1 have, every step
is skipped. Source of the idea: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2.
"""

from __future__ import annotations

import argparse
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


def train(policy: str, factor: float, wrap: Wrap, seed: int, epochs: int = 15) -> tuple[float, float]:
    """Trains an MLP on digits with the loss multiplied by a factor.

    Returns:
        The test accuracy and the last loss scale.
    """
    keras.utils.set_random_seed(seed)
    x, y, test_x, test_y = data.digits()
    hidden = [keras.layers.Dense(128, activation="relu", dtype=policy) for _ in range(2)]
    head = [keras.layers.Dense(10, dtype=policy), keras.layers.Activation("linear", dtype="float32")]
    model = keras.Sequential([keras.layers.Input((64,)), *hidden, *head])
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = wrap(keras.optimizers.SGD(LEARNING_RATE / factor))
    model.compile(optimizer, lambda t, p: entropy(t, p) * factor, metrics=["accuracy"], auto_scale_loss=False)
    order = np.random.RandomState(1)
    for _ in range(epochs):
        chosen = order.permutation(len(x))
        model.fit(x[chosen], y[chosen], batch_size=32, shuffle=False, verbose=0)
    accuracy = float(np.mean(model.predict(test_x, verbose=0).argmax(1) == test_y))
    return accuracy, optimizer.status().scale if wrap is not bare else 1.0


ROWS: tuple[tuple[str, float, str, Wrap], ...] = (
    ("float32", 2.0**-24, "none", bare),
    ("mixed_bfloat16", 2.0**-24, "none", bare),
    ("mixed_float16", 2.0**-24, "none", bare),
    ("mixed_float16", 2.0**-24, "dynamic", dynamic),
    ("float32", 2.0**24, "none", bare),
    ("mixed_float16", 2.0**24, "none", bare),
    ("mixed_float16", 2.0**24, "dynamic, floor 1", floor_of_one),
    ("mixed_float16", 2.0**24, "dynamic", dynamic),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print("| loss times | policy | loss scaling | mean accuracy | standard deviation | last scale |")
    print("|---|---|---|---:|---:|---:|")
    for policy, factor, scaling, wrap in ROWS:
        runs = [train(policy, factor, wrap, seed) for seed in seeds]
        accuracies = [accuracy for accuracy, _ in runs]
        deviation = statistics.stdev(accuracies) if len(runs) > 1 else 0.0
        print(
            f"| 2^{int(np.log2(factor))} | {policy} | {scaling} | {statistics.fmean(accuracies):.4f} | "
            f"{deviation:.4f} | 2^{int(np.log2(runs[-1][1]))} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
