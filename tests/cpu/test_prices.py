"""By which row of the table nodes cost, and that only where amp_tf chooses is anything of costs
imported.
"""

import dataclasses
import sys

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.cpu.economy import Prices
from amp_tf.graph.reader import read_graph
from amp_tf.graph.sizes import NO_SHAPES, KnownShapes
from amp_tf.graph.templates import Templates
from amp_tf.oplists.cost_tables import (
    BROADCAST,
    CHANNELS_FIRST,
    POINTWISE_FIRST,
    SHIPPED,
    SLOW,
    SLOWNESS,
    TRANSPOSED,
)
from amp_tf.oplists.fusions import SWISH
from amp_tf.painting.remapper import find_swishes
from tests.small_graphs import graph


def _placeholder(*shape):
    return tf.compat.v1.placeholder(tf.float32, shape)


@pytest.mark.parametrize(
    ("line", "variant"),
    [
        ("MatMul(x, x)", ""),
        ("MatMul(x, x) transpose_a=true", ""),
        ("MatMul(x, x) transpose_b=true", TRANSPOSED),
        ("BatchMatMulV2(x, x) adj_x=true", ""),
        ("BatchMatMulV2(x, x) adj_y=true", TRANSPOSED),
    ],
)
def test_a_product_of_matrices_costs_by_whether_it_reads_the_second_turned(line, variant):
    view = read_graph(graph(f"x = Placeholder()\n y = {line}"), Templates())
    assert Prices(view, NO_SHAPES, SHIPPED).variant(1) == variant


@pytest.mark.parametrize(
    ("op", "layout", "taps", "variant"),
    [
        ("Conv2D", "NHWC", 3, ""),
        ("Conv2D", "NHWC", 1, ""),
        ("Conv2D", "NCHW", 3, CHANNELS_FIRST),
        ("Conv2D", "NCHW", 1, POINTWISE_FIRST),
        ("Conv2D", "NCHW", None, CHANNELS_FIRST),
        ("Conv3D", "NDHWC", 3, ""),
        ("Conv3D", "NCDHW", 3, CHANNELS_FIRST),
        ("Conv3D", "NCDHW", 1, POINTWISE_FIRST),
    ],
)
def test_a_convolution_costs_by_its_layout_and_in_some_by_whether_it_has_one_tap(
    op, layout, taps, variant
):
    rank = len(layout)
    with tf.Graph().as_default() as built:
        x = _placeholder(*[4] * rank)
        w = _placeholder(*[taps] * (rank - 2), 4, 4)
        result = getattr(tf.raw_ops, op)(
            input=x, filter=w, strides=[1] * rank, padding="SAME", data_format=layout
        )
    view = read_graph(built.as_graph_def(), Templates())
    kernel = None if taps is None else tuple(w.shape.as_list())
    shapes = KnownShapes({x.op.name: [(4,) * rank], w.op.name: [kernel], result.op.name: [None]})
    assert [Prices(view, shapes, SHIPPED).variant(node) for node in view.nodes_with((op,))] == [
        variant
    ]


@pytest.mark.parametrize(
    ("layout", "computed"),
    [("NHWC", 2 * 8 * 8 * 8 * 4 * 16 * 3 * 3), ("NCHW", 2 * 8 * 8 * 8 * 4 * 3 * 3 * 3)],
)
def test_a_convolution_to_three_channels_costs_as_one_to_sixteen_where_channels_are_last(
    layout, computed
):
    image, result = (
        ((8, 8, 8, 4), (8, 8, 8, 3)) if layout == "NHWC" else ((8, 4, 8, 8), (8, 3, 8, 8))
    )
    with tf.Graph().as_default() as built:
        x = _placeholder(*image)
        w = _placeholder(3, 3, 4, 3)
        y = tf.raw_ops.Conv2D(
            input=x, filter=w, strides=[1] * 4, padding="SAME", data_format=layout
        )
    view = read_graph(built.as_graph_def(), Templates())
    shapes = KnownShapes({x.op.name: [image], w.op.name: [(3, 3, 4, 3)], y.op.name: [result]})
    (node,) = view.nodes_with(("Conv2D",))
    elements = 8 * 8 * 8 * (4 + 3) + 3 * 3 * 4 * 3
    variant = CHANNELS_FIRST if layout == "NCHW" else ""
    expected = SHIPPED.of_product("Conv2D", computed, elements, variant)
    assert Prices(view, shapes, SHIPPED).product(node) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("lines", "is_one"),
    [
        ("s = Sigmoid(x)\ny = Mul(s, x)", True),
        ("s = Sigmoid(x)\ny = Mul(x, s)", True),
        ("s = Sigmoid(x)\ny = Mul(s, z)", False),
        ("s = Sigmoid(x)\ny = Mul(s, s)", False),
        ("s = Sigmoid(x)\ny = AddV2(x, s)", False),
        ("s = Sigmoid(x)\ny = Mul(x, s)\nt = Tanh(s)", False),
        ("s = Tanh(x)\ny = Mul(x, s)", False),
    ],
)
def test_a_sigmoid_times_its_input_costs_as_the_one_op_that_tensorflow_makes_of_both(lines, is_one):
    view = read_graph(graph(f"x = Placeholder()\nz = Placeholder()\n{lines}"), Templates())
    first = 2
    second = 3
    assert find_swishes(view) == [(first, second)] * is_one
    row = (7.0, 5.0)
    table = dataclasses.replace(
        SHIPPED, elements={**SHIPPED.elements, SWISH: (row,) * len(SHIPPED.sizes)}
    )
    prices = Prices(view, NO_SHAPES, table)
    assert (prices.op(first, 10.0) == (0.0, 0.0)) == is_one
    assert (prices.op(second, 10.0) == (70.0, 50.0)) == is_one


@pytest.mark.parametrize(
    ("op", "other", "is_broadcast"),
    [
        ("Mul", [64], True),
        ("AddV2", [4, 64], True),
        ("Mul", [32, 64], False),
        ("Mul", None, False),
        ("Pow", [64], False),
    ],
)
def test_an_op_of_a_large_and_a_small_tensor_has_a_row_of_its_own(op, other, is_broadcast):
    view = read_graph(graph(f"x = Placeholder()\ny = Placeholder()\nz = {op}(x, y)"), Templates())
    shapes = KnownShapes({"x": [(32, 64)], "y": [other], "z": [(32, 64)]})
    rows = {
        op + BROADCAST: ((2.0, 1.0),) * len(SHIPPED.sizes),
        op: ((4.0, 3.0),) * len(SHIPPED.sizes),
    }
    prices = Prices(view, shapes, dataclasses.replace(SHIPPED, elements=rows))
    assert prices.op(2, 10.0) == ((20.0, 10.0) if is_broadcast else (40.0, 30.0))
    del rows[op + BROADCAST]
    assert prices.op(2, 10.0) == (40.0, 30.0)


@pytest.mark.parametrize(
    ("op", "stride", "taps", "is_slow"),
    [
        ("BackpropInput", 1, 3, False),
        ("BackpropInput", 1, 5, False),
        ("BackpropInput", 2, 3, True),
        ("BackpropFilter", 2, 3, False),
        ("BackpropFilter", 1, 5, True),
        ("BackpropFilter", 1, 7, True),
    ],
)
def test_a_depthwise_gradient_is_slow_for_strides_or_for_many_taps(op, stride, taps, is_slow):
    inputs = "sizes, x, x" if op == "BackpropInput" else "x, sizes, x"
    line = (
        f"y = DepthwiseConv2dNative{op}({inputs}) strides=[1, {stride}, {stride}, 1] padding='SAME'"
    )
    sizes = "sizes = Const() dtype=int32 value=int32[4]*1"
    kernel = (taps, taps, 8, 1)
    shapes = KnownShapes({"x": [kernel], "y": [kernel]})
    prices = Prices(
        read_graph(graph(f"x = Placeholder()\n{sizes}\n{line}"), Templates()), shapes, SHIPPED
    )
    assert prices.variant(2) == SLOW * is_slow
    in_float32, in_f16 = prices.product_of(2, 1e6, 1e5)
    assert (in_f16 == SLOWNESS * in_float32) == is_slow


GPU = amp_tf.Hardware(gpu_capabilities=((9, 0),))
CPU = amp_tf.Hardware(cpu_has_bf16=True)
LOOP = """
    x = Placeholder() shape=[64, 64]
    start = Enter(x) frame_name='f'
    state = Merge(start, next)
    go = Placeholder() dtype=bool
    turns = Enter(go) T=bool frame_name='f' is_constant=true
    again = LoopCond(turns)
    switch = Switch(state, again)
    product = MatMul(switch:1, switch:1)
    next = NextIteration(product)
    done = Exit(switch)
    last = MatMul(done, done)
"""


@pytest.fixture
def without_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that only auto on CPUs needs can be imported, whatever was before."""
    monkeypatch.delattr(amp_tf, "cpu", raising=False)
    needed = ("amp_tf.cpu", "amp_tf.rewriting.folding", "amp_tf.rewriting.hoisting")
    for name in [*sys.modules, *needed]:
        if name.startswith(needed):
            monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("goal", ["speed", "memory"])
@pytest.mark.parametrize(
    ("hardware", "precision"), [(GPU, "auto"), (GPU, "float16"), (CPU, "bfloat16")]
)
@pytest.mark.usefixtures("without_cpu")
def test_elsewhere_nothing_of_it_is_imported(hardware, precision, goal, tmp_path):
    report = str(tmp_path) if hardware is GPU else None  # of a CPU it says what ops cost, too
    config = amp_tf.AmpConfig(precision=precision, goal=goal, report_path=report)
    result = amp_tf.rewrite(graph(LOOP), config, hardware=hardware)
    assert {"product", "last"} <= {
        node.name for node in result.report.nodes if node.precision.is_f16
    }
    assert "matmuls and convolutions: 2 of 2" in str(result.report)


@pytest.mark.usefixtures("without_cpu")
def test_where_amp_tf_chooses_it_is():
    with pytest.raises(ImportError, match="amp_tf"):
        amp_tf.rewrite(graph(LOOP), amp_tf.AmpConfig(), hardware=CPU)
