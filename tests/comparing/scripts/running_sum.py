"""Sequences whose features are cumulative sums, in a model with its own train_step."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(4)


class Forecaster(keras.Model):
    def __init__(self):
        super().__init__(name="forecaster")
        self.embed, self.out = keras.layers.Dense(8, name="embed"), keras.layers.Dense(1, name="out")

    def call(self, x):
        with tf.name_scope("trend"):
            total = tf.cumsum(tf.abs(self.embed(x)), axis=1, name="total")
        return self.out(total)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


model = Forecaster()
model.compile(keras.optimizers.SGD(1e-6))
x = np.random.default_rng(4).normal(size=(64, 600, 4)).astype("float32")
model.fit(x, np.cumsum(x[..., :1] ** 2, axis=1), batch_size=8, epochs=1, verbose=2)
