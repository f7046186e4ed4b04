"""Layers with biases and activations, which TensorFlow fuses: two Keras' fit, predict, a
tf.function, a session.
"""

import json

import keras
import numpy as np
import tensorflow as tf
import tf_keras

rng = np.random.default_rng(1)
images = rng.normal(size=(64, 8, 8, 8)).astype("float32")
rows = images.reshape(64, -1)[:, :256]
targets = (rows[:, :64].sum(axis=1, keepdims=True) / 8).astype("float32")


def network(keras=keras):
    layers = keras.layers
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(16, 3, 2, activation="elu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(64, activation=layers.LeakyReLU(0.3)),
            layers.Dense(1),
        ]
    )


def fit(keras=keras):
    model = network(keras)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model.fit(images, targets, batch_size=32, epochs=4, shuffle=False, verbose=0).history[
        "loss"
    ]


def predict():
    return network().predict(images, verbose=0)[:, 0].tolist()


def loop():
    model = network()
    model.build(images.shape)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        variables = [weight.value for weight in model.trainable_variables]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    return [float(step(images, targets)) for _ in range(8)]


def biased(value, name, size):
    start = np.random.default_rng(2).normal(size=(256, size)).astype("float32") / 16
    kernel = tf.compat.v1.get_variable(name, initializer=start)
    bias = tf.compat.v1.get_variable(f"{name}_bias", initializer=tf.ones(size) / 8)
    return tf.nn.bias_add(tf.matmul(value, kernel), bias)


def session():
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 256])
        result = biased(tf.nn.relu(biased(x, "first", 256)), "second", 1)
        loss = tf.reduce_mean(tf.square(result - targets))
        train = tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss)
        with tf.compat.v1.Session() as running:
            running.run(tf.compat.v1.global_variables_initializer())
            return [float(running.run([train, loss], {x: rows})[1]) for _ in range(8)]


WAYS = {
    "fit": fit,
    "tf_keras fit": lambda: fit(tf_keras),
    "predict": predict,
    "loop": loop,
    "session": session,
}

if __name__ == "__main__":
    print(json.dumps({name: way() for name, way in WAYS.items()}))
