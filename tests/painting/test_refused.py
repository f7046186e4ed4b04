from __future__ import annotations

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.graph.reader import read_graph
from amp_tf.graph.sizes import KnownShapes
from amp_tf.graph.templates import Templates
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import resolve_target
from amp_tf.painting.eligibility import find_obstacles
from amp_tf.painting.reasons import Rule
from tests.painting.painted import BF16_CPU, VOLTA, painted
from tests.small_graphs import graph

pytestmark = pytest.mark.usefixtures("local_rules")

OLD_CPU = Hardware()
STRIDES = "strides=[1, 1, 1, 1] padding='SAME'"
DILATED = f"{STRIDES} dilations=[1, 2, 2, 1]"
FIRST = f"{STRIDES} data_format='NCHW'"
POOL = f"ksize=[1, 1, 2, 2] {FIRST}"
SIZES = "x = Placeholder()\nsizes = Const() dtype=int32 value=int32[4]*8\n"
NO_KERNEL = "TensorFlow has no 16-bit kernel of its op for its device"


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_dilated_gradient_stays_and_its_reason_says_why(precision: str) -> None:
    text = f"{SIZES}c = Conv2D(x, x) {DILATED}\ng = Conv2DBackpropInput(sizes, c, c) {DILATED}"
    result = painted(text, precision=precision, hardware=OLD_CPU)
    assert result.f16 == "c"
    assert result.rule("g") is Rule.NO_KERNEL
    assert result.words("g") == f"{NO_KERNEL} (with dilations)"


def test_a_gradient_that_is_not_dilated_is_converted() -> None:
    assert painted(f"{SIZES}g = Conv2DBackpropInput(sizes, x, x) {STRIDES}").f16 == "g"


@pytest.mark.parametrize(("hardware", "precision"), [(BF16_CPU, "bfloat16"), (VOLTA, "float16")])
def test_onednn_and_gpus_refuse_nothing(hardware: Hardware, precision: str) -> None:
    text = f"{SIZES}g = Conv2DBackpropInput(sizes, x, x) {DILATED}\nc = Conv2D(g, x) {FIRST}"
    assert painted(text, precision=precision, hardware=hardware).f16 == "g c"


def test_a_pool_between_products_stays_if_its_channels_come_first() -> None:
    result = painted(
        f"x = Placeholder()\nm = Conv2D(x, x) {STRIDES}\np = MaxPool(m) {POOL}\nn = Conv2D(p, x) {STRIDES}"
    )
    assert result.f16 == "m n"
    assert result.words("p") == f"{NO_KERNEL} (with channels first)"


def test_a_forced_node_is_not_converted_where_its_kernel_refuses_it() -> None:
    assert painted(f"x = Placeholder()\nc = Conv2D(x, x) {FIRST}", force_f16=("c",)).f16 == ""


def test_a_function_is_asked_as_a_graph_is() -> None:
    head = "function f(x: float32, sizes: int32) -> (y: float32)"
    text = f"{head}\n g = Conv2DBackpropInput(sizes, x, x) {DILATED}\n return y = g:output:0"
    assert painted(text).rule("g") is Rule.NO_KERNEL


def test_a_maximum_and_its_gradient_stay_where_only_onednn_computes_both() -> None:
    text = f"""
        x = Placeholder()
        m = Conv2D(x, x) {FIRST}
        p = MaxPool(m) {POOL}
        n = Conv2D(p, x) {FIRST}
        g = MaxPoolGrad(m, p, n) {POOL}
        o = Conv2D(g, x) {FIRST}
    """
    result = painted(text, precision="bfloat16", hardware=BF16_CPU)
    assert result.f16 == "m n o"
    assert result.words("g") == result.words("p") == f"{NO_KERNEL} (with channels first and a gradient)"
    alone = painted(text.partition("g =")[0], precision="bfloat16", hardware=BF16_CPU)
    assert alone.f16 == "m p n"


def test_a_fused_normalization_stays_where_onednn_does_not_compute_it() -> None:
    norm = "e = _FusedBatchNormEx(m, x, x, x, x) T=float32 U=float32 activation_mode='Relu' is_training=true"
    text = f"x = Placeholder()\nm = Conv2D(x, x) {STRIDES}\n{norm}\nn = Conv2D(e, x) {STRIDES}"
    assert painted(text, precision="bfloat16", hardware=BF16_CPU).f16 == "m e n"
    assert painted(text, precision="bfloat16", hardware=OLD_CPU).f16 == "m n"


@pytest.mark.parametrize(
    ("image", "taps", "refused"),
    [((2, 8, 8, 4), (3, 3, 2, 8), True), ((2, 8, 8, 4), (3, 3, 4, 8), False), ((2, 8, 8, -1), (3, 3, 2, 8), False)],
)
def test_a_grouped_gradient_is_told_by_its_shapes(image: tuple[int, ...], taps: tuple[int, ...], refused: bool) -> None:
    text = f"""
        {SIZES}w = Placeholder()
        of_image = Conv2DBackpropInput(sizes, w, x) {STRIDES}
        of_filter = Conv2DBackpropFilter(of_image, sizes, x) {STRIDES}
    """
    view, config = read_graph(graph(text), Templates()), AmpConfig(precision="float16")
    shapes = KnownShapes({"w": [taps], "of_image": [image], "of_filter": [taps]})
    found = find_obstacles(view, resolve_target(config, BF16_CPU), config, (), shapes)
    assert set(found.refused.values()) == ({"groups"} if refused else set())
    assert len(found.refused) == 2 * refused


def test_a_grouped_gradient_of_a_file_is_told_by_the_shapes_that_its_nodes_carry() -> None:
    with tf.Graph().as_default() as built:
        w, y = (tf.compat.v1.placeholder(tf.float32, shape) for shape in ((3, 3, 2, 8), (2, 8, 8, 8)))
        tf.nn.conv2d_transpose(y, w, (2, 8, 8, 4), 1, name="grouped")
        tf.nn.conv2d_transpose(y, tf.concat([w, w], 2), (2, 8, 8, 4), 1, name="whole")
    given = built.as_graph_def(add_shapes=True)
    report = amp_tf.rewrite(given, AmpConfig(precision="float16"), hardware=BF16_CPU).report
    found = {node.name: node for node in report.nodes if node.op == "Conv2DBackpropInput"}
    assert {name: node.precision.is_f16 for name, node in found.items()} == {"grouped": False, "whole": True}
    assert str(found["grouped"].reason) == f"{NO_KERNEL} (with groups)"
