"""Keras 3 under jit_compile: fit, evaluate, predict, several steps at once, a new shape, a
strategy, Keras' choice.

``keras_jit.py tf_keras``: fit alone, of tf_keras.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf
import tf_keras

set_random_seed = (
    keras.utils.set_random_seed
)  # up to 2.18 tf_keras' own does not work on Python 3.12
rng = np.random.default_rng(1)
images = rng.normal(size=(64, 12, 12, 3)).astype("float32")
labels = (images.mean(axis=(1, 2, 3)) > 0).astype("int32")


def new_model(keras=keras, **settings):
    set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Input((None, None, 3)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(2),
        ]
    )
    # XLA would compile twice as much with Adam, for its updates.
    optimizer = keras.optimizers.SGD(0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **settings)
    return model


result = {}
if sys.argv[1:]:
    model = new_model(tf_keras, jit_compile=True)
    result["fit"] = model.fit(images, labels, batch_size=16, epochs=3, verbose=0).history["loss"]
    print(json.dumps(result))
    sys.exit()
model = new_model(jit_compile=True)
result["fit"] = model.fit(images, labels, batch_size=16, epochs=3, verbose=0).history["loss"]
result["evaluate"] = float(model.evaluate(images, labels, batch_size=16, verbose=0))
result["predict"] = model.predict(images[:16], batch_size=16, verbose=0).tolist()
result["new_shape"] = model.fit(
    images[:, :9, :9], labels, batch_size=16, epochs=1, verbose=0
).history["loss"]

model = new_model(jit_compile=True, steps_per_execution=2)
result["steps_per_execution"] = model.fit(
    images, labels, batch_size=16, epochs=3, verbose=0
).history["loss"]

with tf.distribute.MirroredStrategy(
    ["CPU:0"]
).scope():  # with two CPUs XLA fails, with and without amp_tf
    model = new_model(jit_compile=True)
result["mirrored"] = model.fit(images, labels, batch_size=16, epochs=3, verbose=0).history["loss"]

list_physical_devices = tf.config.list_physical_devices
pretended = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
tf.config.list_physical_devices = lambda device_type=None: [
    *list_physical_devices(device_type),
    *([pretended] if device_type in (None, "GPU") else []),
]
model = new_model()
result["auto_is_jit"] = bool(model.jit_compile)
result["auto"] = model.fit(images, labels, batch_size=16, epochs=3, verbose=0).history["loss"]
print(json.dumps(result))
