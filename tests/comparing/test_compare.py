"""``amp_tf.compare`` finds errors in models and steps, and gives them as text and as data."""

from __future__ import annotations

import dataclasses
import json

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import PRODUCTS
from amp_tf.precision import Precision
from amp_tf.tools.comparing.comparison import Comparison
from amp_tf.tools.comparing.steps import flat_step
from amp_tf.tools.comparing.verdicts import Statistics, figure, judge
from tests.comparing.planted import PLANTED

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
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(seed)
    return model, [
        (rng.normal(size=(8, 6)).astype(np.float32), rng.integers(0, 3, 8)) for _ in range(2)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_model_is_healthy_four_times_of_four(seed):
    found = amp_tf.compare(*_model(seed), (BF16, F16)[seed % 2])
    assert found.is_healthy
    assert (found.findings, found.patterns, found.line) == ((), (), "")
    worst = max(found.outputs, key=lambda output: (output.ratio, output.error))
    assert 0 < worst.error < 0.25
    assert worst.ratio <= 4
    assert {output.kind for output in found.outputs} == {"loss", "gradient", "result"}
    assert f"healthy in {found.precision.value}" in str(found).splitlines()[0]
    told = (
        f"closest to its limit is the {worst.title}: its error is {figure(worst.error)}, a ratio "
        f"of {worst.ratio:.2g}; above 4 it would be wrong."
    )
    assert told in str(found)


@pytest.mark.parametrize(("config", "dtype"), [(BF16, ml_dtypes.bfloat16), (F16, np.float16)])
def test_the_figures_are_those_of_numpy(config, dtype):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(6, 5)).astype(np.float32)
    batches = [rng.normal(size=(4, 6)).astype(np.float32) for _ in range(3)]
    found = amp_tf.compare(lambda x: tf.exp(tf.matmul(x, w, name="product")), batches, config)

    def both(x):
        # In 16 bit as TensorFlow's kernel here adds, which on some CPUs is in bfloat16.
        return x.astype(np.float64) @ w, np.float64(
            tf.cast(tf.matmul(x.astype(dtype), w.astype(dtype)), tf.float32)
        )

    def distance(value, truth):
        return np.linalg.norm(value - truth) / np.linalg.norm(truth)

    def off(x):
        truth, value = both(x)
        return distance(np.exp(value), np.exp(truth))

    furthest = max(batches, key=off)  # which is judged, and whose nodes are looked at
    truth, value = both(furthest)
    node = next(node for node in found.nodes if node.name == "product")
    assert node.accumulated == pytest.approx(
        distance(value, truth), rel=1e-3
    )  # float32's sums: their last bits differ
    assert node.local == pytest.approx(node.accumulated)
    assert node.largest == pytest.approx(np.abs(truth).max(), rel=1e-6)
    result = found.outputs[0]
    assert result.error == pytest.approx(off(furthest), rel=1e-3)
    assert result.ideal == pytest.approx(result.error)


def test_what_cancels_to_nothing_in_float32_too_is_no_finding():
    keras.utils.set_random_seed(0)
    x = keras.Input((6, 8))
    y = keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    model = keras.Model(x, keras.layers.Dense(2)(keras.layers.LayerNormalization()(x + y)))
    model.compile("adam", "mse")
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(4, 6, 8)).astype(np.float32), np.ones((4, 6, 2), np.float32)
    found = amp_tf.compare(model, [batch], BF16)
    assert found.is_healthy
    key = next(output for output in found.outputs if output.name.endswith("key/bias"))
    assert (key.noise > 0.01, key.ratio) == (
        True,
        0,
    )  # softmax does not see it: its gradient is zero but for rounding
    assert any(not node.has_truth for node in found.nodes)
    assert found.worst.has_truth
    assert found.worst.local < 0.02


def test_share_of_underflow():
    found = PLANTED["loss"].compare("float16")
    first = next(node for node in found.nodes if node.name == found.findings[0].node)
    assert first.underflow > 0.5
    assert first.largest < 6e-7
    assert f"{first.underflow:.0%} of its result becomes zero" in found.findings[0].why


def test_a_step_that_only_writes_variables_is_compared():
    weight = tf.Variable(
        np.random.default_rng(1).normal(size=(16, 16)).astype("float32"), name="weight"
    )
    largest = tf.Variable(0.0, name="weight")  # as those of tf.Module may be called

    def step(x):
        weight.assign_sub(1e-2 * tf.matmul(x, weight))
        largest.assign(
            tf.reduce_max(weight), read_value=False
        )  # so that its graph does not list it

    found = amp_tf.compare(
        step, [np.random.default_rng(2).normal(size=(16, 16)).astype("float32")], BF16
    )
    assert [output.name for output in found.outputs] == ["weight (1 of 2)", "weight (2 of 2)"]
    assert found.is_healthy


def test_random_ops_draw_the_same_in_all_forms():
    def noisy(x):
        shuffled = tf.random.shuffle(tf.matmul(x, x))  # which has no form without state
        return shuffled + tf.random.normal((6, 6)) + tf.random.stateless_normal((6, 6), (1, 2))

    found = amp_tf.compare(
        noisy, [np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)] * 3, BF16
    )
    assert found.is_healthy
    assert found.outputs[0].error < 0.01


def test_loops_and_branches_are_compared_by_what_they_give_out():
    w = tf.constant(np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32) / 3)

    def looping(x):
        for _ in tf.range(3):
            x = tf.tanh(tf.matmul(x, w))
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, w), lambda: x) + tf.matmul(
            x, w, name="after"
        )

    rng = np.random.default_rng(0)
    found = amp_tf.compare(
        looping, [rng.normal(size=(4, 6)).astype(np.float32) for _ in range(4)], BF16
    )
    assert found.is_healthy
    assert "after" in {node.name for node in found.nodes}
    assert "Note: nodes inside of loops are not measured" in str(found)


def test_another_process_gets_the_same_comparison():
    found = PLANTED["mask"].compare("float16")
    assert found.findings[0].local_error == np.inf
    again = Comparison.of_plain(json.loads(json.dumps(found.to_plain())))
    assert str(again) == str(found)
    assert again.why(again.patterns) == found.why(found.patterns) != {}
    assert [node.local for node in again.nodes] == [node.local for node in found.nodes]


def test_the_line_keeps_what_the_user_keeps_already():
    planted = PLANTED["inputs"]
    batches = [planted.batch(np.random.default_rng(3))]
    config = amp_tf.AmpConfig(precision="float16", target="cpu", keep_float32=("^mine$",))
    found = amp_tf.compare(planted.make(), batches, config)
    assert found.patterns[0] == "^mine$"
    assert len(found.patterns) > 1
    assert found.line.startswith("AMP_TF_KEEP_FLOAT32='^mine$,")


def test_where_the_ideal_is_as_far_off_there_is_no_more_to_ask():
    right, off = (Statistics(32, error, 0.0, 0.0, 0.0, 0.0) for error in (0.0, np.inf))
    (output,) = judge([("result", "accuracy")], [off], [off], [right], [off], Precision.BFLOAT16)
    assert output.ratio == 1


FORCED = amp_tf.AmpConfig(precision="bfloat16", target="cpu", force_f16=("lost",))
X = np.random.default_rng(0).normal(size=(32, 16)).astype("f")


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
    good = amp_tf.compare(step_with(APPLY[way], rate), [(X,)], BF16)
    bad = amp_tf.compare(step_with(APPLY[way], rate), [(X,)], FORCED)
    assert [(output.kind, output.is_good) for output in good.outputs] == [
        ("result", True),
        ("update", True),
    ]
    assert [(output.kind, output.is_good) for output in bad.outputs] == [
        ("result", True),
        ("update", False),
    ]


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
        "The output closest to its limit is the result: its error is 7.00%, a ratio of 1.2; above "
        "4 it would be wrong.",
        "1 output could only be checked for inf and nan: float32 itself does not get two digits "
        "of them right.",
    ]


def test_what_is_to_be_done_first_stands_above_the_verdict_and_no_setting_below(found):
    first = dataclasses.replace(found, headline="step does not scale its loss. First scale it.")
    assert str(first).splitlines()[:2] == [first.headline, str(found).splitlines()[0]]
    assert "What to write" in str(found)
    assert "What to write" not in str(first)


FOR_A_GPU = amp_tf.AmpConfig(precision="float16", target="gpu")
GPU = Hardware(gpu_capabilities=((8, 0),))


@pytest.mark.parametrize(
    ("config", "hardware"), [(FOR_A_GPU, GPU), (F16, None)], ids=["for a GPU", "for a CPU"]
)
def test_a_float16_product_is_that_of_tensor_cores(config, hardware):
    """The sum of 4,096 numbers is float32's: kept in float16 it would be off by percents."""
    random = np.random.default_rng(0)
    x, w = (random.uniform(0.0, 1.0, shape).astype(np.float32) for shape in ((4, 4096), (4096, 4)))

    def product(x):
        return tf.matmul(x, tf.constant(w), name="product")

    found = amp_tf.compare(product, [x], config, hardware=hardware)
    rounded_x, rounded_w = (values.astype(np.float16).astype(np.float32) for values in (x, w))
    emulated = (rounded_x @ rounded_w).astype(np.float16)
    error = float(np.linalg.norm(emulated - x @ w) / np.linalg.norm(x @ w))
    assert found.outputs[0].error == pytest.approx(error, rel=0.01)
    (node,) = (node for node in found.nodes if node.name == "product")
    assert node.is_f16
    assert (node.accumulated, node.local) == pytest.approx((error, error), rel=0.01)
    large = amp_tf.compare(product, [128 * x], config, hardware=hardware)
    assert (large.outputs[0].error, large.findings[0].kind) == (np.inf, "overflow")  # beyond 65,504


def test_no_product_of_a_convolutional_models_step_runs_in_a_float16_kernel():
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )
    model.compile("sgd", "mse")
    random = np.random.default_rng(0)
    batch = [random.standard_normal(shape).astype(np.float32) for shape in ((2, 8, 8, 3), (2, 2))]
    flat = flat_step(model, [tuple(batch)], 1)
    result = flat.rewritten(FOR_A_GPU, dataclasses.replace(GPU, imitates_gpu=True))
    products = {node.name: node for node in result.graph.node if node.op in PRODUCTS}
    converted = {node.name: node.precision for node in result.report.nodes if node.op in PRODUCTS}
    assert {node.op for node in products.values()} == {"Conv2D", "Conv2DBackpropFilter", "MatMul"}
    assert {precision.value for precision in converted.values()} == {"float16"}
    assert {node.attr["T"].type for node in products.values()} == {tf.float32.as_datatype_enum}
