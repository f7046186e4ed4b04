"""Programs on a GPU run each product in the type that was asked for, with losses near float32's."""

import numpy as np
import pytest
import tensorflow as tf

from tests.hooks import running
from tests.hooks.test_executed import TOLERANCES, WATCHED, WAYS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not tf.config.list_physical_devices("GPU"), reason="TensorFlow sees no GPU here"
    ),
]
FRESH = "CUDA does not survive a fork"


def ran(site_folder, variables):
    """Each way of the program: what it gives, and the products that ran."""
    return running.run(["-c", WATCHED], site_folder, variables, fresh=FRESH).result


@pytest.fixture(scope="module")
def in_float32(site_folder):
    return ran(site_folder, {})


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def named(request, site_folder):
    variables = {
        running.SWITCH: "1",
        "AMP_TF_PRECISION": request.param,
        f"{running.SWITCH}_LOSS_SCALING": "0",
    }
    return request.param, ran(site_folder, variables)


@pytest.mark.parametrize("way", WAYS)
def test_each_product_on_a_gpu_runs_in_the_type_that_was_asked_for(way, named, in_float32):
    precision, found = named
    result, products = found[way]
    number = tf.as_dtype(precision).as_datatype_enum
    assert products
    assert [(op, name) for op, found_number, name in products if found_number != number] == []
    truth = in_float32[way][0]
    assert result != truth
    scale = np.abs(truth).max()
    np.testing.assert_allclose(result, truth, rtol=0, atol=TOLERANCES[precision] * scale)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_step_compiled_for_a_gpu_trains_as_in_float32(precision, site_folder):
    program = str(running.PROGRAMS.parent / "xla" / "programs" / "keras_jit.py")
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": precision}
    truth = running.run([program, "tf_keras"], site_folder, {}, fresh=FRESH).result["fit"]
    ended = running.run([program, "tf_keras"], site_folder, variables, fresh=FRESH)
    assert ended.converted > 0
    assert ended.warnings == []
    np.testing.assert_allclose(ended.result["fit"], truth, rtol=TOLERANCES[precision])
