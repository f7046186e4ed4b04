from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDefLibrary
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

import amp_tf
from amp_tf.graph.editor import apply_to_graph
from amp_tf.graph.reader import read_graph
from amp_tf.graph.sizes import SHAPES_ATTR
from amp_tf.graph.templates import Templates
from amp_tf.oplists.cost_tables import SHIPPED
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import SUCCESSORS
from amp_tf.oplists.targets import resolve_target
from amp_tf.painting.reasons import Rule
from amp_tf.rewriting.folding import fold
from amp_tf.rewriting.form import Job
from amp_tf.rewriting.pipeline import rewrite_program
from tests.rewriting.rewritten import (
    AUTO,
    BF16_CPU,
    TOLERANCE,
    GraphShapes,
    check_agreement,
    node_of,
    ops,
    rewrite,
    without_casts,
)
from tests.small_graphs import graph
from tests.strategies import lowered_control_flow

# Keras' batch normalization in inference: (y * s) + b. Shapes are small, so the products are not
# worth 16 bit by themselves; what is folded does not depend on it.
BLOCK = """
    x = Placeholder() shape=[8, 32, 32, 16]
    w = Placeholder() shape=[3, 3, 16, 16]
    s = Placeholder() shape=[16]
    b = Placeholder() shape=[16]
    conv = Conv2D(x, w) padding='SAME' strides=[1, 1, 1, 1]
    scaled = Mul(conv, s)
    shifted = AddV2(scaled, b)
    act = Relu(shifted)
    fetch = Identity(act)
"""
RESIDUAL = BLOCK.replace(
    "shifted = AddV2(scaled, b)",
    """summed = AddN(scaled, x)
    shifted = AddV2(b, summed)""",
)
TWO_BRANCHES = BLOCK.replace(
    "shifted = AddV2(scaled, b)",
    """w2 = Placeholder() shape=[1, 1, 16, 16]
    conv2 = Conv2D(x, w2) padding='SAME' strides=[1, 1, 1, 1]
    scaled2 = Mul(s, conv2)
    summed = AddN(scaled, scaled2)
    shifted = AddV2(summed, b)""",
)
SUM_BEHIND = BLOCK.replace("act = Relu(shifted)", "sum = AddV2(x, shifted)\n    act = Relu(sum)")
DEPTHWISE = BLOCK.replace("shape=[3, 3, 16, 16]", "shape=[3, 3, 16, 1]").replace(
    "Conv2D", "DepthwiseConv2dNative"
)
DEPTHWISE = DEPTHWISE.replace(
    "act = Relu(shifted)",
    """relu6 = Relu6(shifted)
    w2 = Placeholder() shape=[3, 3, 16, 64]
    act = Conv2D(relu6, w2) padding='SAME' strides=[1, 1, 1, 1]""",
)


def biased(text, conv="conv", scaled="scaled", bias="c"):
    """The same graph once a convolution has a bias of its own."""
    added = (
        f"{bias} = Placeholder() shape=[16]\n    {conv}_biased = BiasAdd({conv}, {bias})\n    "
        f"{scaled} = Mul("
    )
    found = text.replace(f"{scaled} = Mul({conv}, s)", f"{added}{conv}_biased, s)")
    return found.replace(f"{scaled} = Mul(s, {conv})", f"{added}s, {conv}_biased)")


# TensorFlow's remapper makes this of a convolution with a bias before amp_tf sees the graph.
FUSED = BLOCK.replace(
    "conv = Conv2D(x, w)",
    "c = Placeholder() shape=[16]\n    conv = _FusedConv2D(x, w, c) fused_ops=['BiasAdd'] "
    "num_args=1 TArgs=[float32]",
)
FUSED_DEPTHWISE = DEPTHWISE.replace(
    "conv = DepthwiseConv2dNative(x, w)",
    """c = Placeholder() shape=[16]
    conv = _FusedDepthwiseConv2dNative(x, w, c) fused_ops=['BiasAdd'] num_args=1 TArgs=[float32]""",
)
UNSHIFTED = BLOCK.replace("shifted = AddV2(scaled, b)", "shifted = Identity(scaled)")
# Two blocks, the second of which adds the first one's result between its scale and its bias.
STACKED = RESIDUAL.replace(
    "act = Relu(shifted)",
    """w2 = Placeholder() shape=[1, 1, 16, 16]
    conv2 = Conv2D(x, w2) padding='SAME' strides=[1, 1, 1, 1]
    scaled2 = Mul(conv2, s)
    summed2 = AddV2(scaled2, shifted)
    act = AddV2(summed2, b)""",
)
ONE = "Conv2D Mul BiasAdd Relu"
ONE_KERNEL = f"{ONE} Mul AddV2"
ALONE = "DepthwiseConv2dNative Const Reshape Mul BiasAdd Relu6 Conv2D"
#: Graphs that are folded, and their ops afterwards.
FOLDED = {
    "block": (BLOCK, ONE),
    "residual": (RESIDUAL, f"{ONE} AddV2"),
    "two branches": (TWO_BRANCHES, f"{ONE} Conv2D Mul AddV2"),
    "sum behind": (SUM_BEHIND, f"{ONE} AddV2"),
    "depthwise": (DEPTHWISE, ALONE),
    "biased": (biased(BLOCK), ONE_KERNEL),
    "fused": (FUSED, ONE_KERNEL),
    "biased, unshifted": (biased(UNSHIFTED), f"{ONE} Mul"),
    "biased, residual": (biased(RESIDUAL), f"{ONE_KERNEL} AddN"),
    "biased, sum behind": (biased(SUM_BEHIND), f"{ONE_KERNEL} AddV2"),
    "biased, depthwise": (biased(DEPTHWISE), f"{ALONE} Mul AddV2"),
    "fused, depthwise": (FUSED_DEPTHWISE, f"{ALONE} Mul AddV2"),
}


def reversed_nodes(proto):
    return type(proto)(node=reversed(proto.node), versions=proto.versions)


@pytest.mark.parametrize("name", FOLDED)
def test_normalization_is_folded_once_and_the_result_is_that_of_float32(name):
    text, expected = FOLDED[name]
    proto = graph(text)
    result = rewrite(proto)
    assert ops(result.graph) == collections.Counter(expected.split())
    assert result.report.folded == (2 if text == TWO_BRANCHES else 1)
    # Without oneDNN, the default of older CPUs, TensorFlow has no kernel of the fused op.
    if name != "fused, depthwise" or Hardware.detect_cpu().has_onednn:
        check_agreement(proto, result)
    assert not rewrite(result.graph).changed
    assert ops(rewrite(reversed_nodes(proto)).graph) == ops(result.graph)


@pytest.mark.parametrize("is_first_biased", [False, True])
@pytest.mark.parametrize("is_second_biased", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        TWO_BRANCHES,
        STACKED,
        STACKED.replace(
            "summed2 = AddV2(scaled2, shifted)\n    act = AddV2(summed2, b)",
            "summed2 = AddV2(scaled2, b)\n    act = AddV2(summed2, shifted)",
        ),
    ],
)
def test_whichever_of_two_convolutions_has_a_bias_the_result_is_that_of_float32(
    text, is_first_biased, is_second_biased
):
    if is_first_biased:
        text = biased(text)
    if is_second_biased:
        text = biased(text, "conv2", "scaled2", "c2")
    proto = graph(text)
    for given in (proto, reversed_nodes(proto)):
        result = rewrite(given)
        assert result.report.folded == 2
        check_agreement(proto, result)


def test_both_biases_become_one_vector_that_is_added_in_float32():
    again = """w2 = Placeholder() shape=[1, 1, 16, 16]
    again = Conv2D(act, w2) padding='SAME' strides=[1, 1, 1, 1]
    fetch = Identity(again)"""
    result = rewrite(graph(biased(BLOCK).replace("fetch = Identity(act)", again)))
    read = without_casts(result.graph)
    products = {node.name for node in result.graph.node if node.op == "Mul"}
    (product,) = products - {"scaled"}
    assert read[product] == ["c", "s"]
    assert read["shifted"] == [product, "b"]
    assert read["conv_biased"] == ["conv", "shifted"]
    assert read["act"] == ["conv_biased"]
    precisions = {}
    for node in result.report.nodes:
        precisions[node.name] = node.precision.is_f16
    for name in ("scaled", "shifted", product):
        assert not precisions.get(name)
    for name in ("conv", "conv_biased", "act"):
        assert precisions[name]


def test_a_fused_convolution_that_is_not_folded_stays_fused():
    scoped = "scaled = Mul(conv, s) _amp_tf_scope='float32'"
    result = rewrite(graph(FUSED.replace("scaled = Mul(conv, s)", scoped)))
    assert result.report.folded == 0
    assert ops(result.graph)["_FusedConv2D"] == 1


def test_the_multiplication_moves_to_the_filter_and_stays_in_float32():
    result = rewrite(graph(BLOCK))
    read = without_casts(result.graph)
    assert read["scaled"] == ["w", "s"]
    assert read["conv"] == ["x", "scaled"]
    assert read["shifted"] == ["conv", "b"]
    nodes = {node.name: node for node in result.report.nodes}
    assert nodes["scaled"].reason.rule is Rule.SCALES_FILTER
    assert not nodes["scaled"].precision.is_f16
    for name in ("conv", "shifted", "act"):
        assert nodes[name].precision.is_f16, name


REFUSED = {
    "the convolution has another reader": BLOCK + "    again = Sin(conv)\n",
    "the vector is not one value a channel": BLOCK.replace(
        "s = Placeholder() shape=[16]", "s = Placeholder() shape=[]"
    ),
    "the filter is computed": BLOCK.replace(
        "conv = Conv2D(x, w)", "t = Tanh(w)\n    conv = Conv2D(x, t)"
    ),
    "the multiplication waits for a node": BLOCK.replace("Mul(conv, s)", "Mul(conv, s) ^b"),
    "a node waits for the convolution": BLOCK.replace(
        "act = Relu(shifted)", "act = Relu(shifted) ^conv"
    ),
    "channels first": BLOCK.replace("strides", "data_format='NCHW' strides").replace(
        "[8, 32, 32, 16]", "[8, 16, 32, 16]"
    ),
    "the filter is larger than the result": BLOCK.replace("[8, 32, 32, 16]", "[1, 2, 2, 16]"),
    "another device": BLOCK.replace(
        "scaled = Mul(conv, s)", "scaled = Mul(conv, s) @/device:GPU:0"
    ),
    "the bias has another reader": biased(BLOCK) + "    again = Sin(conv_biased)\n",
    "the product before the bias has another reader": biased(BLOCK) + "    again = Sin(conv)\n",
    "the scale of a biased one has dimensions more": biased(BLOCK).replace(
        "s = Placeholder() shape=[16]", "s = Placeholder() shape=[1, 1, 1, 16]"
    ),
    "scope": BLOCK.replace(
        "scaled = Mul(conv, s)", "scaled = Mul(conv, s) _amp_tf_scope='float32'"
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_it_is_left_alone_where(why):
    proto = graph(REFUSED[why])
    result = rewrite(proto)
    assert result.report.folded == 0
    assert without_casts(result.graph)["scaled"][:2] in (["conv", "s"], ["conv_biased", "s"])


@pytest.mark.parametrize(
    ("config", "preserve"),
    [
        (amp_tf.AmpConfig(precision="bfloat16"), ()),
        (amp_tf.AmpConfig(ignore_performance=True), ()),
        (amp_tf.AmpConfig(level="UNSAFE_FORCE_ALL"), ()),
        (amp_tf.AmpConfig(keep_float32=("scaled",)), ()),
        (amp_tf.AmpConfig(force_f16=("conv",)), ()),
        (AUTO, ("conv",)),
        (AUTO, ("scaled",)),
    ],
)
def test_it_is_left_alone_where_the_user_wishes_otherwise(config, preserve):
    result = rewrite(graph(BLOCK), config, preserve)
    assert result.report.folded == 0
    assert without_casts(result.graph)["scaled"] == ["conv", "s"]


def test_without_shapes_nothing_is_folded():
    assert amp_tf.rewrite(graph(BLOCK), AUTO, hardware=BF16_CPU).report.folded == 0


def test_a_kept_bias_leaves_the_scale_folded():
    result = rewrite(graph(BLOCK), amp_tf.AmpConfig(keep_float32=("shifted",)))
    assert result.report.folded == 1
    assert sorted(ops(result.graph).elements()) == ["AddV2", "Conv2D", "Mul", "Relu"]


class ShapesWithoutBatch(GraphShapes):
    def output_shapes(self, node):
        (shape,) = super().output_shapes(node)
        if len(shape) == 4 and node != "w":
            shape = (-1, *shape[1:])
        return [shape]


def test_a_pass_over_the_filter_costs_what_the_table_of_this_cpu_says():
    slow_where_small = ((1e3, 1e3), *SHIPPED.elements["Mul"][1:])
    costs = dataclasses.replace(SHIPPED, elements={**SHIPPED.elements, "Mul": slow_where_small})
    hardware = dataclasses.replace(BF16_CPU, costs=costs)
    assert rewrite(graph(BLOCK), hardware=hardware).report.folded == 0


# A filter of 2,304 values, one example of 576.
@pytest.mark.parametrize(("pixels", "folded"), [(32, 1), (6, 0)])
def test_an_unknown_batch_counts_as_one_example(pixels, folded):
    proto = graph(BLOCK.replace("[8, 32, 32,", f"[8, {pixels}, {pixels},"))
    shapes = ShapesWithoutBatch(proto)
    found = amp_tf.rewrite(proto, AUTO, hardware=BF16_CPU, preserve=["fetch"], shapes=shapes)
    assert found.report.folded == folded


def test_a_graph_where_nothing_becomes_16_bit_stays_as_it_is():
    proto = graph(BLOCK)
    result = rewrite(proto, amp_tf.AmpConfig(allow_remove=("Conv2D",)))
    assert result.graph is proto
    assert result.report.folded == 0


def loop(conv, channels):
    """A graph whose loop runs a product twice, normalized by what changes from turn to turn."""
    with tf.Graph().as_default() as made, lowered_control_flow():
        x = tf.compat.v1.placeholder(tf.float32, [8, 32, 32, 16], name="x")
        w = tf.compat.v1.placeholder(tf.float32, [3, 3, 16, channels], name="w")
        w2 = tf.compat.v1.placeholder(tf.float32, [3, 3, 16, 16], name="w2")
        s = tf.compat.v1.placeholder(tf.float32, [16], name="s")

        def turn(i, x):
            product = conv(x, tf.identity(w), strides=[1] * 4, padding="SAME")
            scale = s + tf.cast(i, tf.float32)
            act = tf.nn.relu(product * scale + s)
            again = tf.nn.conv2d(act, w2, 1, "SAME")
            return i + 1, again / 100.0

        shapes = [tf.TensorShape([]), x.shape]
        start = [tf.constant(0), x]
        _, y = tf.while_loop(lambda i, _: i < 2, turn, start, shapes)
        tf.identity(y, name="fetch")
    return made


@pytest.mark.parametrize(("conv", "channels"), [(tf.nn.conv2d, 16), (tf.nn.depthwise_conv2d, 1)])
def test_inside_a_loop_new_nodes_are_in_its_frame(conv, channels):
    made = loop(conv, channels)
    proto = made.as_graph_def()
    shapes = GraphShapes(made)  # imported again, the loop would hide the shapes
    result = amp_tf.rewrite(proto, AUTO, hardware=BF16_CPU, preserve=("fetch",), shapes=shapes)
    assert result.report.folded == 1
    check_agreement(proto, result)


GATE = """
        gate = DepthwiseConv2dNative(v, w2) padding='SAME' strides=[1, 1, 1, 1]
        {bias}
        scaled2 = Mul({biased}, s2)
        {sum}
"""
CONV = "conv = {op}(x, w) padding='SAME' strides=[1, 1, 1, 1]"
BIASED = {
    "": "gate",
    "c = Placeholder() shape=[16]\n        gate_biased = BiasAdd(gate, c)": "gate_biased",
}
SHIFTED = {"": "scaled2", "shifted2 = AddV2(scaled2, s2)": "shifted2"}


@pytest.mark.parametrize("is_gate_first", [False, True])
@pytest.mark.parametrize("factor", SHIFTED)
@pytest.mark.parametrize("bias", BIASED)
@pytest.mark.parametrize("op", ["Conv2D", "DepthwiseConv2dNative"])
def test_a_product_may_be_scaled_by_what_is_itself_a_scaled_product(
    op, bias, factor, is_gate_first
):
    gate = GATE.format(bias=bias, biased=BIASED[bias], sum=factor)
    products = [CONV.format(op=op), gate]
    if is_gate_first:
        products.reverse()
    proto = graph(
        f"""
        x = Placeholder() shape=[1, 32, 32, 16]
        w = Placeholder() shape=[3, 3, 16, {16 if op == "Conv2D" else 1}]
        v = Placeholder() shape=[1, 1, 1, 16]
        w2 = Placeholder() shape=[1, 1, 16, 1]
        s2 = Placeholder() shape=[16]
        w3 = Placeholder() shape=[3, 3, 16, 64]
        {products[0]}
        {products[1]}
        scaled = Mul(conv, {SHIFTED[factor]})
        act = Conv2D(scaled, w3) padding='SAME' strides=[1, 1, 1, 1]
        fetch = Identity(act)
        """
    )
    result = rewrite(proto)
    assert result.report.folded >= 1
    assert without_casts(result.graph)["scaled"][0] == "w"
    check_agreement(proto, result)
    assert not rewrite(result.graph).changed


DEPTHWISE_RESIDUAL = DEPTHWISE.replace(
    "relu6 = Relu6(shifted)",
    """summed = AddV2(shifted, x)
    relu6 = Relu6(summed)""",
)


WITHOUT_BIAS = DEPTHWISE_RESIDUAL.replace("AddV2(scaled, b)", "Identity(scaled)")
SUMMED_TWICE = DEPTHWISE_RESIDUAL.replace("AddV2(scaled, b)", "AddV2(scaled, x)")


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        (DEPTHWISE_RESIDUAL, 0),
        (biased(DEPTHWISE_RESIDUAL), 0),
        (WITHOUT_BIAS, 1),
        (biased(SUMMED_TWICE), 0),
    ],
)
def test_a_depthwise_product_with_bias_and_residual_sum_stays_as_it_is(text, folded):
    """TensorFlow's remapper would make a node without an op of them, and the graph would run as it
    was at first.
    """
    assert rewrite(graph(text)).report.folded == folded


@pytest.mark.parametrize("name", FOLDED)
def test_the_shapes_that_folding_tells_the_passes_behind_it_are_those_that_tensorflow_infers(name):
    proto = graph(FOLDED[name][0])
    templates = Templates(None, SUCCESSORS)
    job = Job(AUTO, resolve_target(AUTO, BF16_CPU), templates, frozenset({"fetch"}))
    view = read_graph(proto, templates)
    folded = fold(job.form(view, GraphShapes(proto)))
    inferred = GraphShapes(apply_to_graph(proto, view.names, folded.edits))
    assert folded.edits
    for node in proto.node:
        found = folded.shapes.output_shapes(node.name)
        assert found == inferred.output_shapes(node.name), node.name


ARGUMENTS = ((8, 32, 32, 16), (3, 3, 16, 16), (16,), (16,))


def traced():
    """A FunctionDef that normalizes what it multiplies, with the shapes that its trace knows."""

    @tf.function(input_signature=[tf.TensorSpec(shape) for shape in ARGUMENTS])
    def normalized(*arguments):
        x, w, s, b = map(tf.identity, arguments)  # an argument has no shape
        shifted = tf.nn.conv2d(x, w, 1, "SAME") * s + b
        return shifted, tf.nn.relu(shifted)

    concrete = normalized.get_concrete_function()
    function = concrete.function_def
    shapes = concrete.graph.as_graph_def(add_shapes=True)
    for node in function.node_def:
        node.attr[SHAPES_ATTR].CopyFrom(node_of(shapes, node.name).attr[SHAPES_ATTR])
    return function


def run_function(function, arguments):
    body = function_def_to_graph(function)
    with tf.compat.v1.Session(graph=body) as session:
        names = [tensor.name for tensor in body.inputs]
        return session.run(body.outputs, dict(zip(names, arguments, strict=True)))


def test_a_function_is_folded_as_a_graph_is():
    function = traced()
    result = amp_tf.rewrite(function, AUTO, hardware=BF16_CPU)
    assert result.report.folded == 1
    folded = collections.Counter(node.op for node in result.graph.node_def)
    assert folded["Mul"] == folded["Conv2D"] == folded["BiasAdd"] == 1
    assert amp_tf.rewrite(result.graph, AUTO, hardware=BF16_CPU).graph == result.graph
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(shape).astype(np.float32) for shape in ARGUMENTS]
    exact = run_function(function, arguments)
    found = run_function(result.graph, arguments)
    assert not np.array_equal(found, exact)  # it did compute in 16 bit
    np.testing.assert_allclose(found, exact, rtol=0, atol=TOLERANCE * np.abs(exact).max())


def test_a_function_that_xla_compiles_is_not_folded():
    (result,) = rewrite_program(traced(), (), AUTO, BF16_CPU, FunctionDefLibrary())
    assert result.changed
    assert result.report.folded == 0
