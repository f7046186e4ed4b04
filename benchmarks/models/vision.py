"""Image models: ResNet-50 v1.5, the three-layer Imagenette convnet, MobileNetV2, U-Net."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from benchmarks.models.workload import Benchmark, Workload


@dataclasses.dataclass(frozen=True)
class ImageSize:
    """The figures of an image model: ``pixels`` is the side of the square input, ``width`` scales
    the channels.
    """

    pixels: int
    classes: int
    width: float
    batch: int
    batches: tuple[int, ...]


def striped_images(
    examples: int, pixels: int, classes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images whose class sets the frequency and the direction of their stripes.

    Returns:
        float32 images of shape (examples, pixels, pixels, 3) and int32 labels of shape (examples,).
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, examples)
    grid = np.linspace(0.0, 1.0, pixels, dtype=np.float32)
    angle = (np.pi * labels / classes).astype(np.float32)[:, None, None]
    frequency = (2.0 + 4.0 * (labels % 5)).astype(np.float32)[:, None, None]
    phase = rng.uniform(0, 2 * np.pi, (examples, 1, 1)).astype(np.float32)
    along = np.cos(angle) * grid[None, :, None] + np.sin(angle) * grid[None, None, :]
    stripes = np.sin(2 * np.pi * frequency * along + phase)[..., None]
    images = np.repeat(stripes, 3, axis=-1)
    images += 0.3 * rng.standard_normal(images.shape, dtype=np.float32)
    return images, labels.astype(np.int32)


def _classifier(
    name: str, size: str, figures: ImageSize, model: Any, learning_rate: float
) -> Workload:
    import keras

    return Workload(
        name=name,
        size=size,
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        data=lambda examples, seed: striped_images(examples, figures.pixels, figures.classes, seed),
        batch=figures.batch,
        batches=figures.batches,
        learning_rate=learning_rate,
    )


def resnet50_stages(image: Any, width: float = 1.0) -> list[Any]:
    """The four stages of ResNet-50 v1.5: in a block that shrinks the image, the 3x3 convolution has
    the stride.

    Args:
        image: a Keras tensor of shape (batch, pixels, pixels, 3).
        width: factor on all channel counts.

    Returns:
        The output of each stage, at 1/4, 1/8, 1/16 and 1/32 of the input's side.
    """
    from keras import layers

    def conv_bn(x: Any, channels: int, kernel: int, strides: int, relu: bool) -> Any:
        x = layers.Conv2D(channels, kernel, strides, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
        return layers.ReLU()(x) if relu else x

    def block(x: Any, channels: int, strides: int, project: bool) -> Any:
        shortcut = conv_bn(x, 4 * channels, 1, strides, relu=False) if project else x
        x = conv_bn(x, channels, 1, 1, relu=True)
        x = conv_bn(x, channels, 3, strides, relu=True)
        x = conv_bn(x, 4 * channels, 1, 1, relu=False)
        return layers.ReLU()(layers.Add()([x, shortcut]))

    x = conv_bn(image, max(8, int(64 * width)), 7, 2, relu=True)
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    outputs = []
    for stage, blocks in enumerate((3, 4, 6, 3)):
        channels = max(8, int(64 * width) * 2**stage)
        for index in range(blocks):
            x = block(x, channels, 2 if stage and not index else 1, project=index == 0)
        outputs.append(x)
    return outputs


def resnet50(name: str, size: str, figures: ImageSize) -> Workload:
    def model() -> Any:
        import keras

        image = keras.Input((figures.pixels, figures.pixels, 3))
        x = keras.layers.GlobalAveragePooling2D()(resnet50_stages(image, figures.width)[-1])
        return keras.Model(image, keras.layers.Dense(figures.classes)(x), name=name)

    return _classifier(name, size, figures, model, learning_rate=1e-3)


def convnet(name: str, size: str, figures: ImageSize) -> Workload:
    def model() -> Any:
        import keras

        x = image = keras.Input((figures.pixels, figures.pixels, 3))
        for channels in (64, 128, 256):
            x = keras.layers.Conv2D(
                int(channels * figures.width), 3, padding="same", activation="relu"
            )(x)
            x = keras.layers.MaxPooling2D()(x)
        x = keras.layers.GlobalAveragePooling2D()(x)
        return keras.Model(image, keras.layers.Dense(figures.classes)(x), name=name)

    return _classifier(name, size, figures, model, learning_rate=1e-3)


def mobilenetv2(name: str, size: str, figures: ImageSize) -> Workload:
    def model() -> Any:
        import keras

        return keras.applications.MobileNetV2(
            (figures.pixels, figures.pixels, 3),
            alpha=figures.width,
            weights=None,
            classes=figures.classes,
            classifier_activation=None,
        )

    return _classifier(name, size, figures, model, learning_rate=1e-3)


def blobs(examples: int, pixels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images of discs, and which pixels lie inside one.

    Returns:
        float32 images of shape (examples, pixels, pixels, 3) and int32 masks of shape (examples,
        pixels, pixels).
    """
    rng = np.random.default_rng(seed)
    grid = np.linspace(0.0, 1.0, pixels, dtype=np.float32)
    masks = np.zeros((examples, pixels, pixels), bool)
    for _ in range(3):
        row, column = rng.uniform(0, 1, (2, examples, 1, 1))
        radius = rng.uniform(0.08, 0.25, (examples, 1, 1))
        masks |= (grid[None, :, None] - row) ** 2 + (grid[None, None, :] - column) ** 2 < radius**2
    images = rng.standard_normal((examples, pixels, pixels, 3), dtype=np.float32) * 0.5
    images += masks[..., None].astype(np.float32)
    return images, masks.astype(np.int32)


def unet(name: str, size: str, figures: ImageSize) -> Workload:
    import keras
    from keras import layers

    def twice(x: Any, channels: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
        return x

    def model() -> Any:
        image = keras.Input((figures.pixels, figures.pixels, 3))
        channels = [int(64 * figures.width) * 2**level for level in range(5)]
        x = image
        skips = []
        for level_channels in channels[:-1]:
            x = twice(x, level_channels)
            skips.append(x)
            x = layers.MaxPooling2D()(x)
        x = twice(x, channels[-1])
        for level_channels, skip in zip(reversed(channels[:-1]), reversed(skips), strict=True):
            x = layers.Conv2DTranspose(level_channels, 2, 2)(x)
            x = twice(layers.Concatenate()([x, skip]), level_channels)
        return keras.Model(image, layers.Conv2D(figures.classes, 1)(x), name=name)

    return Workload(
        name=name,
        size=size,
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        data=lambda examples, seed: blobs(examples, figures.pixels, seed),
        batch=figures.batch,
        batches=figures.batches,
    )


BENCHMARKS = (
    Benchmark(
        "resnet50",
        "ResNet-50 v1.5",
        "Image classification; He et al. 2015 with the stride on the 3x3 convolution, as NVIDIA's "
        "v1.5 has it.",
        resnet50,
        {
            "tiny": ImageSize(64, 5, 0.125, 8, (8,)),
            "small": ImageSize(96, 10, 1.0, 8, (4, 8, 16)),
            "real": ImageSize(224, 1000, 1.0, 128, (128, 256)),
        },
    ),
    Benchmark(
        "convnet",
        "Imagenette convnet",
        "Image classification with three convolutions, as in NVIDIA's tutorial on automatic mixed "
        "precision.",
        convnet,
        {
            "tiny": ImageSize(16, 5, 0.25, 8, (8,)),
            "small": ImageSize(128, 10, 1.0, 16, (8, 16, 32, 64)),
            "real": ImageSize(256, 10, 1.0, 128, (32, 64, 128, 256, 512)),
        },
    ),
    Benchmark(
        "mobilenetv2",
        "MobileNetV2",
        "Image classification with depthwise convolutions; Sandler et al. 2018, Keras' own model.",
        mobilenetv2,
        {
            "tiny": ImageSize(64, 5, 0.35, 8, (8,)),
            "small": ImageSize(96, 10, 1.0, 16, (8, 16, 32)),
            "real": ImageSize(224, 1000, 1.0, 128, (64, 128, 256)),
        },
    ),
    Benchmark(
        "unet",
        "U-Net",
        "Segmentation with an encoder, a decoder and skips; Ronneberger et al. 2015, same-padded.",
        unet,
        {
            "tiny": ImageSize(32, 2, 0.125, 2, (2,)),
            "small": ImageSize(64, 2, 0.5, 8, (4, 8, 16)),
            "real": ImageSize(512, 2, 1.0, 8, (4, 8, 16)),
        },
    ),
)
