import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
import pytest

from benchmarks.models import BENCHMARKS


@pytest.mark.slow
def test_a_model_learns_from_its_data_at_the_tiny_size():
    keras.utils.set_random_seed(1)
    workload = BENCHMARKS["bert"].workload("tiny")
    model = workload.model()
    x, y = workload.data(8 * workload.batch, 0)
    model.compile(optimizer=workload.optimizer(), loss=workload.loss, jit_compile=False)
    losses = []
    while len(losses) < 2 or (losses[-1] >= 0.97 * losses[0] and len(losses) < 12):
        losses += model.fit(x, y, batch_size=workload.batch, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.97 * losses[0]
