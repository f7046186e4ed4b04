"""Keras 3: predict and evaluate of a network with batch normalization that has seen data.

Half of its convolutions have biases of their own, as is Keras' default.
"""

import json

import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
images = rng.normal(size=(96, 32, 32, 3)).astype("float32")
labels = (images.sum(axis=(1, 2, 3)) > 0).astype("int32")


def block(x, convolution):
    return layers.ReLU(6.0)(layers.BatchNormalization()(convolution(x)))


image = keras.Input((32, 32, 3))
x = block(image, layers.Conv2D(32, 3, padding="same"))
y = block(x, layers.DepthwiseConv2D(3, padding="same"))
y = block(y, layers.Conv2D(32, 3, padding="same"))
y = block(x, layers.DepthwiseConv2D(3, padding="same", use_bias=False))
y = block(y, layers.Conv2D(32, 3, padding="same", use_bias=False))
y = layers.BatchNormalization()(layers.Conv2D(32, 1, use_bias=False)(y))
x = layers.ReLU()(layers.Add()([x, y]))
y = layers.BatchNormalization()(layers.Conv2D(32, 1)(x))
x = layers.ReLU()(layers.Add()([x, y]))
x = layers.GlobalAveragePooling2D()(
    block(x, layers.Conv2D(64, 3, 2, padding="same", use_bias=False))
)
model = keras.Model(image, layers.Dense(2)(x))
for layer in model.layers:
    if isinstance(layer, layers.BatchNormalization):
        size = layer.gamma.shape
        layer.set_weights([rng.uniform(0.5, 1.5, size) for _ in range(4)])
    elif getattr(layer, "bias", None) is not None:
        layer.bias.assign(rng.uniform(-0.5, 0.5, layer.bias.shape))
model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
print(
    json.dumps(
        {
            "predicted": model.predict(images, verbose=0).tolist(),
            "by_batch": model.predict_on_batch(images[:8]).tolist(),
            "evaluated": float(model.evaluate(images, labels, verbose=0)),
        }
    )
)
