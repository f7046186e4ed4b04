from __future__ import annotations

import pytest

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.graph.reader import read_graph
from amp_tf.graph.sizes import KnownShapes
from amp_tf.graph.templates import Templates
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import resolve_target
from amp_tf.painting.eligibility import find_obstacles
from amp_tf.painting.reasons import Code
from tests.painting.painted import BF16_CPU, VOLTA, painted
from tests.rewriting.rewritten import shaped
from tests.small_graphs import graph

pytestmark = pytest.mark.usefixtures("local_rules")

OLD_CPU = Hardware()
STRIDES = "strides=[1, 1, 1, 1] padding='SAME'"
DILATED = f"{STRIDES} dilations=[1, 2, 2, 1]"
FIRST = f"{STRIDES} data_format='NCHW'"
POOL = f"ksize=[1, 1, 2, 2] {FIRST}"
SIZES = "x = Placeholder()\nsizes = Const() dtype=int32 value=int32[4]*8\n"
NO_KERNEL = "TensorFlow has no 16-bit kernel of its op for its device"


INPUT_GRADIENT = "Conv2DBackpropInput(sizes, x, x)"
PAIR = f"""
    x = Placeholder()
    m = Conv2D(x, x) {FIRST}
    p = MaxPool(m) {POOL}
    n = Conv2D(p, x) {FIRST}
"""
NORM = f"""
    x = Placeholder()
    m = Conv2D(x, x) {STRIDES}
    e = _FusedBatchNormEx(m, x, x, x, x) T=float32 U=float32 activation_mode='Relu' is_training=true
    n = Conv2D(e, x) {STRIDES}
"""
DILATED_GRADIENT = (
    f"{SIZES}c = Conv2D(x, x) {DILATED}\ng = Conv2DBackpropInput(sizes, c, c) {DILATED}"
)
EASY = f"{SIZES}g = {INPUT_GRADIENT} {DILATED}\nc = Conv2D(g, x) {FIRST}"
IN_A_FUNCTION = f"""
    function f(x: float32, sizes: int32) -> (y: float32)
    g = {INPUT_GRADIENT} {DILATED}
    return y = g:output:0
"""
#: The graph, the precision, the hardware, what becomes 16 bit, and what the kernels of the others
#: refuse.
SHOWN = {
    "a dilated gradient": (DILATED_GRADIENT, "bfloat16", OLD_CPU, "c", {"g": "with dilations"}),
    "one that is not dilated is converted": (
        f"{SIZES}g = {INPUT_GRADIENT} {STRIDES}",
        "float16",
        BF16_CPU,
        "g",
        {},
    ),
    "oneDNN refuses nothing": (EASY, "bfloat16", BF16_CPU, "g c", {}),
    "nor do GPUs": (EASY, "float16", VOLTA, "g c", {}),
    "nor do float32 kernels, which compute products of float16": (
        EASY,
        "float16",
        OLD_CPU,
        "g c",
        {},
    ),
    "a pool between products, channels first": (
        f"x = Placeholder()\nm = Conv2D(x, x) {STRIDES}\np = MaxPool(m) {POOL}\nn = Conv2D(p, x) "
        f"{STRIDES}",
        "float16",
        BF16_CPU,
        "m n",
        {"p": "with channels first"},
    ),
    "a function is asked as a graph is": (
        IN_A_FUNCTION,
        "bfloat16",
        OLD_CPU,
        "",
        {"g": "with dilations"},
    ),
    "a maximum and its gradient where only oneDNN computes both": (
        f"{PAIR}\n g = MaxPoolGrad(m, p, n) {POOL}\n o = Conv2D(g, x) {FIRST}",
        "bfloat16",
        BF16_CPU,
        "m n o",
        dict.fromkeys("gp", "with channels first and a gradient"),
    ),
    "a maximum alone is converted": (PAIR, "bfloat16", BF16_CPU, "m p n", {}),
    "a fused normalization where oneDNN computes it": (NORM, "bfloat16", BF16_CPU, "m e n", {}),
    "and where it does not": (NORM, "bfloat16", OLD_CPU, "m n", {}),
}


@pytest.mark.parametrize(
    ("text", "precision", "hardware", "f16", "refused"), SHOWN.values(), ids=SHOWN
)
def test_what_kernels_refuse_stays_and_its_reason_says_why(text, precision, hardware, f16, refused):
    result = painted(text, precision=precision, hardware=hardware)
    assert result.f16 == f16
    for name, what in refused.items():
        assert result.code(name) is Code.NO_KERNEL
        assert result.words(name) == f"{NO_KERNEL} ({what})"


def test_a_forced_node_is_not_converted_where_its_kernel_refuses_it():
    text = f"x = Placeholder()\nc = Conv2D(x, x) {FIRST}"
    assert painted(text, precision="bfloat16", hardware=OLD_CPU, force_f16=("c",)).f16 == ""


@pytest.mark.parametrize(
    ("image", "taps", "refused"),
    [
        ((2, 8, 8, 4), (3, 3, 2, 8), True),
        ((2, 8, 8, 4), (3, 3, 4, 8), False),
        ((2, 8, 8, -1), (3, 3, 2, 8), False),
        ((4,), (8,), False),  # wrong shapes
    ],
)
def test_a_grouped_gradient_is_told_by_its_shapes(image, taps, refused):
    text = f"""
        {SIZES}w = Placeholder()
        of_image = Conv2DBackpropInput(sizes, w, x) {STRIDES}
        of_filter = Conv2DBackpropFilter(of_image, sizes, x) {STRIDES}
    """
    view = read_graph(graph(text), Templates())
    config = AmpConfig(precision="bfloat16")
    shapes = KnownShapes({"w": [taps], "of_image": [image], "of_filter": [taps]})
    found = find_obstacles(view, resolve_target(config, OLD_CPU), config, (), shapes)
    assert set(found.refused.values()) == ({"groups"} if refused else set())
    assert len(found.refused) == 2 * refused


def test_a_grouped_gradient_of_a_file_is_told_by_the_shapes_that_its_nodes_carry():
    given = shaped(f"""
        x = Placeholder() shape=[2, 8, 8, 4]
        y = Placeholder() shape=[2, 8, 8, 8]
        w = Placeholder() shape=[3, 3, 2, 8]
        v = Placeholder() shape=[3, 3, 4, 8]
        sizes = Shape(x) out_type=int32
        grouped = Conv2DBackpropInput(sizes, w, y) {STRIDES}
        whole = Conv2DBackpropInput(sizes, v, y) {STRIDES}
    """)
    report = amp_tf.rewrite(given, AmpConfig(precision="bfloat16"), hardware=OLD_CPU).report
    grouped, whole = report.nodes.where(op="Conv2DBackpropInput")
    assert whole.precision.is_f16
    assert str(grouped.reason) == f"{NO_KERNEL} (with groups)"
