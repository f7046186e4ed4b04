"""Parts that many models of the suite share. Each takes ``keras.layers`` and a tensor."""

from __future__ import annotations


def normalized_relu(layers, x):
    """A batch normalization and a Relu."""
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(x)


def convolved(layers, x, channels, strides=1):
    """A convolution of 3 × 3 without a bias, normalized."""
    x = layers.Conv2D(channels, 3, strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization()(x)


def pooled_logits(layers, x, classes=10):
    """The logits of an image, from the means of its channels."""
    x = layers.GlobalAveragePooling2D()(x)
    return layers.Dense(classes)(x)
