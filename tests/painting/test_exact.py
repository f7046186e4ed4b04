"""What must be computed in float32 although the lists would convert it, by the rules and in numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import INACCURATE
from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

v1 = tf.compat.v1
BF16_CPU = Hardware(cpu_has_bf16=True)
PLAIN_CPU = Hardware(has_onednn=False)
HERE = Hardware.detect_cpu()  # for tests that look at values: they are those of the kernels that this machine has
rng = np.random.default_rng(0)


def rewritten(build, hardware=BF16_CPU, **settings):
    """Builds a graph and rewrites it; the graph, what it became, and the decisions by name."""
    settings.setdefault("precision", "bfloat16")
    with tf.Graph().as_default() as graph:
        build()
    graph_def = graph.as_graph_def(add_shapes=True)
    result = amp_tf.rewrite(graph_def, amp_tf.AmpConfig(**settings), preserve=["fetch"], hardware=hardware)
    return graph_def, result.graph, {node.name: node for node in result.report.nodes}


def run(graph_def, *fetches):
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        return session.run([f"{name}:0" for name in fetches])


# ---------------------------------------------------------------- sums


def dense_gradients():
    x = tf.constant(rng.normal(size=(16384, 32)).astype("float32"))
    y = tf.nn.bias_add(tf.matmul(x, tf.zeros((32, 16)), name="product"), tf.zeros(16))
    loss = tf.reduce_sum(tf.matmul(y, tf.fill((16, 4), 0.25), name="loss"))
    tf.identity(tf.raw_ops.BiasAddGrad(out_backprop=tf.gradients(loss, y)[0], name="bias_gradient"), name="fetch")


def test_the_bias_gradient_of_a_dense_layer_is_summed_in_float32():
    _, new, nodes = rewritten(dense_gradients)
    assert nodes["bias_gradient"].reason.rule is Rule.SUMS
    np.testing.assert_allclose(run(new, "fetch")[0], 16384)


def convolution_gradients(with_filter=True):
    x = tf.constant(rng.normal(size=(8, 64, 64, 8)).astype("float32"))
    w = tf.constant(rng.uniform(0.5, 1.5, (1, 1, 4, 16)).astype("float32"))
    y = tf.ones((8, 64, 64, 4))
    back = tf.nn.conv2d(y, w, 1, "SAME", name="back")
    if with_filter:
        v1.nn.conv2d_backprop_filter(x, (3, 3, 8, 16), back, (1, 1, 1, 1), "SAME", name="filter_gradient")
    tf.identity(tf.raw_ops.BiasAddGrad(out_backprop=back, name="bias_gradient"), name="fetch")


def test_onednn_computes_the_bias_gradient_of_a_convolution_with_the_filters():
    assert rewritten(convolution_gradients)[2]["bias_gradient"].precision.is_f16
    for hardware in (PLAIN_CPU, Hardware(), dataclasses.replace(BF16_CPU, has_onednn=False)):
        nodes = rewritten(convolution_gradients, hardware)[2]
        assert nodes["bias_gradient"].reason.rule is Rule.SUMS
        assert nodes["filter_gradient"].precision.is_f16


def test_the_bias_gradient_of_a_convolution_is_that_of_float32():
    old, new, _ = rewritten(convolution_gradients, HERE)
    # the filter gradient must run for oneDNN to compute both; eight bits of each value
    expected, got = run(old, "fetch", "filter_gradient"), run(new, "fetch", "filter_gradient")
    np.testing.assert_allclose(got[0], expected[0], rtol=2e-2)


def test_it_is_summed_in_float32_where_no_filter_gradient_reads_the_same():
    old, new, nodes = rewritten(lambda: convolution_gradients(with_filter=False))
    assert nodes["bias_gradient"].reason.rule is Rule.SUMS
    np.testing.assert_allclose(run(new, "fetch")[0], run(old, "fetch")[0], rtol=2e-2)


def test_who_forces_a_sum_to_16_bit_gets_it():
    for settings in ({"force_f16": ("bias_gradient",)}, {"level": "UNSAFE_FORCE_ALL"}):
        assert rewritten(dense_gradients, **settings)[2]["bias_gradient"].precision.is_f16


def test_float16_keeps_its_bias_gradients():
    """On GPUs, whose kernels sum in float32."""
    nodes = rewritten(dense_gradients, precision="float16", target="gpu")[2]
    assert nodes["bias_gradient"].precision.is_f16


def scattered():
    messages = tf.matmul(tf.ones((1000, 8)), tf.fill((8, 4), 0.125), name="product")
    nodes = tf.scatter_nd(tf.zeros((1000, 1), tf.int32), messages, (2, 4), name="sums")
    tf.identity(tf.matmul(nodes, tf.ones((4, 4))), name="fetch")


def test_pools_of_large_averages_are_summed_in_float32_where_float16_would_be_infinite():
    def build():
        x = tf.fill((1, 4, 4, 8), 300.0)
        y = tf.nn.conv2d(x, tf.fill((1, 1, 8, 8), 12.5), 1, "SAME")  # 30,000 each
        pooled = tf.nn.avg_pool2d(y, 2, 2, "SAME", name="pool")
        tf.identity(tf.nn.conv2d(pooled, tf.fill((1, 1, 8, 4), 2.0**-18), 1, "SAME"), name="fetch")

    for precision, rule in (("float16", Rule.SUMS), ("bfloat16", Rule.BETWEEN_ALLOW)):
        _, new, nodes = rewritten(build, precision=precision)
        assert nodes["pool"].reason.rule is rule
        np.testing.assert_allclose(run(new, "fetch")[0], 30000 * 2.0**-15, rtol=2**-7)


def test_pools_are_summed_in_float32_unless_onednn_computes_them():
    """Eigen's kernel counts what it adds in bfloat16, too, up to 256: the mean of more numbers below 1 is 1."""

    def build():
        x = tf.random.uniform((1, 32, 32, 8), seed=1)  # a constant would be folded, by Eigen's kernels everywhere
        y = tf.nn.conv2d(x, tf.fill((1, 1, 8, 8), 0.125), 1, "SAME")
        pooled = tf.nn.avg_pool2d(y, 32, 1, "VALID", name="pool")
        tf.identity(tf.nn.conv2d(pooled, tf.fill((1, 1, 8, 4), 0.125), 1, "SAME"), name="fetch")

    for hardware, rule in ((BF16_CPU, Rule.BETWEEN_ALLOW), (PLAIN_CPU, Rule.SUMS)):
        assert rewritten(build, hardware)[2]["pool"].reason.rule is rule
    old, new, _ = rewritten(build, HERE)
    np.testing.assert_allclose(run(new, "fetch")[0], run(old, "fetch")[0], rtol=2**-6)


def test_scattered_values_are_summed_in_float32():
    _, new, nodes = rewritten(scattered)
    assert nodes["sums"].reason.rule is Rule.SUMS
    np.testing.assert_allclose(run(new, "fetch")[0][0], 4000, rtol=1e-2)


# ---------------------------------------------------------------- variables


def trained(build, precision, steps, **settings):
    """What a graph's variable and the decisions on its nodes are, after steps of ``update`` in a rewritten graph."""
    with tf.Graph().as_default() as graph:
        build()
        initialize = v1.global_variables_initializer().name
    config = amp_tf.AmpConfig(precision=precision, **settings)
    kept = [initialize, "update", "fetch", "variable/Read/ReadVariableOp"]
    result = amp_tf.rewrite(graph.as_graph_def(add_shapes=True), config, preserve=kept, hardware=BF16_CPU)
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(result.graph, name="")
        session.run(initialize)
        for _ in range(steps):
            session.run(["update", "fetch:0"])
        return session.run("variable/Read/ReadVariableOp:0"), {node.name: node for node in result.report.nodes}


def batch_normalization():
    moving = v1.get_variable("variable", initializer=np.full(16, 3.0, "float32"), use_resource=True)
    x = tf.matmul(tf.ones((64, 8)), tf.fill((8, 16), 0.125), name="product")
    mean = tf.reduce_mean(x, 0, name="mean")
    new = tf.add(tf.multiply(moving.read_value(), 0.99, name="old"), tf.multiply(mean, 0.01, name="change"), name="new")
    tf.group(moving.assign(new), name="update")
    tf.identity(tf.matmul(tf.multiply(x, mean, name="weighted"), tf.ones((16, 4))), name="fetch")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_moving_average_reaches_what_it_averages(precision):
    value, nodes = trained(batch_normalization, precision, 600)
    assert {nodes[name].reason.rule for name in ("old", "change", "new")} == {Rule.AFTER_PRODUCTS}
    np.testing.assert_allclose(
        value, 1 + 2 * 0.99**600, rtol=1e-3
    )  # stands still at 2.3 where it is stored in bfloat16


def test_what_the_rest_of_the_step_reads_as_well_is_converted():
    _, nodes = trained(batch_normalization, "bfloat16", 0)
    assert nodes["mean"].precision.is_f16
    assert nodes["product"].precision.is_f16


def plain_optimizer():
    weights = v1.get_variable("variable", initializer=np.zeros((8, 4), "float32"), use_resource=True)
    square = v1.get_variable("square", initializer=np.zeros((8, 4), "float32"), use_resource=True)
    gradient = tf.matmul(
        tf.fill((8, 16), 1e-5), tf.ones((16, 4)), name="gradient"
    )  # its square is below float16's least
    new = tf.add(0.9 * square.read_value(), 0.1 * tf.math.multiply(gradient, gradient, name="squared"), name="new")
    with tf.control_dependencies([square.assign(new)]):
        step = tf.math.divide(gradient, tf.sqrt(square.read_value()) + 1e-6, name="step")
        tf.group(weights.assign_sub(0.01 * step), name="update")
    tf.identity(tf.matmul(tf.ones((4, 8)), weights.read_value()), name="fetch")


def test_an_optimizer_in_plain_operations_computes_in_float32():
    value, nodes = trained(plain_optimizer, "float16", 1)
    assert nodes["gradient"].precision.is_f16
    assert {nodes[name].reason.rule for name in ("squared", "new", "step")} == {Rule.AFTER_PRODUCTS}
    expected = -0.01 * 1.6e-4 / (np.sqrt(0.1) * 1.6e-4 + 1e-6)
    np.testing.assert_allclose(value, expected, rtol=1e-2)  # 160 times as far where the square is zero


def loop_of_averages():
    """A cycle of Merge and NextIteration beside an assignment: it must end."""
    variable = v1.get_variable("variable", initializer=np.zeros((4, 4), "float32"), use_resource=True)
    total = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.matmul(x, x) + x), [0, tf.ones((4, 4))])[1]
    tf.group(variable.assign(total * 0.5), name="update")
    tf.identity(total, name="fetch")


def test_loops_end():
    v1.disable_control_flow_v2()
    try:
        value, _ = trained(loop_of_averages, "bfloat16", 1)
    finally:
        v1.enable_control_flow_v2()
    assert np.isfinite(value).all()


# ---------------------------------------------------------------- whole numbers


def feature_columns():
    """Ids and numbers in one array of floats, as tables have them."""
    table = np.stack([np.arange(1000, 1064), np.ones(64), np.ones(64)], 1).astype("float32")
    ids, numbers = tf.split(tf.constant(table), [1, 2], 1, name="columns")
    rows = tf.gather(tf.range(2048.0)[:, None], tf.cast(ids[:, 0], tf.int32), name="rows")
    tf.identity(rows, name="fetch")
    tf.matmul(tf.concat([ids, numbers], 1, name="all"), tf.ones((3, 4)), name="product")


def test_ids_that_come_as_floats_stay_whole():
    old, new, nodes = rewritten(feature_columns)
    assert nodes["columns"].reason.rule is Rule.WHOLE_NUMBERS
    assert nodes["product"].precision.is_f16
    np.testing.assert_array_equal(run(new, "fetch")[0], run(old, "fetch")[0])


def test_positions_are_rounded_once_only():
    def build():
        flow = tf.matmul(tf.ones((64, 8)), tf.zeros((8, 64)), name="flow")
        positions = tf.floor(tf.add(flow, tf.range(513.0, 577.0), name="positions"), name="floor")
        tf.identity(tf.cast(positions, tf.int32), name="fetch")
        tf.matmul(flow, tf.ones((64, 4)), name="next")

    old, new, nodes = rewritten(build)
    assert {nodes[name].reason.rule for name in ("positions", "floor")} == {Rule.WHOLE_NUMBERS}
    assert nodes["flow"].precision.is_f16
    np.testing.assert_array_equal(run(new, "fetch")[0], run(old, "fetch")[0])


def test_a_cast_to_bool_keeps_nothing():
    def build():
        x = tf.nn.relu(tf.matmul(tf.ones((8, 8)), tf.ones((8, 8))), name="relu")
        tf.identity(tf.cast(x, tf.bool), name="fetch")
        tf.matmul(x, tf.ones((8, 8)), name="product")

    assert rewritten(build)[2]["relu"].precision.is_f16


# ---------------------------------------------------------------- maxima

WINDOW = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "VALID"}


def pooled_volume():
    """A pooling whose values are float32 while its own result is converted."""
    x = tf.exp(tf.constant(rng.normal(size=(8, 8, 8, 8, 4)).astype("float32")), name="values")
    pooled = tf.raw_ops.MaxPool3D(input=x, name="pool", **WINDOW)
    y = tf.matmul(tf.reshape(pooled, (8, 256), name="flat"), tf.ones((256, 4)), name="product")
    tf.identity(tf.gradients(y, x)[0], name="fetch")


@pytest.mark.parametrize("precision", ["auto", "bfloat16"])
def test_a_pooling_whose_gradient_cannot_be_16_bit_is_not_either(precision):
    old, new, nodes = rewritten(pooled_volume, precision=precision, ignore_performance=True)
    assert nodes["pool"].reason.rule is Rule.COMPARED
    assert nodes["product"].precision.is_f16
    np.testing.assert_array_equal(run(new, "fetch")[0], run(old, "fetch")[0])


def test_a_pooling_of_rounded_values_is_converted():
    def build():
        x = tf.matmul(tf.ones((512, 8)), tf.constant(rng.normal(size=(8, 16)).astype("float32")), name="values")
        x = tf.reshape(x, (2, 8, 8, 8, 8))
        pooled = tf.raw_ops.MaxPool3D(input=x, name="pool", **WINDOW)
        y = tf.matmul(tf.reshape(pooled, (2, 512)), tf.ones((512, 4)), name="product")
        tf.identity(tf.gradients(y, x)[0], name="fetch")

    assert rewritten(build)[2]["pool"].precision.is_f16


def test_a_maximum_and_the_values_that_it_is_compared_with_are_rounded_alike():
    def build():
        x = tf.exp(tf.constant(rng.normal(size=(8, 64)).astype("float32")), name="values")
        largest = tf.reduce_max(x, 1, name="largest")
        y = tf.matmul(largest[None], tf.ones((8, 4)), name="product")
        tf.identity(tf.gradients(y, x)[0], name="fetch")

    for settings in ({}, {"clear_remove": ("Equal",), "infer_add": ("Equal",)}, {"clear_remove": ("Equal",)}):
        old, new, nodes = rewritten(build, **settings)
        values = run(new, "fetch")[0]
        assert np.isfinite(values).all()  # none found is a division by zero
        np.testing.assert_array_equal(values > 0, run(old, "fetch")[0] > 0)
        assert nodes["product"].precision.is_f16


def test_a_rounding_before_both_a_maximum_and_its_values_does_not_excuse_another_of_one_alone():
    text = """
        x = Placeholder()
        c = Placeholder() dtype=bool
        allow1 = MatMul(x, x)
        rounded = SelectV2(c, allow1, x)
        carried = Identity(rounded)
        axis = Const() dtype=int32 value=int32[]*1
        largest = Max(carried, axis)
        same = Equal(largest, carried)
        allow2 = MatMul(largest, x)
        """
    for deny in ((), ("Equal",)):
        result = painted(text, precision="bfloat16", keep_float32=("^carried$",), deny_add=deny)
        f16 = set(result.f16.split())
        assert {"allow1", "allow2"} <= f16
        assert ("largest" in f16) == ("same" in f16)


def masks(x):
    best = tf.reduce_max(x, 1, keepdims=True)
    second = tf.math.top_k(x, 2).values[:, -1:]
    larger = tf.maximum(x, x)
    twice = tf.reshape(tf.stack([x, x], 1), (-1, x.shape[1]))[::2]
    before = tf.concat([x[:1], x[:-1]], 0)
    return {
        "equal to the largest": (tf.equal(x, best), best),
        "among the two largest": (x >= second, second),
        "below the largest": (tf.less(x, best), best),
        "above itself": (larger > x, larger),
        "above itself in a stack": (twice > x, twice),
        "above the row before": (x > before, before),
    }


@pytest.mark.parametrize("op", ["Abs", "Relu", "ReverseV2", "Tile"])
def test_what_is_compared_with_what_it_was_made_of_is_rounded_like_it(op):
    """x is below max(x, 0) where it is negative, and nowhere else."""
    result = painted(
        f"""
        x = Placeholder()
        how = Const() dtype=int32 value=int32[2]*1
        chosen = {op}({"x" if op in ("Abs", "Relu") else "x, how"})
        mask = Greater(chosen, x)
        product = MatMul(chosen, x)
        """,
        precision="bfloat16",
        target="cpu",
    )
    assert result.f16 == "product"
    assert result.rule("chosen") is Rule.COMPARED


@pytest.mark.parametrize("which", list(masks(tf.ones((2, 4)))))
@pytest.mark.parametrize("precision", ["float16", "bfloat16", "auto"])
def test_a_mask_of_the_largest_values_is_as_in_float32(which, precision):
    def build():
        x = tf.exp(tf.constant(rng.normal(size=(8, 64)).astype("float32")), name="values")
        mask, chosen = masks(x)[which]
        tf.cast(mask, tf.float32, name="fetch")
        tf.matmul(tf.broadcast_to(chosen, (8, 64)), tf.ones((64, 4)), name="product")

    old, new, nodes = rewritten(build, precision=precision, ignore_performance=True)
    np.testing.assert_array_equal(run(new, "fetch")[0], run(old, "fetch")[0])
    assert nodes["product"].precision.is_f16


@pytest.mark.parametrize("op", sorted(INACCURATE))
def test_a_kernel_that_loses_small_results_is_not_used(op):
    result = painted(
        f"x = Placeholder()\ny = Placeholder()\na = MatMul(x, y)\ne = {op}(a)\nb = MatMul(e, y)",
        precision="bfloat16",
        target="cpu",
    )
    assert result.f16 == "a b"
    assert result.rule("e") is Rule.INACCURATE
