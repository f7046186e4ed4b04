"""An SSD-style one-stage detector: ResNet-50 with a feature pyramid and shared heads."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from benchmarks.models.vision import resnet50_stages
from benchmarks.models.workload import Benchmark

RARE = -4.6  #: bias of the classes, by which foreground begins at a probability of .01


@dataclasses.dataclass(frozen=True)
class DetectorSize:
    """The figures of the detector; ``head`` is the channel count of pyramid and heads."""

    pixels: int
    classes: int
    width: float
    head: int
    anchors: int
    batch: int
    batches: tuple[int, ...]


def pyramid(stages: list[Any], channels: int) -> list[Any]:
    """Builds levels P3 to P7 of a feature pyramid over the last three stages of a backbone.

    Source: Lin et al. 2017.
    """
    from keras import layers

    laterals = []
    for stage in stages[1:]:
        laterals.append(layers.Conv2D(channels, 1)(stage))
    # From the coarsest stage down, each is added to the finer one.
    x = laterals.pop()
    merged = [x]
    while laterals:
        larger = layers.UpSampling2D(2)(x)
        x = layers.Add()([laterals.pop(), larger])
        merged.insert(0, x)
    levels = []
    for level in merged:
        levels.append(layers.Conv2D(channels, 3, padding="same")(level))
    sixth = layers.Conv2D(channels, 3, 2, padding="same")(levels[-1])
    seventh = layers.Conv2D(channels, 3, 2, padding="same")(layers.ReLU()(sixth))
    return [*levels, sixth, seventh]


def scenes(figures: DetectorSize, examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images with one bright square each, and for every anchor its class and its offset from the
    square's centre.

    Returns:
        float32 images of shape (examples, pixels, pixels, 3), and float32 targets of shape
        (examples, anchors, 5): the class (0 is background), and four box offsets that count only
        where the class is not 0.
    """
    rng = np.random.default_rng(seed)
    pixels = figures.pixels
    images = rng.standard_normal((examples, pixels, pixels, 3), dtype=np.float32) * 0.3
    centre = rng.uniform(0.2, 0.8, (examples, 2))
    half = rng.uniform(0.08, 0.2, examples)
    label = rng.integers(1, figures.classes, examples)
    grid = _cells(pixels)
    for index in range(examples):
        rows = np.abs(grid - centre[index, 0]) < half[index]
        columns = np.abs(grid - centre[index, 1]) < half[index]
        square = np.outer(rows, columns).astype(np.float32)
        images[index, :, :, label[index] % 3] += 2.0 * square
    targets = []
    for level in range(3, 8):
        side = -(-pixels // 2**level)
        target = _targets(side, centre, half, label)
        targets.append(np.repeat(target, figures.anchors, axis=1))
    return images, np.concatenate(targets, 1).astype(np.float32)


def _targets(side: int, centre: np.ndarray, half: np.ndarray, label: np.ndarray) -> np.ndarray:
    """The targets of the places of one level, of shape (examples, side * side, 5)."""
    cells = _cells(side)
    rows, columns = np.meshgrid(cells, cells, indexing="ij")
    place = np.stack([rows, columns], -1).reshape(1, -1, 2)
    offset = centre[:, None] - place
    half = half[:, None, None]
    hit = (np.abs(offset) < half).all(-1)
    kind = hit * label[:, None]
    size = np.broadcast_to(np.log(half), (*hit.shape, 2))
    return np.concatenate([kind[..., None], offset * 4, size], -1)


def _cells(count: int) -> np.ndarray:
    """The middles of so many cells between 0 and 1."""
    return (np.arange(count) + 0.5) / count


def detection_loss(target: Any, prediction: Any) -> Any:
    """Focal loss of the classes (Lin et al. 2017, gamma 2, alpha 0.25) plus a Huber loss of the
    boxes that are there.

    Args:
        target: shape (batch, anchors, 5), see :func:`scenes`.
        prediction: shape (batch, anchors, classes - 1 + 4): logits, then box offsets.

    Returns:
        A value per example, shape (batch,).
    """
    from keras import ops

    prediction = ops.cast(prediction, "float32")
    logits = prediction[..., :-4]
    boxes = prediction[..., -4:]
    foreground = ops.cast(target[..., 0] > 0, "float32")
    wanted = ops.one_hot(ops.cast(target[..., 0], "int32") - 1, logits.shape[-1])
    softplus = ops.log1p(ops.exp(-ops.abs(logits)))
    cross_entropy = ops.relu(logits) - logits * wanted + softplus
    probability = ops.sigmoid(logits)
    right = wanted * probability + (1 - wanted) * (1 - probability)
    weight = wanted * 0.25 + (1 - wanted) * 0.75
    focal = ops.sum(weight * (1 - right) ** 2 * cross_entropy, axis=(1, 2))
    error = ops.abs(boxes - target[..., 1:])
    huber = ops.where(error < 1.0, 0.5 * error**2, error - 0.5)
    distance = ops.sum(ops.sum(huber, -1) * foreground, axis=1)
    count = ops.sum(foreground, axis=1)
    return (focal + distance) / ops.maximum(count, 1.0)


def detector(name: str, figures: DetectorSize) -> Any:
    import keras
    from keras import layers

    image = keras.Input((figures.pixels, figures.pixels, 3))
    stages = resnet50_stages(image, figures.width)
    levels = pyramid(stages, figures.head)

    def head(width: int, bias: float) -> Any:
        """The rows of all levels; the weights are shared over levels, the normalization is not."""
        convs = []
        for _ in range(4):
            convs.append(layers.Conv2D(figures.head, 3, padding="same", use_bias=False))
        first = keras.initializers.Constant(bias)
        last = layers.Conv2D(figures.anchors * width, 3, padding="same", bias_initializer=first)
        rows = []
        for level in levels:
            x = level
            for conv in convs:
                x = conv(x)
                x = layers.BatchNormalization(momentum=0.9)(x)
                x = layers.ReLU()(x)
            x = last(x)
            rows.append(layers.Reshape((-1, width))(x))
        return layers.Concatenate(axis=1)(rows)

    classes = head(figures.classes - 1, RARE)
    boxes = head(4, 0.0)
    return keras.Model(image, layers.Concatenate(axis=-1)([classes, boxes]), name=name)


BENCHMARKS = (
    # The shape of TensorFlow's ssd_resnet50_v1_fpn_640, with six anchors a place.
    Benchmark(
        "ssd",
        "SSD ResNet-50 FPN",
        detector,
        scenes,
        {
            "tiny": DetectorSize(64, 4, 0.125, 16, 2, 2, (2,)),
            "small": DetectorSize(128, 10, 0.5, 64, 6, 2, (2, 4)),
        },
        loss=lambda keras: detection_loss,
    ),
)
