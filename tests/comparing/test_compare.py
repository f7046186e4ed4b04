"""``amp_tf.compare`` finds errors in models and steps, and gives them as text and as data."""

from __future__ import annotations

import dataclasses

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.oplists.hardware import Hardware
from amp_tf.tools.comparing.steps import flat_step
from amp_tf.tools.comparing.verdicts import error_text
from tests.comparing.planted import PLANTED, normal

BF16 = amp_tf.AmpConfig(precision="bfloat16", target="cpu")
F16 = amp_tf.AmpConfig(precision="float16", target="cpu")


def _model(seed):
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="relu"),
            layers.LayerNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(2):
        batches.append((rng.normal(size=(8, 6)).astype(np.float32), rng.integers(0, 3, 8)))
    return model, batches


@pytest.mark.parametrize(("seed", "config"), [(0, BF16), (1, F16), (2, BF16), (3, F16)])
def test_a_healthy_model_is_healthy_four_times_of_four(seed, config):
    found = amp_tf.compare(*_model(seed), config)
    assert found.is_healthy
    assert (found.findings, found.patterns, found.line) == ((), (), "")
    worst = max(found.outputs, key=lambda output: (output.ratio, output.error))
    assert 0 < worst.error < 0.25
    assert worst.ratio <= 4
    assert {output.kind for output in found.outputs} == {"loss", "gradient", "result"}
    assert f"healthy in {config.precision}" in repr(found).splitlines()[0]
    told = (
        f"closest to its limit is the {worst.title}: its error is {error_text(worst.error)}, "
        f"a ratio of {worst.ratio:.2g}; above 4 it would be wrong."
    )
    assert told in str(found)


def _distance(value, truth):
    return np.linalg.norm(value - truth) / np.linalg.norm(truth)


@pytest.mark.parametrize(("config", "dtype"), [(BF16, ml_dtypes.bfloat16), (F16, np.float16)])
def test_the_figures_are_those_of_numpy(config, dtype):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(6, 5)).astype(np.float32)
    x = rng.normal(size=(4, 6)).astype(np.float32)
    found = amp_tf.compare(lambda x: tf.exp(tf.matmul(x, w, name="product")), [x], config)
    truth = x.astype(np.float64) @ w
    product = x.astype(dtype).astype(np.float32) @ w.astype(dtype).astype(np.float32)
    value = product.astype(dtype).astype(np.float64)
    (node,) = [node for node in found.nodes if node.name == "product"]
    # Sums of float32: their last bits differ.
    assert node.accumulated == pytest.approx(_distance(value, truth), rel=1e-3)
    assert node.local == pytest.approx(node.accumulated)
    assert node.largest == pytest.approx(np.abs(truth).max(), rel=1e-6)
    (result,) = found.outputs
    assert result.error == pytest.approx(_distance(np.exp(value), np.exp(truth)), rel=1e-3)
    assert result.ideal == pytest.approx(result.error)


def test_what_cancels_to_nothing_in_float32_too_is_no_finding():
    keras.utils.set_random_seed(0)
    x = keras.Input((6, 8))
    y = keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    model = keras.Model(x, keras.layers.Dense(2)(keras.layers.LayerNormalization()(x + y)))
    model.compile("adam", "mse")
    inputs = normal(0, 4, 6, 8)
    found = amp_tf.compare(model, [(inputs, np.ones((4, 6, 2), np.float32))], BF16)
    assert found.is_healthy
    # Softmax does not see this bias: its gradient is zero but for rounding.
    (bias,) = [output for output in found.outputs if output.name.endswith("key/bias")]
    assert bias.noise > 0.01
    assert bias.ratio == 0
    assert found.worst.has_truth
    assert found.worst.local < 0.02


def test_a_step_that_only_writes_variables_is_compared():
    weight = tf.Variable(normal(1, 16, 16), name="weight")
    largest = tf.Variable(0.0, name="weight")  # as those of tf.Module may be called

    def step(x):
        weight.assign_sub(1e-2 * tf.matmul(x, weight))
        largest.assign(
            tf.reduce_max(weight), read_value=False
        )  # so that its graph does not list it

    found = amp_tf.compare(step, [normal(2, 16, 16)], BF16)
    assert [output.name for output in found.outputs] == ["weight (1 of 2)", "weight (2 of 2)"]
    assert found.is_healthy


def test_random_ops_draw_the_same_in_all_forms():
    def noisy(x):
        shuffled = tf.random.shuffle(tf.matmul(x, x))  # which has no form without state
        return shuffled + tf.random.normal((6, 6)) + tf.random.stateless_normal((6, 6), (1, 2))

    found = amp_tf.compare(noisy, [normal(0, 6, 6)] * 3, BF16)
    assert found.is_healthy
    assert found.outputs[0].error < 0.01


def test_loops_and_branches_are_compared_by_what_they_give_out():
    w = tf.constant(normal(0, 6, 6) / 3)

    def looping(x):
        for _ in tf.range(3):
            x = tf.tanh(tf.matmul(x, w), name="inside")
        branch = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, w, name="inside"), lambda: x)
        return branch + tf.matmul(x, w, name="after")

    batch = normal(0, 4, 6)
    found = amp_tf.compare(looping, [batch], BF16)
    assert found.is_healthy
    names = [node.name for node in found.nodes]
    assert "after" in names
    assert not [name for name in names if "inside" in name]
    assert "Note: nodes inside of loops are not measured" in str(found)


def test_the_line_keeps_what_the_user_keeps_already():
    planted = PLANTED["inputs"]
    batches = [planted.batch(np.random.default_rng(3))]
    config = amp_tf.AmpConfig(precision="float16", target="cpu", keep_float32=("^mine$",))
    found = amp_tf.compare(planted.make(), batches, config)
    assert found.patterns[0] == "^mine$"
    assert len(found.patterns) > 1
    assert found.line.startswith("AMP_TF_KEEP_FLOAT32='^mine$,")


FORCED = amp_tf.AmpConfig(precision="bfloat16", target="cpu", force_f16=("lost",))
X = normal(0, 32, 16)


def step_with(apply, rate):
    """A step whose gradient loses everything in 16 bit: a small difference of large numbers."""
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
    "op": lambda w, change: tf.raw_ops.ResourceApplyGradientDescent(
        var=w.handle, alpha=1.0, delta=change
    ),
}


@pytest.mark.parametrize("way", APPLY)
@pytest.mark.parametrize("rate", [0.1, 1e-9])
def test_gradients_are_compared_whatever_the_rate(way, rate):
    for config, is_good in ((BF16, True), (FORCED, False)):
        found = amp_tf.compare(step_with(APPLY[way], rate), [(X,)], config)
        result, update = found.outputs
        assert (result.kind, result.is_good) == ("result", True)
        assert (update.kind, update.is_good) == ("update", is_good)


def test_no_sum_is_put_into_a_temporary_variable():
    """TensorFlow's memory optimizer does so where a CPU's 256 MiB seem to be short, as with a tied
    table of words.
    """
    table = tf.Variable(tf.ones((20_000, 64)))
    kernel = tf.Variable(tf.ones((64, 64)))

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            logits = tf.matmul(tf.matmul(tf.gather(table, ids), kernel), table, transpose_b=True)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)
            ) + tf.reduce_sum(table**2)
        of_table, of_kernel = tape.gradient(loss, [table, kernel])
        table.assign_sub(0.1 * tf.convert_to_tensor(of_table))
        kernel.assign_sub(0.1 * of_kernel)
        return loss

    flat = flat_step(step, [(np.arange(1024),)], 1)
    ops = {node.op for node in flat.graph.node}
    assert "AddN" in ops
    assert "TemporaryVariable" not in ops


@pytest.mark.parametrize("x", [X[:0], np.full_like(X, np.nan), np.zeros_like(X)])
def test_batches_without_a_number_are_not_healthy(x):
    w = tf.constant(np.ones((16, 8), "f"))
    with pytest.raises(
        amp_tf.GraphError, match="in float32 all outputs are empty, zero, inf or nan"
    ):
        amp_tf.compare(lambda x: tf.matmul(x, w), [(x,)], BF16)


@pytest.fixture(scope="module")
def found():
    def product(x):
        w = tf.constant(np.ones((6, 6), np.float32))
        with tf.name_scope("a_layer_of_a_very_long_name" * 4):
            return tf.matmul(x, w, name="beyond_the_range")

    x = np.full((4, 6), 5e4, np.float32)
    return amp_tf.compare(product, [x], amp_tf.AmpConfig(precision="float16", target="cpu"))


def test_where_nothing_fixes_it_that_is_said(found):
    without = dataclasses.replace(found, patterns=())
    assert without.line == without.worth == ""
    told = "No setting fixes it: some outputs stay wrong even with every float16 node in float32."
    assert told in str(without)
    assert "What to write" in str(found)
    assert "What to write" not in str(without)


def test_an_output_of_which_float32_has_no_digits_is_told_and_is_not_the_closest(found):
    clear = dataclasses.replace(
        found.outputs[0], error=0.07, ideal=0.06, noise=1e-6, ratio=1.2, is_good=True
    )
    blind = dataclasses.replace(
        clear, kind="gradient", name="key/bias", error=6.5456, noise=5.1, ratio=0.0
    )
    healthy = dataclasses.replace(found, outputs=(blind, clear), findings=(), patterns=())
    assert str(healthy).splitlines()[1:3] == [
        "The output closest to its limit is the result: its error is 7.00 %, a ratio of 1.2; above "
        "4 it would be wrong.",
        "1 output could only be checked for inf and nan: float32 itself does not get two digits "
        "of them right.",
    ]


FOR_A_GPU = amp_tf.AmpConfig(precision="float16", target="gpu")
GPU = Hardware(gpu_capabilities=((8, 0),))


@pytest.mark.parametrize(
    ("config", "hardware"), [(FOR_A_GPU, GPU), (F16, None)], ids=["for a GPU", "for a CPU"]
)
def test_a_float16_product_is_that_of_tensor_cores(config, hardware):
    """The sum of 4,096 numbers is float32's: kept in float16 it would be off by percents."""
    random = np.random.default_rng(0)
    x = random.uniform(0.0, 1.0, (4, 4096)).astype(np.float32)
    w = random.uniform(0.0, 1.0, (4096, 4)).astype(np.float32)

    def product(x):
        return tf.matmul(x, tf.constant(w), name="product")

    found = amp_tf.compare(product, [x], config, hardware=hardware)
    rounded_x = x.astype(np.float16).astype(np.float32)
    rounded_w = w.astype(np.float16).astype(np.float32)
    error = _distance((rounded_x @ rounded_w).astype(np.float16), x @ w)
    assert found.outputs[0].error == pytest.approx(error, rel=0.01)
    (node,) = [node for node in found.nodes if node.name == "product"]
    assert node.is_f16
    assert (node.accumulated, node.local) == pytest.approx((error, error), rel=0.01)
    large = amp_tf.compare(product, [128 * x], config, hardware=hardware)
    assert large.outputs[0].error == np.inf  # beyond 65,504
    assert large.findings[0].kind == "overflow"
