"""Some models of the wide suite train; ``python -m benchmarks.models.wide`` tries all of them."""

import numpy as np
import pytest

from benchmarks.models.wide.__main__ import try_one


@pytest.mark.parametrize("name", ["two_towers", "autoencoder", "tf_keras_lstm", "functions_of_tensorflow", "conv_lstm"])
def test_a_model_trains_a_step(name):
    assert np.isfinite(try_one(name))
