"""How often a comparison calls an output of a healthy model wrong.

    python -m benchmarks.false_alarms --models 200

Small models with random weights and inputs, in which nothing goes wrong. Each is compared over eight batches, in
bfloat16 and float16 by turns. An output is judged by the batch in which it is furthest off, and where that is too far,
by the ideal program's largest error in any batch; what both say is counted.
"""

from __future__ import annotations

import argparse
import os
import sys
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import amp_tf
from amp_tf.tools.comparing.verdicts import LIMIT
from amp_tf.tools.comparing.work import Work

BATCHES, EXAMPLES = 8, 16


def model(seed: int) -> keras.Model:
    """A small network: dense, convolutional or with attention, by the seed."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    width = (16, 32, 64)[seed // 3 % 3]
    activation = ("relu", "tanh", "gelu", "silu")[seed // 9 % 4]
    inputs = keras.Input((8, 8, 4))
    x = inputs
    if seed % 3 == 0:
        x = layers.Flatten()(x)
        x = layers.Dense(width, activation)(x)
    elif seed % 3 == 1:
        x = layers.Conv2D(width, 3, activation=activation)(x)
        x = layers.GlobalAveragePooling2D()(layers.BatchNormalization()(x))
    else:
        x = layers.Dense(width)(layers.Reshape((64, 4))(x))
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, width // 2)(x, x))
        x = layers.GlobalAveragePooling1D()(layers.Dense(width, activation)(x))
    found = keras.Model(inputs, layers.Dense(1)(layers.Dense(width, activation)(x)))
    found.compile("adam", "mse")
    return found


def compared(seed: int) -> tuple[list[float], bool]:
    """The ratios of one model's outputs, and whether one of them was too far off by the batch that is judged first."""
    dice = np.random.default_rng(seed)
    rows = dice.normal(size=(BATCHES, EXAMPLES, 8, 8, 4)).astype(np.float32)
    labels = dice.normal(size=(BATCHES, EXAMPLES, 1)).astype(np.float32)
    config = amp_tf.AmpConfig(precision=("bfloat16", "float16")[seed % 2], target="cpu")
    keras.backend.clear_session()
    with mock.patch.object(Work, "in_any_batch", autospec=True, side_effect=Work.in_any_batch) as asked:
        found = amp_tf.compare(model(seed), list(zip(rows, labels, strict=True)), config)
    return [output.ratio for output in found.outputs], asked.called


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    ratios: list[float] = []
    by_one_batch = 0
    for seed in range(options.first, options.first + options.models):
        found, was_wrong = compared(seed)
        ratios += found
        by_one_batch += was_wrong
        if was_wrong or max(found) > LIMIT:
            print(f"seed {seed}: too far off by one batch; by all of them the largest ratio is {max(found):.2f}")
    wrong = sum(ratio > LIMIT for ratio in ratios)
    print(f"{options.models} models, {len(ratios)} outputs; by one batch {by_one_batch} models are called wrong,")
    print(f"in the end {wrong} outputs; the largest ratio is {max(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
