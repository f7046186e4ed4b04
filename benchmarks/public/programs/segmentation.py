"""Finds an organ and the lesions in it in made CT volumes: a 3-D U-Net.

Cicek et al., 3D U-Net: Learning Dense Volumetric Segmentation from Sparse Annotation, MICCAI 2016
(arXiv:1606.06650), with the sum of cross-entropy and soft Dice that later work trains it with
(Milletari et al., V-Net, arXiv:1606.04797).
"""

import argparse
import json

import keras
import numpy as np
from keras import layers, ops

SIZE = 32
CLASSES = 3


def ellipsoid(grid, center, radii):
    distance = 0
    for axis, middle, radius in zip(grid, center, radii, strict=True):
        distance = distance + ((axis - middle) / radius) ** 2
    return distance < 1


def make_scans(count, rng):
    """Hounsfield-like values: a soft organ among tissue, lesions a little darker, vessels that look
    like lesions.
    """
    grid = np.meshgrid(*[np.arange(SIZE)] * 3, indexing="ij")
    scans = np.empty((count, SIZE, SIZE, SIZE, 1), "float32")
    labels = np.empty((count, SIZE, SIZE, SIZE), "int32")
    for n in range(count):
        center = rng.uniform(12, 20, 3)
        radii = rng.uniform(7, 12, 3)
        organ = ellipsoid(grid, center, radii)
        label = organ.astype("int32")
        values = np.where(organ, 60.0, 0.0)
        for _ in range(rng.integers(1, 4)):
            place = center + rng.uniform(-0.6, 0.6, 3) * radii
            lesion = ellipsoid(grid, place, rng.uniform(2, 4, 3)) & organ
            label[lesion] = 2
            values[lesion] = 25.0
        for _ in range(3):  # outside of the organ they do not count
            value = rng.choice([25.0, 60.0])
            place = rng.uniform(0, SIZE, 3)
            vessel = ellipsoid(grid, place, rng.uniform(2, 5, 3)) & ~organ
            values[vessel] = value
        rows = np.sin(grid[0] / rng.uniform(5, 15))
        columns = np.cos(grid[1] / rng.uniform(5, 15))
        field = 15.0 * rows * columns
        scans[n, ..., 0] = values + field + rng.normal(0, 25, values.shape)
        labels[n] = label
    return (scans - 20.0) / 50.0, labels


def convolve(x, filters):
    for _ in range(2):
        x = layers.Conv3D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.9)(x)
        x = layers.ReLU()(x)
    return x


def new_model(filters=12):
    inputs = x = keras.Input((SIZE, SIZE, SIZE, 1))
    skips = []
    for level in range(2):
        x = convolve(x, filters * 2**level)
        skips.append(x)
        x = layers.MaxPooling3D(2)(x)
    x = convolve(x, filters * 4)
    for level in (1, 0):
        channels = filters * 2**level
        x = layers.Conv3DTranspose(channels, 2, strides=2)(x)
        x = layers.Concatenate()([x, skips[level]])
        x = convolve(x, channels)
    return keras.Model(inputs, layers.Conv3D(CLASSES, 1, activation="softmax")(x))


def loss(labels, probabilities):
    """Cross-entropy plus one minus the soft Dice coefficient of organ and lesions."""
    entropy = ops.mean(keras.losses.sparse_categorical_crossentropy(labels, probabilities))
    truth = ops.one_hot(labels, CLASSES, dtype=probabilities.dtype)
    shared = ops.sum(truth * probabilities, axis=(0, 1, 2, 3))
    total = ops.sum(truth, axis=(0, 1, 2, 3)) + ops.sum(probabilities, axis=(0, 1, 2, 3))
    dice = (2 * shared + 1e-5) / (total + 1e-5)
    return entropy + 1 - ops.mean(dice[1:])


def mean_dice(labels, found):
    """Dice of organ (with its lesions) and of lesions, over all voxels."""
    scores = []
    for least in (1, 2):
        truth = labels >= least
        guess = found >= least
        shared = (truth & guess).sum()
        scores.append(2 * shared / max(truth.sum() + guess.sum(), 1))
    return float(np.mean(scores))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    rng = np.random.default_rng(0)
    scans, labels = make_scans(min(args.batch * args.steps, 100), rng)
    held_out, truth = make_scans(32, rng)

    model = new_model()
    schedule = keras.optimizers.schedules.CosineDecay(3e-3, args.steps)
    model.compile(keras.optimizers.Adam(schedule), loss)
    epochs = max(args.batch * args.steps // len(scans), 1)
    model.fit(scans, labels, batch_size=args.batch, epochs=epochs, verbose=2)
    found = model.predict(held_out, batch_size=4, verbose=0).argmax(-1)
    dice = mean_dice(truth, found)
    everything = mean_dice(truth, np.full_like(truth, 2))
    print(json.dumps({"metric": "Dice", "value": dice, "chance": everything}))


if __name__ == "__main__":
    main()
