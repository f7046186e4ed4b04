"""Products on CPUs without kernels of the type: operands and result are rounded, and the float32
kernel multiplies and adds.
"""

from __future__ import annotations

import collections
import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

import amp_tf
from amp_tf.errors import RewriteError
from amp_tf.graph.attributes import ROUNDED_ATTR
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.kernels import ROUNDED
from amp_tf.painting.reasons import Rule
from amp_tf.rewriting import pipeline
from tests.small_graphs import function, graph, run

F16 = amp_tf.AmpConfig(precision="float16")
BF16 = amp_tf.AmpConfig(precision="bfloat16")
CPU = Hardware(cpu_has_bf16=True)
GPU = Hardware(gpu_capabilities=((8, 0),))
IMITATED = Hardware(gpu_capabilities=((8, 0),), imitates_gpu=True)
WITHOUT_BF16 = Hardware(has_onednn=False)
FLOAT = tf.float32.as_datatype_enum
HALF = tf.float16.as_datatype_enum
BFLOAT = tf.bfloat16.as_datatype_enum
SAME = "strides=[1, 1, 1, 1] padding='SAME'"
SAME_3D = "strides=[1, 1, 1, 1, 1] padding='SAME'"
IMAGE = [2, 6, 6, 3]
TAPS = [3, 3, 3, 4]
RESULT = [2, 6, 6, 4]
VOLUME = [2, 4, 4, 4, 3]
CUBE = [2, 2, 2, 3, 4]
FULL = [2, 4, 4, 4, 4]
DEEP = [3, 3, 3, 1]


#: A product of ``a`` and ``b``, and their shapes; gradients read a shape by name.
PRODUCTS = {
    "MatMul": ("MatMul(a, b)", [5, 300], [300, 7]),
    "MatMul transposed": ("MatMul(a, b) transpose_b=true", [5, 300], [7, 300]),
    "BatchMatMulV2": ("BatchMatMulV2(a, b)", [2, 5, 300], [2, 300, 7]),
    "Einsum": ("Einsum(a, b) equation='bi,ij->bj' N=2", [5, 300], [300, 7]),
    "Conv2D": (f"Conv2D(a, b) {SAME}", IMAGE, TAPS),
    "Conv2D dilated": (f"Conv2D(a, b) {SAME} dilations=[1, 2, 2, 1]", IMAGE, TAPS),
    "Conv2D of groups": (f"Conv2D(a, b) {SAME}", [2, 6, 6, 4], [3, 3, 2, 4]),
    "Conv2DBackpropFilter": (f"Conv2DBackpropFilter(a, taps, b) {SAME}", IMAGE, RESULT),
    "Conv2DBackpropInput": (f"Conv2DBackpropInput(image, a, b) {SAME}", TAPS, RESULT),
    "Conv3D": (f"Conv3D(a, b) {SAME_3D}", VOLUME, CUBE),
    "Conv3DBackpropFilterV2": (f"Conv3DBackpropFilterV2(a, cube, b) {SAME_3D}", VOLUME, FULL),
    "Conv3DBackpropInputV2": (f"Conv3DBackpropInputV2(volume, a, b) {SAME_3D}", CUBE, FULL),
    "DepthwiseConv2dNative": (f"DepthwiseConv2dNative(a, b) {SAME}", IMAGE, DEEP),
    "DepthwiseConv2dNativeBackpropFilter": (
        f"DepthwiseConv2dNativeBackpropFilter(a, deep, b) {SAME}",
        IMAGE,
        IMAGE,
    ),
    "DepthwiseConv2dNativeBackpropInput": (
        f"DepthwiseConv2dNativeBackpropInput(image, a, b) {SAME}",
        DEEP,
        IMAGE,
    ),
}
SHAPES = {"image": IMAGE, "taps": TAPS, "volume": VOLUME, "cube": CUBE, "deep": DEEP}


def product_graph(product):
    made = graph(f"a = Placeholder()\nb = Placeholder()\np = {product}\nfetch = Identity(p)")
    for name, shape in SHAPES.items():
        if re.search(rf"\b{name},", product):
            node = made.node.add(name=name, op="Const")
            node.attr["dtype"].type = tf.int32.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.array(shape, np.int32)))
    return made


def rounded(values, config=F16):
    with np.errstate(over="ignore"):
        return values.astype(config.precision).astype(np.float32)


def operands(*shapes, scale=1.0):
    random = np.random.default_rng(0)
    return [(scale * random.standard_normal(shape)).astype(np.float32) for shape in shapes]


def rewrite(proto, config=F16, hardware=CPU, preserve=("fetch",)):
    return amp_tf.rewrite(proto, config, hardware=hardware, preserve=preserve)


def product_of(proto, a, b):
    return run(proto, ("fetch",), {"a:0": a, "b:0": b})[0]


def types_of(proto):
    types = {}
    for node in proto.node:
        if node.op in ROUNDED:
            types[node.name] = node.attr["T"].type
    return types


@pytest.mark.parametrize("config", [F16, BF16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(("product", "first", "second"), PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_is_that_of_rounded_operands_added_in_float32_and_rounded(
    product, first, second, config
):
    before = product_graph(product)
    result = rewrite(before, config, WITHOUT_BF16)
    assert result.report.converted == 1
    assert types_of(result.graph) == {"p": FLOAT}
    a, b = operands(first, second)
    wanted = product_of(before, rounded(a, config), rounded(b, config))
    found = product_of(result.graph, a, b)
    np.testing.assert_array_equal(found, rounded(wanted, config))
    assert np.any(found != product_of(before, a, b))


def test_sums_are_float32s_and_the_result_ends_at_float16s_largest_number():
    """Four thousand ones are 4,096 in float32; a float16 sum of them stops at 2,048."""
    after = rewrite(product_graph("MatMul(a, b)")).graph
    ones = np.ones((1, 4096), np.float32)
    for factor, expected in ((1.0, 4096), (15.99, 65504), (16.0, np.inf)):
        assert product_of(after, ones, factor * ones.T) == expected
    large = np.full((1, 1), 70_000, np.float32)
    assert np.isinf(product_of(after, large, large / 1e6))


MODEL = """
    x = Placeholder() shape=[4, 8]
    w = Const() dtype=float32 value=float32[8, 8]
    bias = Const() dtype=float32 value=float32[8]
    p = MatMul(x, w)
    biased = BiasAdd(p, bias)
    relu = Relu(biased)
    q = MatMul(relu, w)
    r = MatMul(q, w)
    fetch = Identity(r)
    also = Identity(q)
"""


def test_each_tensor_is_rounded_once_and_read_from_there_by_all():
    result = rewrite(graph(MODEL), preserve=("fetch", "also"))
    casts = {node.name: node for node in result.graph.node if node.op == "Cast"}
    chains = collections.defaultdict(list)
    for node in casts.values():
        chain = [node.attr["DstT"].type]
        source = node.input[0]
        while source in casts:
            chain.insert(0, casts[source].attr["DstT"].type)
            source = casts[source].input[0]
        chains[source].append(chain)
    there_and_back = [[HALF], [HALF, FLOAT]]
    wanted = dict.fromkeys(("x", "w", "q", "r"), there_and_back)
    wanted["bias"] = [[HALF]]
    wanted["p"] = [[HALF]]
    wanted["relu"] = [[FLOAT]]
    assert chains.keys() == wanted.keys()
    for source, found in chains.items():
        assert sorted(found) == wanted[source], source


FUNCTION = """
    function f(x: float32, w: float32) -> (y: float32)
      m = MatMul(x, w)
      n = MatMul(m:product:0, w)
      return y = n:product:0
"""


def test_a_function_is_rounded_too():
    caller = graph("a = Placeholder()\nb = Placeholder()\nfetch = f(a, b)", function(FUNCTION))
    result = rewrite(caller)
    (body,) = result.graph.library.function
    for node in body.node_def:
        assert node.op != "MatMul" or node.attr["T"].type == FLOAT
    x, w = operands([2, 300], [300, 300], scale=0.1)
    once = rounded(rounded(x) @ rounded(w))
    expected = rounded(once @ rounded(w))
    np.testing.assert_array_equal(product_of(result.graph, x, w), expected)


def test_it_counts_as_16_bit_and_its_reason_says_how_it_is_computed():
    report = rewrite(graph(MODEL)).report
    found = {node.name: node for node in report.nodes}
    for name in "pqr":
        assert found[name].precision.value == "float16"
    said = "(computed in float32, with operands and result rounded to 16 bit, as tensor cores do)"
    assert str(found["p"].reason) == f"its op is on the allow list {said}"
    assert "tensor cores" not in str(found["relu"].reason)
    assert report.graphs[0].products.nodes == (3, 0, 3)


@pytest.mark.parametrize("made", [graph(MODEL), function(FUNCTION)])
def test_a_second_rewrite_leaves_it(made):
    once = rewrite(made, preserve=())
    assert once.changed
    twice = rewrite(once.graph, preserve=())
    assert twice.graph is once.graph
    for product in twice.report.nodes.where(op="MatMul"):
        assert product.reason.rule is Rule.ROUNDED_BEFORE


@pytest.mark.parametrize(
    ("config", "hardware"),
    [
        (BF16, CPU),
        (BF16, Hardware(cpu_has_avx512=True)),
        (BF16, dataclasses.replace(IMITATED, cpu_has_bf16=True)),
        (BF16, GPU),
        (F16, GPU),
    ],
)
def test_onednn_and_gpus_have_kernels_of_their_type(config, hardware):
    result = rewrite(graph(MODEL), config, hardware)
    for number in types_of(result.graph).values():
        assert tf.as_dtype(number).name == config.precision
    for node in result.graph.node:
        assert ROUNDED_ATTR not in node.attr


@pytest.mark.parametrize(("config", "kernels"), [(F16, HALF), (BF16, BFLOAT)])
def test_a_cpu_that_imitates_a_gpu_decides_as_the_gpu_and_runs_float32_kernels(config, kernels):
    decided = []
    for hardware, of_hardware in ((GPU, kernels), (IMITATED, FLOAT)):
        result = rewrite(graph(MODEL), config, hardware)
        assert set(types_of(result.graph).values()) == {of_hardware}
        decided.append([(node.name, node.precision) for node in result.report.nodes])
    assert decided[0] == decided[1]


def test_what_the_user_keeps_in_float32_is_not_rounded():
    config = amp_tf.AmpConfig(precision="float16", keep_float32=("^p$",))
    result = rewrite(graph(MODEL), config)
    assert [node.name for node in result.graph.node if ROUNDED_ATTR in node.attr] == ["q", "r"]


@pytest.mark.parametrize("goal", ["speed", "memory"])
def test_goals_and_reports_take_chains_of_casts(goal):
    config = amp_tf.AmpConfig(precision="float16", goal=goal, report_path="-")
    ends = ("fetch", "also")
    result = rewrite(graph(MODEL), config, preserve=ends)
    plain = rewrite(graph(MODEL), preserve=ends)
    fed = {"x:0": operands([4, 8])[0]}
    found = run(result.graph, ends, fed)
    wanted = run(plain.graph, ends, fed)
    np.testing.assert_array_equal(found, wanted)
    (of_graph,) = result.report.to_dict()["graphs"]
    cast = {cast["node"] for cast in of_graph["inserted_casts"]}
    assert cast <= {"x", "w", "bias", "p", "relu", "q", "r"}


def test_a_rounding_that_is_missing_is_a_bug_that_verification_finds(monkeypatch):
    plan = pipeline.plan_edits

    def forgetful(painting):
        """The edits without those that bring rounded values to ``q``."""
        edits = plan(painting)
        q = painting.view.names.index("q")
        rewires = tuple(edit for edit in edits.rewires if edit.node != q)
        return dataclasses.replace(edits, rewires=rewires)

    monkeypatch.setattr(pipeline, "plan_edits", forgetful)
    text = "x = Placeholder()\np = MatMul(x, x)\nq = MatMul(x, x)\nfetch = Identity(q)"
    with pytest.raises(RewriteError, match="roundings made: what 'q' reads of 'x' is not rounded"):
        rewrite(graph(text))
