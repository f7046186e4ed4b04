"""Models that make or compare what they read: autoencoders, GANs, diffusion, siamese networks."""

from __future__ import annotations

from typing import Any

from benchmarks.models.wide.registry import Numbers, Values, wide


@wide("generative", 128, [Values((784,))], Values((784,)))
def autoencoder(keras: Any, x: Any) -> Any:
    """Dense layers down to 32 numbers and back."""
    for width in (512, 256, 32, 256, 512):
        x = keras.layers.Dense(width, activation="relu")(x)
    return keras.layers.Dense(784, activation="sigmoid")(x)


@wide("generative", 32, [Values((32, 32, 3))], Values((32, 32, 3)))
def variational_autoencoder(keras: Any, x: Any) -> Any:
    """Convolutions to a mean and a deviation, a random draw, transposed convolutions (Kingma and
    Welling 2013).
    """
    layers = keras.layers
    ops = keras.ops
    for channels in (32, 64):
        x = layers.Conv2D(channels, 3, 2, padding="same", activation="relu")(x)
    x = layers.Flatten()(x)
    mean = layers.Dense(32)(x)
    deviation = layers.Dense(32)(x)
    noise = layers.GaussianNoise(1.0)(ops.zeros_like(mean))
    x = layers.Dense(8 * 8 * 64, activation="relu")(mean + ops.exp(0.5 * deviation) * noise)
    x = layers.Reshape((8, 8, 64))(x)
    for channels in (64, 32):
        x = layers.Conv2DTranspose(channels, 3, 2, padding="same", activation="relu")(x)
    return layers.Conv2D(3, 3, padding="same")(x)


@wide("generative", 16, [Values((64,)), Values((32, 32, 3))], Values((2,)))
def adversarial_pair(keras: Any, noise: Any, image: Any) -> Any:
    """A generator and a discriminator that reads its images and real ones (DCGAN, Radford et al.

    2015).
    """
    layers = keras.layers
    x = layers.Reshape((4, 4, 256))(layers.Dense(4 * 4 * 256)(noise))
    for channels in (128, 64):
        x = layers.Conv2DTranspose(channels, 4, 2, padding="same", use_bias=False)(x)
        x = layers.LeakyReLU()(layers.BatchNormalization()(x))
    made = layers.Conv2DTranspose(3, 4, 2, padding="same", activation="tanh")(x)
    image_in = y = keras.Input((32, 32, 3))
    for channels in (64, 128):
        y = layers.LeakyReLU()(layers.Conv2D(channels, 4, 2, padding="same")(y))
    judge = keras.Model(image_in, layers.Dense(1)(layers.Flatten()(y)))
    return layers.Concatenate()([judge(made), judge(image)])


@wide("generative", 8, [Values((32, 32, 3)), Values((1,))], Values((32, 32, 3)))
def diffusion(keras: Any, x: Any, time: Any) -> Any:
    """The noise in an image: residual blocks with group normalization, swish and the time (Ho et
    al. 2020).
    """
    layers = keras.layers
    time = layers.Dense(128, activation="swish")(layers.Dense(128, activation="swish")(time))

    def block(x: Any, channels: int) -> Any:
        y = layers.Conv2D(channels, 3, padding="same")(
            layers.Activation("swish")(layers.GroupNormalization(8)(x))
        )
        y = y + layers.Reshape((1, 1, channels))(layers.Dense(channels)(time))
        y = layers.Conv2D(channels, 3, padding="same")(
            layers.Activation("swish")(layers.GroupNormalization(8)(y))
        )
        return y + (x if x.shape[-1] == channels else layers.Conv2D(channels, 1)(x))

    x = layers.Conv2D(32, 3, padding="same")(x)
    high = block(x, 32)
    low = block(layers.AveragePooling2D(2)(high), 64)
    tokens = layers.Reshape((-1, 64))(layers.GroupNormalization(8)(low))
    low = low + layers.Reshape((16, 16, 64))(layers.MultiHeadAttention(2, 32)(tokens, tokens))
    x = block(layers.Concatenate()([layers.UpSampling2D(2)(low), high]), 32)
    return layers.Conv2D(3, 3, padding="same")(
        layers.Activation("swish")(layers.GroupNormalization(8)(x))
    )


@wide("siamese", 16, [Values((48, 48, 1)), Values((48, 48, 1))], Values((1,)))
def siamese(keras: Any, first: Any, second: Any) -> Any:
    """The distance of two images as one network sees them (Koch et al. 2015)."""
    layers = keras.layers
    ops = keras.ops
    image = x = keras.Input((48, 48, 1))
    for channels in (32, 64, 128):
        x = layers.MaxPooling2D()(layers.Conv2D(channels, 3, padding="same", activation="relu")(x))
    encoder = keras.Model(image, layers.Dense(64)(layers.Flatten()(x)))
    return layers.Dense(1)(ops.abs(encoder(first) - encoder(second)))


@wide("generative", 8, [Values((48, 48, 1))], Values((96, 96, 1)))
def super_resolution(keras: Any, x: Any) -> Any:
    """An image of twice the side: residual convolutions without normalization, then depth to space
    (EDSR).
    """
    import tensorflow as tf

    layers = keras.layers

    class DepthToSpace(layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            return tf.nn.depth_to_space(x, 2)

    x = start = layers.Conv2D(48, 3, padding="same")(x)
    for _ in range(3):
        y = layers.Conv2D(48, 3, padding="same", activation="relu")(x)
        x = x + 0.1 * layers.Conv2D(48, 3, padding="same")(y)
    return layers.Conv2D(1, 3, padding="same")(
        DepthToSpace()(layers.Conv2D(192, 3, padding="same")(x + start))
    )


@wide("siamese", 16, [Numbers(2000, (32,)), Numbers(2000, (32,))], Numbers(3))
def sentence_pairs(keras: Any, first: Any, second: Any) -> Any:
    """Classifies if a sentence follows from another, by attention (Parikh et al. 2016)."""
    layers = keras.layers
    ops = keras.ops
    embed = layers.Embedding(2000, 128)
    compare = layers.Dense(128, activation="relu")
    first = embed(first)
    second = embed(second)
    scores = ops.matmul(compare(first), ops.transpose(compare(second), (0, 2, 1)))
    aligned = ops.matmul(ops.softmax(scores, axis=-1), second)
    joined = layers.Dense(256, activation="relu")(layers.Concatenate()([first, aligned]))
    return layers.Dense(3)(layers.Dense(128, activation="relu")(ops.sum(joined, axis=1)))
