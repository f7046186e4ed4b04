"""Which ops lose more than a rounding in 16 bit, and where their sums are float32 for that."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import INACCURATE
from amp_tf.painting.reasons import Code
from tests.painting.painted import BF16_CPU, painted, rewritten
from tests.small_graphs import run

pytestmark = pytest.mark.cpu_dependent

v1 = tf.compat.v1
PLAIN_CPU = Hardware(has_onednn=False)
HERE = (
    Hardware.detect_cpu()
)  # for tests that look at values: they are those of the kernels that this machine has
rng = np.random.default_rng(0)


def dense_gradients():
    x = tf.constant(rng.normal(size=(16384, 32)).astype("float32"))
    y = tf.nn.bias_add(tf.matmul(x, tf.zeros((32, 16)), name="product"), tf.zeros(16))
    loss = tf.reduce_sum(tf.matmul(y, tf.fill((16, 4), 0.25), name="loss"))
    tf.identity(
        tf.raw_ops.BiasAddGrad(out_backprop=tf.gradients(loss, y)[0], name="bias_gradient"),
        name="fetch",
    )


def test_the_bias_gradient_of_a_dense_layer_is_summed_in_float32():
    _, new, nodes = rewritten(dense_gradients)
    assert nodes["bias_gradient"].reason.code is Code.SUMS
    np.testing.assert_allclose(run(new, ["fetch"])[0], 16384)


def convolution_gradients(with_filter=True):
    x = tf.constant(rng.normal(size=(8, 64, 64, 8)).astype("float32"))
    w = tf.constant(rng.uniform(0.5, 1.5, (1, 1, 4, 16)).astype("float32"))
    y = tf.ones((8, 64, 64, 4))
    back = tf.nn.conv2d(y, w, 1, "SAME", name="back")
    if with_filter:
        v1.nn.conv2d_backprop_filter(
            x, (3, 3, 8, 16), back, (1, 1, 1, 1), "SAME", name="filter_gradient"
        )
    tf.identity(tf.raw_ops.BiasAddGrad(out_backprop=back, name="bias_gradient"), name="fetch")


def test_onednn_computes_the_bias_gradient_of_a_convolution_with_the_filters():
    assert rewritten(convolution_gradients)[2]["bias_gradient"].precision.is_f16
    for hardware in (PLAIN_CPU, Hardware(), dataclasses.replace(BF16_CPU, has_onednn=False)):
        nodes = rewritten(convolution_gradients, hardware)[2]
        assert nodes["bias_gradient"].reason.code is Code.SUMS
        assert nodes["filter_gradient"].precision.is_f16


def test_the_bias_gradient_of_a_convolution_is_that_of_float32():
    old, new, _ = rewritten(convolution_gradients, HERE)
    # the filter gradient must run for oneDNN to compute both; eight bits of each value
    expected = run(old, ["fetch", "filter_gradient"])
    got = run(new, ["fetch", "filter_gradient"])
    np.testing.assert_allclose(got[0], expected[0], rtol=2e-2)


def test_it_is_summed_in_float32_where_no_filter_gradient_reads_the_same():
    old, new, nodes = rewritten(lambda: convolution_gradients(with_filter=False))
    assert nodes["bias_gradient"].reason.code is Code.SUMS
    np.testing.assert_allclose(run(new, ["fetch"])[0], run(old, ["fetch"])[0], rtol=2e-2)


def test_who_forces_a_sum_to_16_bit_gets_it():
    for settings in ({"force_f16": ("bias_gradient",)}, {"level": "UNSAFE_FORCE_ALL"}):
        assert rewritten(dense_gradients, **settings)[2]["bias_gradient"].precision.is_f16


def test_float16_keeps_its_bias_gradients():
    """On GPUs, whose kernels sum in float32."""
    nodes = rewritten(dense_gradients, precision="float16", target="gpu")[2]
    assert nodes["bias_gradient"].precision.is_f16


def test_pools_of_large_averages_are_summed_in_float32_where_float16_would_be_infinite():
    def build():
        x = tf.fill((1, 4, 4, 8), 300.0)
        y = tf.nn.conv2d(x, tf.fill((1, 1, 8, 8), 12.5), 1, "SAME")  # 30,000 each
        pooled = tf.nn.avg_pool2d(y, 2, 2, "SAME", name="pool")
        tf.identity(tf.nn.conv2d(pooled, tf.fill((1, 1, 8, 4), 2.0**-18), 1, "SAME"), name="fetch")

    for precision, rule in (("float16", Code.SUMS), ("bfloat16", Code.BETWEEN_ALLOW)):
        _, new, nodes = rewritten(build, precision=precision)
        assert nodes["pool"].reason.code is rule
        np.testing.assert_allclose(run(new, ["fetch"])[0], 30000 * 2.0**-15, rtol=2**-7)


def test_pools_are_summed_in_float32_unless_onednn_computes_them():
    """Eigen's kernel counts what it adds in bfloat16, too, up to 256: the mean of more numbers
    below 1 is 1.
    """

    def build():
        x = tf.random.uniform(
            (1, 32, 32, 8), seed=1
        )  # a constant would be folded, by Eigen's kernels everywhere
        y = tf.nn.conv2d(x, tf.fill((1, 1, 8, 8), 0.125), 1, "SAME")
        pooled = tf.nn.avg_pool2d(y, 32, 1, "VALID", name="pool")
        tf.identity(tf.nn.conv2d(pooled, tf.fill((1, 1, 8, 4), 0.125), 1, "SAME"), name="fetch")

    for hardware, rule in ((BF16_CPU, Code.BETWEEN_ALLOW), (PLAIN_CPU, Code.SUMS)):
        assert rewritten(build, hardware)[2]["pool"].reason.code is rule
    old, new, _ = rewritten(build, HERE)
    np.testing.assert_allclose(run(new, ["fetch"])[0], run(old, ["fetch"])[0], rtol=2**-6)


@pytest.mark.parametrize("op", sorted(INACCURATE))
def test_a_kernel_that_loses_small_results_is_not_used(op):
    result = painted(
        f"x = Placeholder()\ny = Placeholder()\na = MatMul(x, y)\ne = {op}(a)\nb = MatMul(e, y)",
        precision="bfloat16",
        target="cpu",
    )
    assert result.f16 == "a b"
    assert result.code("e") is Code.INACCURATE
