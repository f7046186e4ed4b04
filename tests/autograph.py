"""What TensorFlow's AutoGraph translates of the tests' programs."""

import contextlib
from unittest import mock

from tensorflow.python.autograph.core import config
from tensorflow.python.autograph.impl import conversion


@contextlib.contextmanager
def leaving_tf_keras_alone():
    """Leaves tf_keras' own functions as they are, as AutoGraph itself does in newer versions.

    TensorFlow 2.16 translates them, 300 for a model of three layers: 25 s of CPU.
    """
    rules = (config.DoNotConvert("tf_keras"), *config.CONVERSION_RULES)
    # It remembers which functions it leaves alone.
    remembered = type(conversion._ALLOWLIST_CACHE)()
    with (
        mock.patch.object(config, "CONVERSION_RULES", rules),
        mock.patch.object(conversion, "_ALLOWLIST_CACHE", remembered),
    ):
        yield
