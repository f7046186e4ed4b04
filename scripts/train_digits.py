#!/usr/bin/env python3
"""Train a small convolutional network on scikit-learn's handwritten digits: a plain Keras script.

Nothing here knows of mixed precision. That is the point: run it as it is, then run it again with
``TF_ENABLE_AUTO_MIXED_PRECISION=1`` in the environment, and compare. ``scripts/demo`` does exactly
that.

The 1,797 images of 8 × 8 pixels come with scikit-learn. They are enlarged to 64 × 64, the size of
small photographs, so that convolutions are what the time goes into, as they are in real image
models.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class StepTimes(keras.callbacks.Callback):
    """The time of every training step, in seconds, one list per epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[list[float]] = []
        self._begin = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.epochs.append([])

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.epochs[-1].append(time.perf_counter() - self._begin)

    def median_ms(self) -> float:
        """The median of all steps after the first epoch, which traces and warms up."""
        later = self.epochs[1:] or self.epochs
        return 1e3 * statistics.median(itertools.chain(*later))


def load_images(size: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The training and the validation half: images float32 [n, size, size, 1] in 0..1, labels int
    [n].
    """
    digits = load_digits()
    images = digits.images.repeat(size // 8, axis=1).repeat(size // 8, axis=2)
    images = (images / 16.0).astype("float32")[..., np.newaxis]
    x_train, x_val, y_train, y_val = train_test_split(
        images, digits.target, test_size=0.25, stratify=digits.target, random_state=0
    )
    return (x_train, y_train), (x_val, y_val)


def build_model(size: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((size, size, 1)),
            keras.layers.Conv2D(32, 5, strides=2, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(128, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument(
        "--size",
        type=int,
        default=64,
        help="width and height of the enlarged images: a multiple of 8",
    )
    parser.add_argument("--json", metavar="FILE", help="also write accuracy and step time there")
    arguments = parser.parse_args()

    keras.utils.set_random_seed(1)
    train, validation = load_images(arguments.size)
    steps = arguments.epochs * math.ceil(len(train[0]) / arguments.batch)
    model = build_model(arguments.size)
    schedule = keras.optimizers.schedules.CosineDecay(2e-3, steps)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    times = StepTimes()
    history = model.fit(
        *train,
        batch_size=arguments.batch,
        epochs=arguments.epochs,
        validation_data=validation,
        callbacks=[times],
        verbose=2,
    )
    accuracy = history.history["val_accuracy"][-1]
    ms = times.median_ms()
    print(f"validation accuracy {accuracy:.4f}, {ms:.1f} ms per step")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"validation_accuracy": accuracy, "ms_per_step": ms}, file)


if __name__ == "__main__":
    main()
