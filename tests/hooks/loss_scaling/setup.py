"""Models of both Keras libraries and installed patches, for the tests of automatic loss scaling."""

import contextlib

import keras
import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.hooks import loss_scaling, loss_scaling_v1
from amp_tf.loss_scaling import keras3
from amp_tf.loss_scaling import tf_keras as wrappers
from tests.hooks import installing

OTHER = AmpConfig(target="cpu")  #: graphs are not float16

X = np.random.RandomState(0).randn(32, 4).astype("float32")
Y = X.sum(1, keepdims=True)


@contextlib.contextmanager
def installed(config=AmpConfig(precision="float16")):  # noqa: B008 - it is frozen
    with installing.installed(loss_scaling, loss_scaling_v1, config=config):
        yield


def make_model(library, cls=None):
    keras.utils.set_random_seed(
        0
    )  # tf_keras' own does not work on Python 3.12 up to 2.18; this seeds the same
    x = library.layers.Input((4,))
    return (cls or library.Model)(
        x, library.layers.Dense(1)(library.layers.Dense(8, activation="tanh")(x))
    )


def is_ours(optimizer):
    return isinstance(optimizer, (keras3.LossScaleOptimizer, wrappers.LossScaleOptimizer))
