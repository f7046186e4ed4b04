"""Which ops lose more than a rounding in 16 bit, and where their sums are float32 for that."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import INACCURATE
from amp_tf.painting.reasons import Code
from tests.painting.painted import BF16_CPU, fetched, painted, rewritten
from tests.small_graphs import run

pytestmark = pytest.mark.cpu_dependent

PLAIN_CPU = Hardware(has_onednn=False)
# For tests that look at values: they are those of the kernels that this machine has.
HERE = Hardware.detect_cpu()
SAME = "strides=[1, 1, 1, 1] padding='SAME'"
#: The gradient of a bias, of 16,384 rows of ones.
DENSE = """
    ones = Const() value=float32[16384, 4]*1
    x = Const() value=float32[16384, 32]
    w = Const() value=float32[32, 16]*0
    v = Const() value=float32[16, 4]*0.25
    b = Const() value=float32[16]*0
    product = MatMul(x, w)
    y = BiasAdd(product, b)
    loss = MatMul(y, v)
    back = MatMul(ones, v) transpose_b=true
    bias_gradient = BiasAddGrad(back)
    fetch = Identity(bias_gradient)
"""
#: The same of a convolution.
CONVOLUTION = f"""
    x = Const() value=float32[8, 64, 64, 8]
    y = Const() value=float32[8, 64, 64, 4]*1
    w = Const() value=float32[1, 1, 4, 16]*0.9
    v = Const() value=float32[3, 3, 8, 16]
    sizes = Shape(v) out_type=int32
    back = Conv2D(y, w) {SAME}
    bias_gradient = BiasAddGrad(back)
    fetch = Identity(bias_gradient)
"""
WITH_FILTER = f"{CONVOLUTION}filter_gradient = Conv2DBackpropFilter(x, sizes, back) {SAME}"


def test_the_bias_gradient_of_a_dense_layer_is_summed_in_float32():
    _, new, nodes = rewritten(DENSE)
    assert nodes["bias_gradient"].reason.code is Code.SUMS
    np.testing.assert_allclose(fetched(new), 16384)


def test_onednn_computes_the_bias_gradient_of_a_convolution_with_the_filters():
    assert rewritten(WITH_FILTER)[2]["bias_gradient"].precision.is_f16
    for hardware in (PLAIN_CPU, Hardware(), dataclasses.replace(BF16_CPU, has_onednn=False)):
        nodes = rewritten(WITH_FILTER, hardware)[2]
        assert nodes["bias_gradient"].reason.code is Code.SUMS
        assert nodes["filter_gradient"].precision.is_f16


def test_the_bias_gradient_of_a_convolution_is_that_of_float32():
    old, new, _ = rewritten(WITH_FILTER, HERE)
    # The filter gradient must run for oneDNN to compute both; eight bits of each value.
    ends = ["fetch", "filter_gradient"]
    gradient = run(new, ends)[0]
    wanted = run(old, ends)[0]
    np.testing.assert_allclose(gradient, wanted, rtol=2e-2)


def test_it_is_summed_in_float32_where_no_filter_gradient_reads_the_same():
    old, new, nodes = rewritten(CONVOLUTION)
    assert nodes["bias_gradient"].reason.code is Code.SUMS
    np.testing.assert_allclose(fetched(new), fetched(old), rtol=2e-2)


@pytest.mark.parametrize(
    "settings",
    [
        {"force_f16": ("bias_gradient",)},
        {"level": "UNSAFE_FORCE_ALL"},
        {"precision": "float16", "target": "gpu"},  # kernels of GPUs sum in float32
    ],
)
def test_who_forces_a_sum_to_16_bit_gets_it_and_gpus_do(settings):
    assert rewritten(DENSE, **settings)[2]["bias_gradient"].precision.is_f16


@pytest.mark.parametrize(
    ("precision", "rule"), [("float16", Code.SUMS), ("bfloat16", Code.BETWEEN_ALLOW)]
)
def test_pools_of_large_averages_are_summed_in_float32_where_float16_would_be_infinite(
    precision, rule
):
    text = f"""
        x = Const() value=float32[1, 4, 4, 8]*300
        w = Const() value=float32[1, 1, 8, 8]*12.5
        v = Const() value=float32[1, 1, 8, 4]*{2.0**-18}
        y = Conv2D(x, w) {SAME}
        pool = AvgPool(y) ksize=[1, 2, 2, 1] strides=[1, 2, 2, 1] padding='SAME'
        last = Conv2D(pool, v) {SAME}
        fetch = Identity(last)
    """
    _, new, nodes = rewritten(text, precision=precision)
    assert nodes["pool"].reason.code is rule
    np.testing.assert_allclose(fetched(new), 30000 * 2.0**-15, rtol=2**-7)


def test_pools_are_summed_in_float32_unless_onednn_computes_them():
    """Eigen's kernel counts what it adds in bfloat16, too, up to 256: the mean of more numbers
    below 1 is 1.
    """
    text = f"""
        x = Placeholder() shape=[1, 32, 32, 8]
        w = Const() value=float32[1, 1, 8, 8]*0.125
        v = Const() value=float32[1, 1, 8, 4]*0.125
        y = Conv2D(x, w) {SAME}
        pool = AvgPool(y) ksize=[1, 32, 32, 1] strides=[1, 1, 1, 1] padding='VALID'
        last = Conv2D(pool, v) {SAME}
        fetch = Identity(last)
    """
    for hardware, rule in ((BF16_CPU, Code.BETWEEN_ALLOW), (PLAIN_CPU, Code.SUMS)):
        assert rewritten(text, hardware)[2]["pool"].reason.code is rule
    old, new, _ = rewritten(text, HERE)
    x = np.random.default_rng(0).uniform(size=(1, 32, 32, 8)).astype("float32")
    pooled = fetched(new, x=x)
    wanted = fetched(old, x=x)
    np.testing.assert_allclose(pooled, wanted, rtol=2**-6)


@pytest.mark.parametrize("op", sorted(INACCURATE))
def test_a_kernel_that_loses_small_results_is_not_used(op):
    result = painted(
        f"x = Placeholder()\ny = Placeholder()\na = MatMul(x, y)\ne = {op}(a)\nb = MatMul(e, y)",
        precision="bfloat16",
        target="cpu",
    )
    assert result.f16 == "a b"
    assert result.code("e") is Code.INACCURATE
