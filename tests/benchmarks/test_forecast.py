"""What the cost model expects beside what was measured; the model is asked for real."""

import pytest

from amp_tf.oplists.hardware import Hardware
from benchmarks.step_time import forecast


@pytest.mark.skipif(not Hardware.detect_cpu().cpu_gains, reason="auto converts nothing on this CPU")
def test_a_wide_product_is_expected_to_save_time():
    saved = forecast.expect("autoencoder", "predict")
    assert 0.1 < saved.total < saved.products < 100
    assert saved.casts > 0
