"""The usual kinds of model in a real Keras fit, forward and backward, by the variable alone."""

import json

import numpy as np
import pytest

from tests.hooks import running

PRODUCTS = ("MatMul", "Conv2D", "Einsum")  # and what is made of them: _FusedMatMul, Conv2DBackpropFilter, BatchMatMulV2
PROGRAM = running.PROGRAMS / "model_zoo.py"
# Losses of about 1.4, 8 significant bits, through 20 steps of Adam. Measured: at most 0.015 (the residual CNN).
TOLERANCE = 0.03

COUNTING = f"""
import runpy, json
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
import amp_tf
print(json.dumps({{op: counts for op, counts in amp_tf.report().counts_by_op().items()}}))
"""


@pytest.fixture(scope="module")
def runs(site_folder):
    f32 = running.run([str(PROGRAM)], site_folder, {})
    # The precision is named because these models are too small for 16 bit to pay; so named, all that can is converted.
    amp = running.run(["-c", COUNTING], site_folder, {**running.switched_on(), "AMP_TF_PRECISION": "bfloat16"})
    assert (f32.status, amp.status) == (0, 0), f32.err + amp.err
    losses, counts = map(json.loads, amp.out.strip().splitlines())
    return json.loads(f32.out), losses, counts


@pytest.mark.parametrize("model", ["mlp", "residual_cnn", "transformer_encoder", "lstm"])
def test_the_losses_of_20_steps_agree_with_float32(runs, model):
    f32, amp, _ = runs
    assert len(f32[model]) == len(amp[model]) == 20
    assert amp[model] != f32[model]  # it did compute in 16 bit
    np.testing.assert_allclose(amp[model], f32[model], atol=TOLERANCE, rtol=0)


def test_every_product_is_converted_forward_and_backward(runs):
    _, _, counts = runs
    products = {op: count for op, count in counts.items() if any(name in op for name in PRODUCTS)}
    assert {"MatMul", "Conv2DBackpropFilter", "Conv2DBackpropInput", "Einsum", "BatchMatMulV2"} <= products.keys()
    left = {op: count for op, count in products.items() if count[0] != count[1]}
    assert not left
    assert sum(converted for converted, _ in products.values()) > 80
