"""A Keras Model subclass with a train_step of its own, as in Keras' guides: a denoising autoencoder, two metrics."""

import json

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)


class Denoiser(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.layers.Dense(256, "relu"), keras.layers.Dense(64, "relu")])
        self.decoder = keras.Sequential([keras.layers.Dense(256, "relu"), keras.layers.Dense(64)])
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    @property
    def metrics(self):
        return [self.loss_tracker, self.error]

    def call(self, x, training=False):
        return self.decoder(self.encoder(x, training=training), training=training)

    def train_step(self, data):
        noisy, clean = data
        with tf.GradientTape() as tape:
            restored = self(noisy, training=True)
            loss = tf.reduce_mean(tf.square(clean - restored))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.error.update_state(clean, restored)
        return {metric.name: metric.result() for metric in self.metrics}


images = (load_digits().data / 16.0).astype("float32")
noisy = images + np.random.default_rng(0).normal(0, 0.2, images.shape).astype("float32")
model = Denoiser()
model.compile(optimizer=keras.optimizers.Adam(1e-3), jit_compile=False)
history = model.fit(noisy, images, epochs=3, batch_size=64, shuffle=False, verbose=0).history
print(json.dumps({"loss": history["loss"], "error": history["error"]}))
