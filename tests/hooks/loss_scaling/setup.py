"""What the tests of automatic loss scaling share: models of both Keras libraries, and the patches put in place."""

import contextlib

import keras
import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.hooks import loss_scaling
from amp_tf.loss_scaling import keras3
from amp_tf.loss_scaling import tf_keras as wrappers

X = np.random.RandomState(0).randn(32, 4).astype("float32")
Y = X.sum(1, keepdims=True)


@contextlib.contextmanager
def installed(in_float16=True, config=None):
    assert loss_scaling.install(config or AmpConfig(precision="float16"), lambda: in_float16)
    try:
        yield
    finally:
        loss_scaling.uninstall()


def make_model(library, cls=None):
    keras.utils.set_random_seed(0)  # tf_keras' own does not work on Python 3.12 up to 2.18; this seeds the same
    x = library.layers.Input((4,))
    return (cls or library.Model)(x, library.layers.Dense(1)(library.layers.Dense(8, activation="tanh")(x)))


def is_ours(optimizer):
    return isinstance(optimizer, (keras3.LossScaleOptimizer, wrappers.LossScaleOptimizer))
