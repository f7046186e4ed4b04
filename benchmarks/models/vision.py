"""Image models: ResNet-50 v1.5, the three-layer Imagenette convnet, MobileNetV2, U-Net."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from benchmarks.models.workload import Benchmark


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

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape of an input without the batch."""
        return (self.pixels, self.pixels, 3)


def striped_images(figures: ImageSize, examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images whose class sets the frequency and the direction of their stripes.

    Returns:
        float32 images of shape (examples, pixels, pixels, 3) and int32 labels of shape (examples,).
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, figures.classes, examples)
    rows, columns = _grid(figures.pixels)
    # One angle, frequency and phase an image.
    one_each = (examples, 1, 1)
    angle = (np.pi * labels / figures.classes).astype(np.float32).reshape(one_each)
    frequency = (2.0 + 4.0 * (labels % 5)).astype(np.float32).reshape(one_each)
    phase = rng.uniform(0, 2 * np.pi, one_each).astype(np.float32)
    along = np.cos(angle) * rows + np.sin(angle) * columns
    stripes = np.sin(2 * np.pi * frequency * along + phase)
    images = np.repeat(stripes[..., None], 3, axis=-1)
    images += 0.3 * rng.standard_normal(images.shape, dtype=np.float32)
    return images, labels.astype(np.int32)


def _grid(pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """The places of rows and columns from 0 to 1, of shapes (1, pixels, 1) and (1, 1, pixels)."""
    places = np.linspace(0.0, 1.0, pixels, dtype=np.float32)
    return places[None, :, None], places[None, None, :]


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

    def conv_bn(x: Any, channels: int, kernel: int, strides: int) -> Any:
        x = layers.Conv2D(channels, kernel, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    def conv_bn_relu(x: Any, channels: int, kernel: int, strides: int) -> Any:
        x = conv_bn(x, channels, kernel, strides)
        return layers.ReLU()(x)

    def block(x: Any, channels: int, strides: int, project: bool) -> Any:
        shortcut = x
        if project:
            shortcut = conv_bn(x, 4 * channels, 1, strides)
        x = conv_bn_relu(x, channels, 1, 1)
        x = conv_bn_relu(x, channels, 3, strides)
        x = conv_bn(x, 4 * channels, 1, 1)
        x = layers.Add()([x, shortcut])
        return layers.ReLU()(x)

    channels = max(8, int(64 * width))
    x = conv_bn_relu(image, channels, 7, 2)
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    strides = 1
    outputs = []
    for blocks in (3, 4, 6, 3):
        x = block(x, channels, strides, project=True)
        for _ in range(blocks - 1):
            x = block(x, channels, 1, project=False)
        outputs.append(x)
        strides = 2
        channels = 2 * channels
    return outputs


def resnet50(name: str, figures: ImageSize) -> Any:
    import keras

    image = keras.Input(figures.image_shape)
    stages = resnet50_stages(image, figures.width)
    x = keras.layers.GlobalAveragePooling2D()(stages[-1])
    logits = keras.layers.Dense(figures.classes)(x)
    return keras.Model(image, logits, name=name)


def convnet(name: str, figures: ImageSize) -> Any:
    import keras
    from keras import layers

    x = image = keras.Input(figures.image_shape)
    for channels in (64, 128, 256):
        width = int(channels * figures.width)
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    logits = layers.Dense(figures.classes)(x)
    return keras.Model(image, logits, name=name)


def mobilenetv2(name: str, figures: ImageSize) -> Any:
    import keras

    return keras.applications.MobileNetV2(
        figures.image_shape,
        alpha=figures.width,
        weights=None,
        classes=figures.classes,
        classifier_activation=None,
    )


def blobs(figures: ImageSize, examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images of discs, and which pixels lie inside one.

    Returns:
        float32 images of shape (examples, pixels, pixels, 3) and int32 masks of shape (examples,
        pixels, pixels).
    """
    rng = np.random.default_rng(seed)
    pixels = figures.pixels
    rows, columns = _grid(pixels)
    masks = np.zeros((examples, pixels, pixels), bool)
    for _ in range(3):
        row, column = rng.uniform(0, 1, (2, examples, 1, 1))
        radius = rng.uniform(0.08, 0.25, (examples, 1, 1))
        masks |= (rows - row) ** 2 + (columns - column) ** 2 < radius**2
    images = rng.standard_normal((examples, pixels, pixels, 3), dtype=np.float32) * 0.5
    images += masks[..., None].astype(np.float32)
    return images, masks.astype(np.int32)


def unet(name: str, figures: ImageSize) -> Any:
    import keras
    from keras import layers

    def twice(x: Any, channels: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
        return x

    x = image = keras.Input(figures.image_shape)
    channels = int(64 * figures.width)
    skips = []
    for _ in range(4):
        x = twice(x, channels)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
        channels = 2 * channels
    x = twice(x, channels)
    for skip in reversed(skips):
        channels = channels // 2
        x = layers.Conv2DTranspose(channels, 2, 2)(x)
        x = layers.Concatenate()([x, skip])
        x = twice(x, channels)
    logits = layers.Conv2D(figures.classes, 1)(x)
    return keras.Model(image, logits, name=name)


BENCHMARKS = (
    # He et al. 2015 with the stride on the 3x3 convolution, as NVIDIA's v1.5 has it.
    Benchmark(
        "resnet50",
        "ResNet-50 v1.5",
        resnet50,
        striped_images,
        {
            "tiny": ImageSize(64, 5, 0.125, 8, (8,)),
            "small": ImageSize(96, 10, 1.0, 8, (4, 8, 16)),
        },
    ),
    # Three convolutions, as in NVIDIA's tutorial on automatic mixed precision.
    Benchmark(
        "convnet",
        "Imagenette convnet",
        convnet,
        striped_images,
        {
            "tiny": ImageSize(16, 5, 0.25, 8, (8,)),
            "small": ImageSize(128, 10, 1.0, 16, (8, 16, 32, 64)),
        },
    ),
    # Depthwise convolutions; Sandler et al. 2018, Keras' own model.
    Benchmark(
        "mobilenetv2",
        "MobileNetV2",
        mobilenetv2,
        striped_images,
        {
            "tiny": ImageSize(64, 5, 0.35, 8, (8,)),
            "small": ImageSize(96, 10, 1.0, 16, (8, 16, 32)),
        },
    ),
    # Segmentation with an encoder, a decoder and skips; Ronneberger et al. 2015, same-padded.
    Benchmark(
        "unet",
        "U-Net",
        unet,
        blobs,
        {
            "tiny": ImageSize(32, 2, 0.125, 2, (2,)),
            "small": ImageSize(64, 2, 0.5, 8, (4, 8, 16)),
        },
    ),
)
