"""Steps that apply their gradients themselves, sums that Grappler puts into variables, and batches with no numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.tools.comparing.steps import flat_step

BF16 = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
FORCED = amp_tf.AmpConfig(precision="bfloat16", target="cpu", force_f16=("lost",))
X = np.random.default_rng(0).normal(size=(32, 16)).astype("f")


def step_with(apply, rate):
    """A step whose gradient loses everything in 16 bit: it is a small difference of large numbers."""
    w = tf.Variable(tf.ones((16, 8)), name="w")

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(x, w) ** 2)
        gradient = tape.gradient(loss, w)
        with tf.name_scope("lost"):
            large = 50 * tf.reduce_max(x)
            gradient = gradient + large - large
        apply(w, rate * gradient)
        return loss

    return step


APPLY = {
    "assign_sub": lambda w, change: w.assign_sub(change),
    "assign": lambda w, change: w.assign(w - change),
    "op": lambda w, change: tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=1.0, delta=change),
}


@pytest.mark.parametrize("way", APPLY)
@pytest.mark.parametrize("rate", [0.1, 1e-9])
def test_gradients_are_compared_whatever_the_rate(way, rate):
    good = amp_tf.compare(step_with(APPLY[way], rate), [(X,)], BF16)
    bad = amp_tf.compare(step_with(APPLY[way], rate), [(X,)], FORCED)
    assert [(output.kind, output.is_good) for output in good.outputs] == [("result", True), ("update", True)]
    assert [(output.kind, output.is_good) for output in bad.outputs] == [("result", True), ("update", False)]


def test_no_sum_is_put_into_a_temporary_variable():
    """TensorFlow's memory optimizer does so where a CPU's 256 MiB seem to be short, as with a tied table of words."""
    table, kernel = tf.Variable(tf.ones((20_000, 64))), tf.Variable(tf.ones((64, 64)))

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            logits = tf.matmul(tf.matmul(tf.gather(table, ids), kernel), table, transpose_b=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)) + tf.reduce_sum(table**2)
        of_table, of_kernel = tape.gradient(loss, [table, kernel])
        table.assign_sub(0.1 * tf.convert_to_tensor(of_table))
        kernel.assign_sub(0.1 * of_kernel)
        return loss

    _, flat = flat_step(step, [(np.arange(1024),)], 1)
    ops = {node.op for node in flat.graph.node}
    assert "AddN" in ops
    assert "TemporaryVariable" not in ops


@pytest.mark.parametrize("x", [X[:0], np.full_like(X, np.nan)])
def test_batches_without_a_finite_number_are_not_healthy(x):
    w = tf.constant(np.ones((16, 8), "f"))
    with pytest.raises(amp_tf.GraphError, match="in float32 all outputs are empty, inf or nan"):
        amp_tf.compare(lambda x: tf.matmul(x, w), [(x,)], BF16)
