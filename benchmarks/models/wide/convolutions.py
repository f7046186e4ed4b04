"""Convolutions in all shapes: in one to three dimensions, transposed, grouped, dilated, squeezed,
channels first.
"""

from __future__ import annotations

from benchmarks.models.wide.parts import convolved, normalized_relu, pooled_logits
from benchmarks.models.wide.registry import Numbers, Values, wide


def _flat_logits(layers, x):
    """The logits of ten classes, from all values."""
    x = layers.Flatten()(x)
    return layers.Dense(10)(x)


@wide("1-D convolutions", 32, [Values((512, 16))], Numbers(10))
def conv1d(keras, x):
    """Classification of a signal: convolutions of 64 to 256 channels, normalized, with pooling."""
    layers = keras.layers
    for channels in (64, 128, 256):
        x = layers.Conv1D(channels, 5, padding="same", use_bias=False)(x)
        x = normalized_relu(layers, x)
        x = layers.MaxPooling1D(2)(x)
    return _flat_logits(layers, x)


@wide("dilated convolutions", 16, [Values((512, 32))], Numbers(64, (512,)))
def wavenet(keras, x):
    """WaveNet (van den Oord et al. 2016): causal convolutions with dilation 1 to 32 and gates."""
    layers = keras.layers
    x = layers.Conv1D(64, 1)(x)
    skips = []
    for level in range(6):
        causal = {"padding": "causal", "dilation_rate": 2**level}
        wave = layers.Conv1D(64, 2, activation="tanh", **causal)(x)
        gate = layers.Conv1D(64, 2, activation="sigmoid", **causal)(x)
        y = layers.Multiply()([wave, gate])
        skips.append(layers.Conv1D(128, 1)(y))
        y = layers.Conv1D(64, 1)(y)
        x = layers.Add()([x, y])
    x = layers.Add()(skips)
    x = layers.ReLU()(x)
    return layers.Conv1D(64, 1)(x)


@wide("dilated convolutions", 16, [Values((256, 64))], Values((256, 1)))
def temporal_convnet(keras, x):
    """Residual blocks of dilated convolutions with layer normalization (Bai et al. 2018)."""
    layers = keras.layers
    x = layers.Conv1D(128, 1)(x)
    for level in range(4):
        causal = {"padding": "causal", "dilation_rate": 2**level, "activation": "relu"}
        y = layers.Conv1D(128, 3, **causal)(x)
        y = layers.Conv1D(128, 3, **causal)(y)
        x = layers.Add()([x, y])
        x = layers.LayerNormalization()(x)
    return layers.Dense(1)(x)


@wide("1-D convolutions", 8, [Values((1024, 2))], Values((1024, 2)))
def wave_unet(keras, x):
    """Separation of sounds with an encoder, a decoder and skips (Stoller et al. 2018)."""
    layers = keras.layers

    def conv(x, channels, taps):
        return layers.Conv1D(channels, taps, padding="same", activation="leaky_relu")(x)

    skips = []
    for channels in (32, 64, 128):
        x = conv(x, channels, 15)
        skips.append(x)
        x = layers.MaxPooling1D(2)(x)
    x = conv(x, 256, 15)
    for channels in (128, 64, 32):
        x = layers.UpSampling1D(2)(x)
        x = layers.Concatenate()([x, skips.pop()])
        x = conv(x, channels, 5)
    return layers.Conv1D(2, 1, activation="tanh")(x)


@wide("plain convolutions", 64, [Values((32, 32, 3))], Numbers(10))
def small_convnet(keras, x):
    """The convolutional network of tutorials: 32, 64, 64 channels without padding, two dense
    layers.
    """
    layers = keras.layers
    for channels in (32, 64, 64):
        x = layers.Conv2D(channels, 3, activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    logits = layers.Dense(10)
    x = layers.Flatten()(x)
    x = layers.Dense(64, activation="relu")(x)
    return logits(x)


@wide("channels first", 16, [Values((3, 64, 64))], Numbers(10))
def channels_first(keras, x):
    """Normalized convolutions in NCHW, for which oneDNN has kernels."""
    layers = keras.layers
    first = {"data_format": "channels_first"}
    for channels in (32, 64, 128):
        x = layers.Conv2D(channels, 3, 2, padding="same", use_bias=False, **first)(x)
        x = layers.BatchNormalization(axis=1)(x)
        x = layers.ReLU()(x)
    x = layers.GlobalAveragePooling2D(**first)(x)
    return layers.Dense(10)(x)


@wide("grouped convolutions", 8, [Values((32, 32, 64))], Numbers(10))
def resnext(keras, x):
    """Bottlenecks with convolutions of 8 groups, written as branches, as where grouped kernels lack
    a gradient.
    """
    layers = keras.layers
    for _ in range(3):
        y = layers.Conv2D(128, 1, use_bias=False)(x)
        y = normalized_relu(layers, y)
        groups = []
        for group in keras.ops.split(y, 8, axis=-1):
            groups.append(layers.Conv2D(16, 3, padding="same", use_bias=False)(group))
        y = layers.Concatenate()(groups)
        y = normalized_relu(layers, y)
        y = layers.Conv2D(64, 1, use_bias=False)(y)
        y = layers.BatchNormalization()(y)
        x = layers.Add()([x, y])
        x = layers.ReLU()(x)
    return pooled_logits(layers, x)


@wide("transposed convolutions", 8, [Values((4, 4, 256))], Values((64, 64, 3)))
def decoder(keras, x):
    """An image from a few features: four transposed convolutions of stride 2."""
    layers = keras.layers
    for channels in (256, 128, 64):
        x = layers.Conv2DTranspose(channels, 4, 2, padding="same", use_bias=False)(x)
        x = normalized_relu(layers, x)
    return layers.Conv2DTranspose(3, 4, 2, padding="same", activation="tanh")(x)


@wide("squeeze-excite", 8, [Values((48, 48, 64))], Numbers(10))
def se_resnet(keras, x):
    """Residual blocks of dense convolutions with squeeze-excite (Hu et al. 2017)."""
    layers = keras.layers

    def block(x, channels, strides):
        y = convolved(layers, x, channels, strides)
        y = layers.ReLU()(y)
        y = convolved(layers, y, channels)
        gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
        excite = layers.Dense(channels, activation="sigmoid")
        gate = layers.Dense(channels // 16, activation="relu")(gate)
        y = layers.Multiply()([y, excite(gate)])
        if strides > 1:
            x = layers.Conv2D(channels, 1, strides)(x)
        x = layers.Add()([x, y])
        return layers.ReLU()(x)

    x = block(x, 64, 1)
    x = block(x, 128, 2)
    x = block(x, 128, 1)
    return pooled_logits(layers, x)


@wide("squeeze-excite and depthwise", 8, [Values((56, 56, 32))], Numbers(10))
def inverted_bottlenecks(keras, x):
    """Inverted bottlenecks with squeeze-excite, swish and depthwise convolutions, with and without
    strides.
    """
    layers = keras.layers

    def normalized_swish(y):
        y = layers.BatchNormalization()(y)
        return layers.Activation("swish")(y)

    def block(x, channels, kernel, strides):
        width = x.shape[-1]
        y = layers.Conv2D(4 * width, 1, use_bias=False)(x)
        y = normalized_swish(y)
        y = layers.DepthwiseConv2D(kernel, strides, padding="same", use_bias=False)(y)
        y = normalized_swish(y)
        gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
        gate = layers.Conv2D(width // 4, 1, activation="swish")(gate)
        gate = layers.Conv2D(4 * width, 1, activation="sigmoid")(gate)
        y = layers.Multiply()([y, gate])
        y = layers.Conv2D(channels, 1, use_bias=False)(y)
        y = layers.BatchNormalization()(y)
        if x.shape != y.shape:
            return y
        return layers.Add()([x, y])

    x = block(x, 32, 3, 1)
    x = block(x, 48, 5, 2)
    x = block(x, 48, 5, 1)
    x = block(x, 96, 3, 2)
    return pooled_logits(layers, x)


@wide("3-D convolutions", 4, [Values((16, 32, 32, 3))], Numbers(10))
def video_classifier(keras, x):
    """Classification of short videos: convolutions of 3 × 3 × 3 with pooling, as in C3D (Tran et
    al. 2014).
    """
    layers = keras.layers
    for channels in (32, 64, 128):
        x = layers.Conv3D(channels, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling3D(2)(x)
    return _flat_logits(layers, x)


@wide("3-D convolutions", 2, [Values((16, 32, 32, 1))], Numbers(3, (16, 32, 32)))
def volume_unet(keras, x):
    """Segmentation of volumes with an encoder, a decoder and skips (Çiçek et al. 2016)."""
    layers = keras.layers

    def twice(x, channels):
        for _ in range(2):
            x = layers.Conv3D(channels, 3, padding="same")(x)
            x = normalized_relu(layers, x)
        return x

    high = twice(x, 16)
    low = layers.MaxPooling3D(2)(high)
    low = twice(low, 32)
    deep = layers.MaxPooling3D(2)(low)
    deep = twice(deep, 64)
    x = layers.Conv3DTranspose(32, 2, 2)(deep)
    x = layers.Concatenate()([x, low])
    x = twice(x, 32)
    x = layers.Conv3DTranspose(16, 2, 2)(x)
    x = layers.Concatenate()([x, high])
    x = twice(x, 16)
    return layers.Conv3D(3, 1)(x)


@wide("3-D convolutions", 4, [Values((8, 28, 28, 3))], Numbers(10))
def factorized_video(keras, x):
    """Residual blocks whose convolutions are split into space and time (Tran et al. 2018)."""
    layers = keras.layers
    x = layers.Conv3D(32, (1, 7, 7), (1, 2, 2), padding="same", use_bias=False)(x)
    for channels in (32, 64):
        y = layers.Conv3D(channels, (1, 3, 3), padding="same", use_bias=False)(x)
        y = normalized_relu(layers, y)
        y = layers.Conv3D(channels, (3, 1, 1), padding="same", use_bias=False)(y)
        y = layers.BatchNormalization()(y)
        x = layers.Conv3D(channels, 1)(x)
        x = layers.Add()([x, y])
        x = layers.ReLU()(x)
    x = layers.GlobalAveragePooling3D()(x)
    return layers.Dense(10)(x)


@wide("segmentation", 4, [Values((64, 64, 3))], Numbers(8, (64, 64)))
def pyramid_pooling(keras, x):
    """Segmentation with dilated convolutions side by side and bilinear resizing (DeepLab v3, Chen
    et al. 2017).
    """
    layers = keras.layers
    for channels in (32, 64):
        x = layers.Conv2D(channels, 3, 2, padding="same")(x)
        x = normalized_relu(layers, x)
    branches = []
    for rate in (1, 2, 4):
        dilated = layers.Conv2D(64, 3, padding="same", dilation_rate=rate, activation="relu")
        branches.append(dilated(x))
    x = layers.Concatenate()(branches)
    x = layers.Conv2D(64, 1, activation="relu")(x)
    x = layers.Conv2D(8, 1)(x)
    return layers.UpSampling2D(4, interpolation="bilinear")(x)


@wide("detection", 4, [Values((96, 96, 3))], Values((2160, 6)))
def anchor_free_detector(keras, x):
    """Boxes and classes at two scales from shared convolutions, without a feature pyramid (YOLO,
    Redmon et al.).
    """
    layers = keras.layers

    def activated(x, channels):
        return layers.Conv2D(channels, 3, padding="same", activation="leaky_relu")(x)

    # The backbone: four levels, each half as large as the one before.
    levels = []
    for channels in (16, 32, 64, 128):
        x = convolved(layers, x, channels, 2)
        x = layers.LeakyReLU()(x)
        y = layers.Conv2D(channels // 2, 1, use_bias=False)(x)
        y = layers.BatchNormalization()(y)
        y = layers.LeakyReLU()(y)
        x = layers.Add()([x, activated(y, channels)])
        levels.append(x)
    # From the coarsest level to the two that are read.
    top = layers.Conv2D(64, 1)(levels[3])
    read = []
    for level in (levels[2], levels[1]):
        top = layers.UpSampling2D(2)(top)
        top = layers.Concatenate()([top, level])
        top = activated(top, 64)
        read.append(top)
    rows = []
    for level in read:
        x = layers.Conv2D(18, 1)(level)
        rows.append(layers.Reshape((-1, 6))(x))
    return layers.Concatenate(axis=1)(rows)
