"""Learns to remove noise from handwritten digits: DDPM, its step compiled by XLA.

Ho et al., Denoising Diffusion Probabilistic Models, NeurIPS 2020 (arXiv:2006.11239): a U-Net that
is told the time, the simple loss, and a running average of the weights. The digits are
scikit-learn's, twice as large.
"""

import argparse
import json
import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

SIZE = 16
TIMES = 1000
WIDTH = 24
DECAY = 0.98
ALPHAS = np.cumprod(1 - np.linspace(1e-4, 0.02, TIMES)).astype("float32")


def load_images():
    """1,500 to learn from and 297 to judge by, in -1 … 1."""
    images = load_digits().images[..., None] / 8.0 - 1.0
    images = tf.image.resize(images, (SIZE, SIZE)).numpy().astype("float32")
    images = images[np.random.default_rng(0).permutation(len(images))]
    return images[:1500], images[1500:]


class TimeEmbedding(layers.Layer):
    """Sines and cosines of the time, (batch,) -> (batch, width)."""

    def __init__(self, width):
        super().__init__()
        half = width // 2
        exponents = -math.log(10_000) * np.arange(half) / (half - 1)
        self.frequencies = np.exp(exponents).astype("float32")

    def call(self, times):
        times = ops.cast(times, "float32")
        angles = ops.expand_dims(times, 1) * self.frequencies
        return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)


def normalized_swish(x):
    x = layers.GroupNormalization(8)(x)
    return layers.Activation("swish")(x)


def zero_convolution(x, channels):
    return layers.Conv2D(channels, 3, padding="same", kernel_initializer="zeros")(x)


def residual(x, time, width):
    kept = x
    if x.shape[-1] != width:
        kept = layers.Conv2D(width, 1)(x)
    x = normalized_swish(x)
    x = layers.Conv2D(width, 3, padding="same")(x)
    x = x + layers.Dense(width)(time)[:, None, None, :]
    x = normalized_swish(x)
    return zero_convolution(x, width) + kept


def attend(x):
    height, width, channels = x.shape[1:]
    y = layers.GroupNormalization(8)(x)
    y = layers.Reshape((height * width, channels))(y)
    y = layers.MultiHeadAttention(2, channels // 2)(y, y)
    return x + layers.Reshape((height, width, channels))(y)


def new_model():
    image = keras.Input((SIZE, SIZE, 1))
    times = keras.Input((), dtype="int32")
    time = TimeEmbedding(WIDTH)(times)
    for _ in range(2):
        time = layers.Dense(4 * WIDTH, activation="swish")(time)
    x = layers.Conv2D(WIDTH, 3, padding="same")(image)
    above = residual(x, time, WIDTH)
    x = layers.Conv2D(2 * WIDTH, 3, strides=2, padding="same")(above)
    x = residual(x, time, 2 * WIDTH)
    x = attend(x)
    x = residual(x, time, 2 * WIDTH)
    x = layers.UpSampling2D(2)(x)
    x = layers.Concatenate()([x, above])
    x = residual(x, time, WIDTH)
    x = normalized_swish(x)
    return keras.Model([image, times], zero_convolution(x, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    images, held_out = load_images()

    model = new_model()
    averages = [tf.Variable(weight, trainable=False) for weight in model.get_weights()]
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    alphas = tf.constant(ALPHAS)

    def add_noise(images, times, noise):
        alpha = tf.gather(alphas, times)[:, None, None, None]
        return tf.sqrt(alpha) * images + tf.sqrt(1.0 - alpha) * noise

    @tf.function(jit_compile=True)
    def train_step(images, times, noise):
        noisy = add_noise(images, times, noise)
        with tf.GradientTape() as tape:
            found = model([noisy, times], training=True)
            loss = tf.reduce_mean((found - noise) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        for average, weight in zip(averages, model.weights, strict=True):
            average.assign(DECAY * average + (1.0 - DECAY) * weight)
        return loss

    rng = np.random.default_rng(args.seed)
    for number in range(args.steps):
        rows = rng.integers(0, len(images), args.batch)
        chosen = images[rows]
        times = rng.integers(0, TIMES, args.batch).astype("int32")
        noise = rng.normal(size=chosen.shape).astype("float32")
        loss = train_step(chosen, times, noise)
        if number % 50 == 0:
            print(f"step {number}: loss {float(loss):.4f}")

    model.set_weights([average.numpy() for average in averages])
    rng = np.random.default_rng(1)
    times = np.arange(len(held_out), dtype="int32") * TIMES // len(held_out)
    noise = rng.normal(size=held_out.shape).astype("float32")
    noisy = add_noise(held_out, times, noise).numpy()
    found = model.predict([noisy, times], batch_size=99, verbose=0)
    error = float(np.mean((found.astype("float32") - noise) ** 2))
    print(json.dumps({"metric": "noise MSE", "value": error, "chance": 1.0}))


if __name__ == "__main__":
    main()
