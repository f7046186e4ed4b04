"""Recurrent networks, and the same networks as they are written by hand or in tf_keras."""

from __future__ import annotations

from benchmarks.models.wide.parts import normalized_relu, pooled_logits
from benchmarks.models.wide.registry import Numbers, Values, wide

_TOKENS = Numbers(1000, (24,))


@wide("recurrent", 32, [Values((32, 64))], Numbers(10))
def simple_rnn(keras, x):
    """Two plain recurrent layers of 256."""
    for _ in range(2):
        x = keras.layers.SimpleRNN(256, return_sequences=True)(x)
    return keras.layers.Dense(10)(x[:, -1])


@wide("recurrent", 32, [_TOKENS], Numbers(1000, (24,)))
def gru_language_model(keras, tokens):
    """A GRU of 256 that predicts one of 1,000 tokens."""
    gru = keras.layers.GRU(256, return_sequences=True)
    x = keras.layers.Embedding(1000, 128)(tokens)
    x = gru(x)
    return keras.layers.Dense(1000)(x)


@wide("recurrent", 32, [_TOKENS], Numbers(5))
def lstm_classifier(keras, tokens):
    """Two LSTM layers of 192 over an embedding."""
    layers = keras.layers
    first = layers.LSTM(192, return_sequences=True)
    x = layers.Embedding(1000, 64)(tokens)
    x = first(x)
    logits = layers.Dense(5)
    x = layers.LSTM(192)(x)
    return logits(x)


@wide("recurrent", 32, [_TOKENS], Numbers(20, (24,)))
def bidirectional_gru_tagger(keras, tokens):
    """A label for each token from a GRU in both directions."""
    layers = keras.layers
    x = layers.Embedding(1000, 128)(tokens)
    gru = layers.GRU(192, return_sequences=True)
    x = layers.Bidirectional(gru)(x)
    return layers.Dense(20)(x)


@wide("recurrent", 2, [Values((6, 24, 24, 1))], Values((24, 24, 1)))
def conv_lstm(keras, x):
    """The next frame of a video by convolutional LSTM layers (Shi et al. 2015)."""
    layers = keras.layers
    x = layers.ConvLSTM2D(24, 3, padding="same", return_sequences=True)(x)
    x = layers.BatchNormalization()(x)
    x = layers.ConvLSTM2D(24, 3, padding="same")(x)
    return layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x)


@wide("recurrent", 16, [Values((256, 40))], Numbers(30, (64,)))
def speech(keras, x):
    """Spectra to letters: strided convolutions, then a GRU in both directions (Deep Speech 2,
    without its loss).
    """
    layers = keras.layers
    x = layers.Reshape((256, 40, 1))(x)
    for channels in (16, 32):
        x = layers.Conv2D(channels, (11, 5), (2, 2), padding="same", use_bias=False)(x)
        x = normalized_relu(layers, x)
    x = layers.Reshape((64, 320))(x)
    gru = layers.GRU(128, return_sequences=True)
    x = layers.Bidirectional(gru)(x)
    return layers.Dense(30)(x)


@wide("tf_keras", 32, [Values((32, 32, 3))], Numbers(10), keras="tf_keras")
def tf_keras_convnet(keras, x):
    """A normalized convolutional network in Keras 2."""
    layers = keras.layers
    for channels in (32, 64, 128):
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        x = normalized_relu(layers, x)
        x = layers.MaxPooling2D()(x)
    return pooled_logits(layers, x)


@wide("tf_keras", 32, [_TOKENS], Numbers(5), keras="tf_keras")
def tf_keras_lstm(keras, tokens):
    """An LSTM of 192 over an embedding in Keras 2."""
    layers = keras.layers
    x = layers.Embedding(1000, 64)(tokens)
    logits = layers.Dense(5)
    x = layers.LSTM(192)(x)
    return logits(x)


@wide("tf.function", 64, [Values((128,))], Numbers(10))
def functions_of_tensorflow(keras, x):
    """Three wide layers of tf.matmul, tf.nn.relu and a normalization written by hand."""
    import tensorflow as tf

    class Layer(keras.layers.Layer):
        def __init__(self, width):
            super().__init__()
            self.width = width

        def build(self, shape):
            matrix = (shape[-1], self.width)
            self.kernel = self.add_weight(shape=matrix, initializer="glorot_uniform")
            self.offset = self.add_weight(shape=(self.width,), initializer="zeros")

        def call(self, x):
            product = tf.matmul(x, tf.cast(self.kernel, x.dtype))
            x = tf.nn.relu(product + tf.cast(self.offset, x.dtype))
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            return (x - mean) * tf.math.rsqrt(variance + 1e-3)

    for _ in range(3):
        x = Layer(768)(x)
    return keras.layers.Dense(10)(x)
