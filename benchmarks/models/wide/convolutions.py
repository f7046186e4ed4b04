"""Convolutions in all shapes: in one to three dimensions, transposed, grouped, dilated, squeezed,
channels first.
"""

from __future__ import annotations

from typing import Any

from benchmarks.models.wide.registry import Numbers, Values, wide


def _classes(keras: Any, x: Any, count: int = 10) -> Any:
    return keras.layers.Dense(count)(keras.layers.Flatten()(x))


@wide("1-D convolutions", 32, [Values((512, 16))], Numbers(10))
def conv1d(keras: Any, x: Any) -> Any:
    """Classification of a signal: convolutions of 64 to 256 channels, normalized, with pooling."""
    layers = keras.layers
    for channels in (64, 128, 256):
        x = layers.Conv1D(channels, 5, padding="same", use_bias=False)(x)
        x = layers.MaxPooling1D(2)(layers.ReLU()(layers.BatchNormalization()(x)))
    return _classes(keras, x)


@wide("dilated convolutions", 16, [Values((512, 32))], Numbers(64, (512,)))
def wavenet(keras: Any, x: Any) -> Any:
    """Causal convolutions with dilation 1 to 32 and gates, as in WaveNet (van den Oord et al.

    2016).
    """
    layers = keras.layers
    x = layers.Conv1D(64, 1)(x)
    skips = []
    for level in range(6):
        wave = layers.Conv1D(64, 2, padding="causal", dilation_rate=2**level, activation="tanh")(x)
        gate = layers.Conv1D(64, 2, padding="causal", dilation_rate=2**level, activation="sigmoid")(
            x
        )
        y = layers.Multiply()([wave, gate])
        skips.append(layers.Conv1D(128, 1)(y))
        x = layers.Add()([x, layers.Conv1D(64, 1)(y)])
    return layers.Conv1D(64, 1)(layers.ReLU()(layers.Add()(skips)))


@wide("dilated convolutions", 16, [Values((256, 64))], Values((256, 1)))
def temporal_convnet(keras: Any, x: Any) -> Any:
    """Residual blocks of dilated convolutions with layer normalization (Bai et al. 2018)."""
    layers = keras.layers
    x = layers.Conv1D(128, 1)(x)
    for level in range(4):
        y = layers.Conv1D(128, 3, padding="causal", dilation_rate=2**level, activation="relu")(x)
        y = layers.Conv1D(128, 3, padding="causal", dilation_rate=2**level, activation="relu")(y)
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    return layers.Dense(1)(x)


@wide("1-D convolutions", 8, [Values((1024, 2))], Values((1024, 2)))
def wave_unet(keras: Any, x: Any) -> Any:
    """Separation of sounds with an encoder, a decoder and skips (Stoller et al. 2018)."""
    layers = keras.layers
    skips = []
    for channels in (32, 64, 128):
        x = layers.Conv1D(channels, 15, padding="same", activation="leaky_relu")(x)
        skips.append(x)
        x = layers.MaxPooling1D(2)(x)
    x = layers.Conv1D(256, 15, padding="same", activation="leaky_relu")(x)
    for channels in (128, 64, 32):
        x = layers.Concatenate()([layers.UpSampling1D(2)(x), skips.pop()])
        x = layers.Conv1D(channels, 5, padding="same", activation="leaky_relu")(x)
    return layers.Conv1D(2, 1, activation="tanh")(x)


@wide("plain convolutions", 64, [Values((32, 32, 3))], Numbers(10))
def small_convnet(keras: Any, x: Any) -> Any:
    """The convolutional network of tutorials: 32, 64, 64 channels without padding, two dense
    layers.
    """
    layers = keras.layers
    for channels in (32, 64, 64):
        x = layers.MaxPooling2D()(layers.Conv2D(channels, 3, activation="relu")(x))
    return layers.Dense(10)(layers.Dense(64, activation="relu")(layers.Flatten()(x)))


@wide("channels first", 16, [Values((3, 64, 64))], Numbers(10))
def channels_first(keras: Any, x: Any) -> Any:
    """Normalized convolutions in NCHW, for which oneDNN has kernels."""
    layers = keras.layers
    first = {"data_format": "channels_first"}
    for channels in (32, 64, 128):
        x = layers.Conv2D(channels, 3, 2, padding="same", use_bias=False, **first)(x)
        x = layers.ReLU()(layers.BatchNormalization(axis=1)(x))
    return layers.Dense(10)(layers.GlobalAveragePooling2D(**first)(x))


@wide("grouped convolutions", 8, [Values((32, 32, 64))], Numbers(10))
def resnext(keras: Any, x: Any) -> Any:
    """Bottlenecks with convolutions of 8 groups, written as branches, as where grouped kernels lack
    a gradient.
    """
    layers = keras.layers
    for _ in range(3):
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(128, 1, use_bias=False)(x)))
        parts = keras.ops.split(y, 8, axis=-1)
        y = layers.Concatenate()(
            [layers.Conv2D(16, 3, padding="same", use_bias=False)(part) for part in parts]
        )
        y = layers.Conv2D(64, 1, use_bias=False)(layers.ReLU()(layers.BatchNormalization()(y)))
        x = layers.ReLU()(layers.Add()([x, layers.BatchNormalization()(y)]))
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


@wide("transposed convolutions", 8, [Values((4, 4, 256))], Values((64, 64, 3)))
def decoder(keras: Any, x: Any) -> Any:
    """An image from a few features: four transposed convolutions of stride 2."""
    layers = keras.layers
    for channels in (256, 128, 64):
        x = layers.Conv2DTranspose(channels, 4, 2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return layers.Conv2DTranspose(3, 4, 2, padding="same", activation="tanh")(x)


@wide("squeeze-excite", 8, [Values((48, 48, 64))], Numbers(10))
def se_resnet(keras: Any, x: Any) -> Any:
    """Residual blocks of dense convolutions with squeeze-excite (Hu et al. 2017)."""
    layers = keras.layers
    for channels, strides in ((64, 1), (128, 2), (128, 1)):
        y = layers.Conv2D(channels, 3, strides, padding="same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.BatchNormalization()(
            layers.Conv2D(channels, 3, padding="same", use_bias=False)(y)
        )
        gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
        gate = layers.Dense(channels, activation="sigmoid")(
            layers.Dense(channels // 16, activation="relu")(gate)
        )
        y = layers.Multiply()([y, gate])
        x = layers.ReLU()(
            layers.Add()([layers.Conv2D(channels, 1, strides)(x) if strides > 1 else x, y])
        )
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


@wide("squeeze-excite and depthwise", 8, [Values((56, 56, 32))], Numbers(10))
def inverted_bottlenecks(keras: Any, x: Any) -> Any:
    """Inverted bottlenecks with squeeze-excite, swish and depthwise convolutions, with and without
    strides.
    """
    layers = keras.layers
    for channels, kernel, strides in ((32, 3, 1), (48, 5, 2), (48, 5, 1), (96, 3, 2)):
        wide_channels = 4 * x.shape[-1]
        y = layers.Activation("swish")(
            layers.BatchNormalization()(layers.Conv2D(wide_channels, 1, use_bias=False)(x))
        )
        y = layers.DepthwiseConv2D(kernel, strides, padding="same", use_bias=False)(y)
        y = layers.Activation("swish")(layers.BatchNormalization()(y))
        gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
        gate = layers.Conv2D(x.shape[-1] // 4, 1, activation="swish")(gate)
        y = layers.Multiply()([y, layers.Conv2D(wide_channels, 1, activation="sigmoid")(gate)])
        y = layers.BatchNormalization()(layers.Conv2D(channels, 1, use_bias=False)(y))
        x = layers.Add()([x, y]) if x.shape == y.shape else y
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


@wide("3-D convolutions", 4, [Values((16, 32, 32, 3))], Numbers(10))
def video_classifier(keras: Any, x: Any) -> Any:
    """Classification of short videos: convolutions of 3 × 3 × 3 with pooling, as in C3D (Tran et
    al. 2014).
    """
    layers = keras.layers
    for channels in (32, 64, 128):
        x = layers.MaxPooling3D(2)(layers.Conv3D(channels, 3, padding="same", activation="relu")(x))
    return _classes(keras, x)


@wide("3-D convolutions", 2, [Values((16, 32, 32, 1))], Numbers(3, (16, 32, 32)))
def volume_unet(keras: Any, x: Any) -> Any:
    """Segmentation of volumes with an encoder, a decoder and skips (Çiçek et al. 2016)."""
    layers = keras.layers

    def twice(x: Any, channels: int) -> Any:
        for _ in range(2):
            x = layers.ReLU()(
                layers.BatchNormalization()(layers.Conv3D(channels, 3, padding="same")(x))
            )
        return x

    high = twice(x, 16)
    low = twice(layers.MaxPooling3D(2)(high), 32)
    deep = twice(layers.MaxPooling3D(2)(low), 64)
    x = twice(layers.Concatenate()([layers.Conv3DTranspose(32, 2, 2)(deep), low]), 32)
    x = twice(layers.Concatenate()([layers.Conv3DTranspose(16, 2, 2)(x), high]), 16)
    return layers.Conv3D(3, 1)(x)


@wide("3-D convolutions", 4, [Values((8, 28, 28, 3))], Numbers(10))
def factorized_video(keras: Any, x: Any) -> Any:
    """Residual blocks whose convolutions are split into space and time (Tran et al. 2018)."""
    layers = keras.layers
    x = layers.Conv3D(32, (1, 7, 7), (1, 2, 2), padding="same", use_bias=False)(x)
    for channels in (32, 64):
        y = layers.Conv3D(channels, (1, 3, 3), padding="same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.BatchNormalization()(
            layers.Conv3D(channels, (3, 1, 1), padding="same", use_bias=False)(y)
        )
        x = layers.ReLU()(layers.Add()([layers.Conv3D(channels, 1)(x), y]))
    return layers.Dense(10)(layers.GlobalAveragePooling3D()(x))


@wide("segmentation", 4, [Values((64, 64, 3))], Numbers(8, (64, 64)))
def pyramid_pooling(keras: Any, x: Any) -> Any:
    """Segmentation with dilated convolutions side by side and bilinear resizing (DeepLab v3, Chen
    et al. 2017).
    """
    layers = keras.layers
    for channels in (32, 64):
        x = layers.ReLU()(
            layers.BatchNormalization()(layers.Conv2D(channels, 3, 2, padding="same")(x))
        )
    rates = (1, 2, 4)
    branches = [
        layers.Conv2D(64, 3, padding="same", dilation_rate=rate, activation="relu")(x)
        for rate in rates
    ]
    x = layers.Conv2D(64, 1, activation="relu")(layers.Concatenate()(branches))
    return layers.UpSampling2D(4, interpolation="bilinear")(layers.Conv2D(8, 1)(x))


@wide("detection", 4, [Values((96, 96, 3))], Values((2160, 6)))
def anchor_free_detector(keras: Any, x: Any) -> Any:
    """Boxes and classes at two scales from shared convolutions, without a feature pyramid (YOLO,
    Redmon et al.).
    """
    layers = keras.layers
    levels = []
    for channels in (16, 32, 64, 128):
        x = layers.Conv2D(channels, 3, 2, padding="same", use_bias=False)(x)
        x = layers.LeakyReLU()(layers.BatchNormalization()(x))
        y = layers.LeakyReLU()(
            layers.BatchNormalization()(layers.Conv2D(channels // 2, 1, use_bias=False)(x))
        )
        x = layers.Add()(
            [x, layers.Conv2D(channels, 3, padding="same", activation="leaky_relu")(y)]
        )
        levels.append(x)
    top = layers.UpSampling2D(2)(layers.Conv2D(64, 1)(levels[3]))
    merged = layers.Conv2D(64, 3, padding="same", activation="leaky_relu")(
        layers.Concatenate()([top, levels[2]])
    )
    upper = layers.UpSampling2D(2)(merged)
    finer = layers.Conv2D(64, 3, padding="same", activation="leaky_relu")(
        layers.Concatenate()([upper, levels[1]])
    )
    rows = [layers.Reshape((-1, 6))(layers.Conv2D(18, 1)(level)) for level in (merged, finer)]
    return layers.Concatenate(axis=1)(rows)
