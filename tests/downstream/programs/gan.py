"""A GAN: two models, two optimizers, one tf.function that steps both."""

import json

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
real = (load_digits().data / 8.0 - 1.0).astype("float32")
generator = keras.Sequential(
    [
        keras.Input((32,)),
        keras.layers.Dense(128, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(64, "tanh"),
    ]
)
discriminator = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(128), keras.layers.LeakyReLU(0.2), keras.layers.Dense(1)]
)
generator_optimizer = keras.optimizers.Adam(2e-4, beta_1=0.5)
discriminator_optimizer = keras.optimizers.RMSprop(2e-4)
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def step(images, noise):
    with tf.GradientTape() as generator_tape, tf.GradientTape() as discriminator_tape:
        fake = generator(noise, training=True)
        on_real = discriminator(images, training=True)
        on_fake = discriminator(fake, training=True)
        generator_loss = cross_entropy(tf.ones_like(on_fake), on_fake)
        discriminator_loss = cross_entropy(tf.ones_like(on_real), on_real)
        discriminator_loss += cross_entropy(tf.zeros_like(on_fake), on_fake)
    for tape, loss, model, optimizer in (
        (generator_tape, generator_loss, generator, generator_optimizer),
        (discriminator_tape, discriminator_loss, discriminator, discriminator_optimizer),
    ):
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return generator_loss, discriminator_loss


noise = np.random.default_rng(0)
losses = []
for number in range(30):
    batch = real[64 * (number % 28) :][:64]
    losses.append([float(x) for x in step(batch, noise.standard_normal((len(batch), 32)).astype("float32"))])
print(json.dumps({"generator": [a for a, _ in losses[::5]], "discriminator": [b for _, b in losses[::5]]}))
