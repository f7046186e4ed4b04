"""Finds shapes in noisy images: CenterNet.

Zhou et al., Objects as Points, 2019 (arXiv:1904.07850): a heat map of centers by the
penalty-reduced focal loss, and size and offset at each center. The boxes are what is left of the
map's local maxima.
"""

import argparse
import json

import keras
import numpy as np
from keras import layers, ops

SIZE = 64
STRIDE = 4
CLASSES = 3
MOST = 4
GRID = SIZE // STRIDE


def make_images(count, rng):
    """Discs, squares and triangles of any color on noise; boxes are (image, class, x, y, width,
    height) in pixels.
    """
    ys, xs = np.mgrid[:SIZE, :SIZE]
    images = rng.normal(0, 0.3, (count, SIZE, SIZE, 3)).astype("float32")
    boxes = []
    for n in range(count):
        for _ in range(rng.integers(1, MOST + 1)):
            kind = rng.integers(CLASSES)
            w, h = rng.uniform(9, 24, 2)
            x = rng.uniform(w / 2, SIZE - w / 2)
            y = rng.uniform(h / 2, SIZE - h / 2)
            # In the box, from -1 to 1.
            u = (xs - x) / (w / 2)
            v = (ys - y) / (h / 2)
            if kind == 0:
                shape = u**2 + v**2 < 1
            elif kind == 1:
                shape = np.maximum(abs(u), abs(v)) < 1
            else:
                shape = (abs(v) < 1) & (abs(u) < (v + 1) / 2)
            color = rng.uniform(-1.0, 1.0, 3)
            images[n][shape] += color + rng.choice([-0.5, 0.5])
            boxes.append((n, kind, x, y, w, h))
    return images, np.array(boxes)


def make_targets(count, boxes):
    """The heat map, and at centers: width and height in cells, offset within the cell, and 1."""
    heat = np.zeros((count, GRID, GRID, CLASSES), "float32")
    points = np.zeros((count, GRID, GRID, 5), "float32")
    ys, xs = np.mgrid[:GRID, :GRID]
    for number, kind, *box in boxes:
        x, y, w, h = np.array(box) / STRIDE
        column = int(x)
        row = int(y)
        spread = max(min(w, h) / 6, 0.4)
        apart = (xs - column) ** 2 + (ys - row) ** 2
        bump = np.exp(-apart / (2 * spread**2))
        image = heat[int(number), ..., int(kind)]
        np.maximum(image, bump, out=image)
        points[int(number), row, column] = (w, h, x - column, y - row, 1)
    return {"heat": heat, "points": points}


def convolve(x, filters, strides=1):
    x = layers.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9)(x)


def residual(x, filters, strides=1):
    kept = x
    if strides > 1 or x.shape[-1] != filters:
        kept = layers.Conv2D(filters, 1, strides=strides)(x)
    x = convolve(x, filters, strides)
    x = layers.ReLU()(x)
    x = convolve(x, filters)
    x = layers.Add()([x, kept])
    return layers.ReLU()(x)


class CenterNet(keras.Model):
    """A functional model with its own loss."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        heat = y["heat"]
        points = y["points"]
        # The classes.
        p = ops.clip(y_pred["heat"], 1e-4, 1 - 1e-4)
        is_center = ops.cast(heat == 1, "float32")
        hit = is_center * (1 - p) ** 2 * ops.log(p)
        weight = (1 - is_center) * (1 - heat) ** 4
        miss = weight * p**2 * ops.log(1 - p)
        # Sizes and offsets, at centers alone.
        count = ops.maximum(ops.sum(points[..., 4]), 1.0)
        error = ops.abs(y_pred["points"] - points[..., :4])
        apart = ops.sum(points[..., 4:] * error, axis=(0, 1, 2))
        weights = np.array([0.1, 0.1, 1, 1], "float32")
        of_classes = -ops.sum(hit) - ops.sum(miss)
        return (of_classes + ops.sum(apart * weights)) / count


def new_model():
    image = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(24, 3, strides=2, padding="same", activation="relu")(image)
    fine = residual(x, 48, 2)
    coarse = residual(fine, 96, 2)
    coarse = residual(coarse, 96)
    x = layers.Conv2D(48, 1)(coarse)
    x = layers.UpSampling2D(2)(x)
    x = layers.Add()([fine, x])
    x = residual(x, 48)
    rare = keras.initializers.Constant(-2.19)  # a tenth, as the paper's code has it
    heat = layers.Conv2D(CLASSES, 1, activation="sigmoid", bias_initializer=rare, name="heat")(x)
    points = layers.Conv2D(4, 1, name="points")
    x = layers.Conv2D(48, 3, padding="same", activation="relu")(x)
    return CenterNet(image, {"heat": heat, "points": points(x)})


def decode(heat, points, n):
    """The best 20 local maxima of one image: (score, image, class, x, y, width, height)."""
    padded = np.pad(heat, ((1, 1), (1, 1), (0, 0)))
    around = heat
    for i in range(3):
        for j in range(3):
            around = np.maximum(around, padded[i : i + GRID, j : j + GRID])
    scores = np.where(heat == around, heat, 0)
    found = []
    for place in np.argsort(scores, axis=None)[::-1][:20]:
        row, column, kind = np.unravel_index(place, scores.shape)
        w, h, dx, dy = points[row, column]
        box = STRIDE * np.array([column + dx, row + dy, w, h])
        found.append((float(scores[row, column, kind]), n, kind, *box))
    return found


def overlap(box, others):
    """The area that a box shares with each of others, by the area that either covers."""
    center = box[:2]
    size = box[2:]
    centers = others[:, :2]
    sizes = others[:, 2:]
    low = np.maximum(center - size / 2, centers - sizes / 2)
    high = np.minimum(center + size / 2, centers + sizes / 2)
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    covered = np.prod(size) + np.prod(sizes, axis=1) - shared
    return shared / np.maximum(covered, 1e-6)


def average_precision(found, boxes):
    """At an overlap of a half, the mean over classes of the area under precision by recall."""
    scores = []
    for kind in range(CLASSES):
        truth = boxes[boxes[:, 1] == kind]
        taken = set()
        hits = []
        for _, image, its_kind, *box in sorted(found, reverse=True):
            if its_kind != kind:
                continue
            is_hit = False
            own = np.flatnonzero(truth[:, 0] == image)
            if len(own):
                overlaps = overlap(np.array(box), truth[own, 2:])
                best = int(overlaps.argmax())
                is_hit = overlaps[best] >= 0.5 and own[best] not in taken
                if is_hit:
                    taken.add(own[best])
            hits.append(is_hit)
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        scores.append(np.sum(precision * np.array(hits)) / len(truth))
    return float(np.mean(scores))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    rng = np.random.default_rng(0)
    images, boxes = make_images(min(args.batch * args.steps, 2400), rng)
    held_out, truth = make_images(300, rng)

    model = new_model()
    schedule = keras.optimizers.schedules.CosineDecay(2e-3, args.steps)
    model.compile(keras.optimizers.Adam(schedule))
    epochs = max(args.batch * args.steps // len(images), 1)
    targets = make_targets(len(images), boxes)
    model.fit(images, targets, batch_size=args.batch, epochs=epochs, verbose=2)
    answer = model.predict(held_out, batch_size=50, verbose=0)
    found = []
    for n in range(len(held_out)):
        found += decode(answer["heat"][n], answer["points"][n], n)
    print(json.dumps({"metric": "AP50", "value": average_precision(found, truth), "chance": 0.0}))


if __name__ == "__main__":
    main()
