"""Models that make or compare what they read: autoencoders, GANs, diffusion, siamese networks."""

from __future__ import annotations

from benchmarks.models.wide.registry import Numbers, Values, wide

_IMAGE = Values((32, 32, 3))
_LETTER = Values((48, 48, 1))
_SENTENCE = Numbers(2000, (32,))


@wide("generative", 128, [Values((784,))], Values((784,)))
def autoencoder(keras, x):
    """Dense layers down to 32 numbers and back."""
    for width in (512, 256, 32, 256, 512):
        x = keras.layers.Dense(width, activation="relu")(x)
    return keras.layers.Dense(784, activation="sigmoid")(x)


@wide("generative", 32, [_IMAGE], _IMAGE)
def variational_autoencoder(keras, x):
    """Convolutions to a mean and a deviation, a random draw, transposed convolutions (Kingma and
    Welling 2013).
    """
    layers = keras.layers
    ops = keras.ops
    halving = {"padding": "same", "activation": "relu", "strides": 2}
    x = layers.Conv2D(32, 3, **halving)(x)
    x = layers.Conv2D(64, 3, **halving)(x)
    x = layers.Flatten()(x)
    mean = layers.Dense(32)(x)
    deviation = layers.Dense(32)(x)
    noise = layers.GaussianNoise(1.0)(ops.zeros_like(mean))
    x = mean + ops.exp(0.5 * deviation) * noise
    x = layers.Dense(8 * 8 * 64, activation="relu")(x)
    x = layers.Reshape((8, 8, 64))(x)
    x = layers.Conv2DTranspose(64, 3, **halving)(x)
    x = layers.Conv2DTranspose(32, 3, **halving)(x)
    return layers.Conv2D(3, 3, padding="same")(x)


@wide("generative", 16, [Values((64,)), _IMAGE], Values((2,)))
def adversarial_pair(keras, noise, image):
    """DCGAN (Radford et al. 2015): a generator, and a discriminator of its images and real ones."""
    layers = keras.layers
    x = layers.Dense(4 * 4 * 256)(noise)
    x = layers.Reshape((4, 4, 256))(x)
    for channels in (128, 64):
        x = layers.Conv2DTranspose(channels, 4, 2, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.LeakyReLU()(x)
    made = layers.Conv2DTranspose(3, 4, 2, padding="same", activation="tanh")(x)
    seen = y = keras.Input((32, 32, 3))
    for channels in (64, 128):
        y = layers.Conv2D(channels, 4, 2, padding="same")(y)
        y = layers.LeakyReLU()(y)
    y = layers.Flatten()(y)
    judge = keras.Model(seen, layers.Dense(1)(y))
    return layers.Concatenate()([judge(made), judge(image)])


@wide("generative", 8, [_IMAGE, Values((1,))], _IMAGE)
def diffusion(keras, x, time):
    """The noise in an image: residual blocks with group normalization, swish and the time (Ho et
    al. 2020).
    """
    layers = keras.layers

    def normalized_swish(x):
        x = layers.GroupNormalization(8)(x)
        return layers.Activation("swish")(x)

    def conv(x, channels):
        return layers.Conv2D(channels, 3, padding="same")(x)

    def block(x, channels):
        y = conv(normalized_swish(x), channels)
        shift = layers.Dense(channels)(time)
        y = y + layers.Reshape((1, 1, channels))(shift)
        y = conv(normalized_swish(y), channels)
        if x.shape[-1] != channels:
            x = layers.Conv2D(channels, 1)(x)
        return y + x

    outer = layers.Dense(128, activation="swish")
    time = layers.Dense(128, activation="swish")(time)
    time = outer(time)
    x = conv(x, 32)
    high = block(x, 32)
    low = layers.AveragePooling2D(2)(high)
    low = block(low, 64)
    tokens = layers.GroupNormalization(8)(low)
    tokens = layers.Reshape((-1, 64))(tokens)
    tokens = layers.MultiHeadAttention(2, 32)(tokens, tokens)
    low = low + layers.Reshape((16, 16, 64))(tokens)
    x = layers.UpSampling2D(2)(low)
    x = layers.Concatenate()([x, high])
    x = block(x, 32)
    return conv(normalized_swish(x), 3)


@wide("siamese", 16, [_LETTER, _LETTER], Values((1,)))
def siamese(keras, first, second):
    """The distance of two images as one network sees them (Koch et al. 2015)."""
    layers = keras.layers
    image = x = keras.Input((48, 48, 1))
    for channels in (32, 64, 128):
        x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    encoder = keras.Model(image, layers.Dense(64)(x))
    apart = keras.ops.abs(encoder(first) - encoder(second))
    return layers.Dense(1)(apart)


@wide("generative", 8, [_LETTER], Values((96, 96, 1)))
def super_resolution(keras, x):
    """An image of twice the side: residual convolutions without normalization, then depth to space
    (EDSR).
    """
    import tensorflow as tf

    layers = keras.layers

    class DepthToSpace(layers.Layer):
        def call(self, x):
            return tf.nn.depth_to_space(x, 2)

    def conv(channels, activation=None):
        return layers.Conv2D(channels, 3, padding="same", activation=activation)

    x = start = conv(48)(x)
    for _ in range(3):
        y = conv(48, "relu")(x)
        y = conv(48)(y)
        x = x + 0.1 * y
    last = conv(1)
    x = conv(192)(x + start)
    x = DepthToSpace()(x)
    return last(x)


@wide("siamese", 16, [_SENTENCE, _SENTENCE], Numbers(3))
def sentence_pairs(keras, first, second):
    """Classifies if a sentence follows from another, by attention (Parikh et al. 2016)."""
    layers = keras.layers
    ops = keras.ops
    embed = layers.Embedding(2000, 128)
    compare = layers.Dense(128, activation="relu")
    first = embed(first)
    second = embed(second)
    keys = compare(first)
    queries = ops.transpose(compare(second), (0, 2, 1))
    scores = ops.matmul(keys, queries)
    aligned = ops.matmul(ops.softmax(scores, axis=-1), second)
    joined = layers.Concatenate()([first, aligned])
    joined = layers.Dense(256, activation="relu")(joined)
    logits = layers.Dense(3)
    x = ops.sum(joined, axis=1)
    x = layers.Dense(128, activation="relu")(x)
    return logits(x)
