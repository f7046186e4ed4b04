"""An SSD-style one-stage detector: ResNet-50 with a feature pyramid and shared heads."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from benchmarks.models.vision import resnet50_stages
from benchmarks.models.workload import Benchmark, Workload


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

    @property
    def sides(self) -> tuple[int, ...]:
        """The side of each pyramid level, P3 to P7."""
        return tuple(-(-self.pixels // 2**level) for level in range(3, 8))


def pyramid(stages: list[Any], channels: int) -> list[Any]:
    """Levels P3 to P7 of a feature pyramid (Lin et al.

    2017) over the last three stages of a backbone.
    """
    from keras import layers

    laterals = [layers.Conv2D(channels, 1)(stage) for stage in stages[1:]]
    levels = [laterals[-1]]
    for lateral in reversed(laterals[:-1]):
        levels.insert(0, layers.Add()([lateral, layers.UpSampling2D(2)(levels[0])]))
    levels = [layers.Conv2D(channels, 3, padding="same")(level) for level in levels]
    levels.append(layers.Conv2D(channels, 3, 2, padding="same")(levels[-1]))
    levels.append(layers.Conv2D(channels, 3, 2, padding="same")(layers.ReLU()(levels[-1])))
    return levels


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
    grid = (np.arange(pixels) + 0.5) / pixels
    for index in range(examples):
        inside = [np.abs(grid - centre[index, axis]) < half[index] for axis in (0, 1)]
        images[index, :, :, label[index] % 3] += 2.0 * np.outer(*inside).astype(np.float32)
    targets = []
    for side in figures.sides:
        cells = (np.arange(side) + 0.5) / side
        place = np.stack(np.meshgrid(cells, cells, indexing="ij"), -1).reshape(1, -1, 2)
        offset = centre[:, None] - place
        hit = (np.abs(offset) < half[:, None, None]).all(-1)
        size = np.broadcast_to(np.log(half)[:, None, None], (*hit.shape, 2))
        target = np.concatenate([(hit * label[:, None])[..., None], offset * 4, size], -1)
        targets.append(np.repeat(target, figures.anchors, axis=1))
    return images, np.concatenate(targets, 1).astype(np.float32)


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
    cross_entropy = ops.relu(logits) - logits * wanted + ops.log1p(ops.exp(-ops.abs(logits)))
    probability = ops.sigmoid(logits)
    right = wanted * probability + (1 - wanted) * (1 - probability)
    weight = wanted * 0.25 + (1 - wanted) * 0.75
    focal = ops.sum(weight * (1 - right) ** 2 * cross_entropy, axis=(1, 2))
    error = ops.abs(boxes - target[..., 1:])
    huber = ops.where(error < 1.0, 0.5 * error**2, error - 0.5)
    distance = ops.sum(ops.sum(huber, -1) * foreground, axis=1)
    return (focal + distance) / ops.maximum(ops.sum(foreground, axis=1), 1.0)


def detector(name: str, size: str, figures: DetectorSize) -> Workload:
    def model() -> Any:
        import keras
        from keras import layers

        image = keras.Input((figures.pixels, figures.pixels, 3))
        levels = pyramid(resnet50_stages(image, figures.width), figures.head)
        outputs = []
        for width, bias in (
            (figures.classes - 1, -4.6),
            (4, 0.0),
        ):  # rare foreground: logits begin at p = 0.01
            convs = [
                layers.Conv2D(figures.head, 3, padding="same", use_bias=False) for _ in range(4)
            ]
            last = layers.Conv2D(
                figures.anchors * width,
                3,
                padding="same",
                bias_initializer=keras.initializers.Constant(bias),
            )
            rows = []
            for level in levels:
                x = level
                for conv in convs:  # the weights are shared over levels, the normalisation is not
                    x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(conv(x)))
                rows.append(layers.Reshape((-1, width))(last(x)))
            outputs.append(layers.Concatenate(axis=1)(rows))
        return keras.Model(image, layers.Concatenate(axis=-1)(outputs), name=name)

    return Workload(
        name=name,
        size=size,
        model=model,
        loss=detection_loss,
        data=lambda examples, seed: scenes(figures, examples, seed),
        batch=figures.batch,
        batches=figures.batches,
    )


BENCHMARKS = (
    Benchmark(
        "ssd",
        "SSD ResNet-50 FPN",
        "One-stage detection; the shape of TensorFlow's ssd_resnet50_v1_fpn_640, with six anchors "
        "a place.",
        detector,
        {
            "tiny": DetectorSize(64, 4, 0.125, 16, 2, 2, (2,)),
            "small": DetectorSize(128, 10, 0.5, 64, 6, 2, (2, 4)),
            "real": DetectorSize(640, 91, 1.0, 256, 6, 8, (8, 16)),
        },
    ),
)
