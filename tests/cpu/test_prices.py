"""By which row of the table nodes cost, and that only where amp_tf chooses is anything of costs
imported.
"""

import dataclasses
import sys

import pytest

import amp_tf
from amp_tf.cpu.prices import Prices
from amp_tf.graph.reader import read_graph
from amp_tf.graph.sizes import KnownShapes
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
from tests.small_graphs import graph


def _prices(text, table=SHIPPED, **shapes):
    """The prices of a graph of which some shapes are known."""
    view = read_graph(graph(text), Templates())
    known = KnownShapes({name: [shape] for name, shape in shapes.items()})
    return Prices(view, known, table)


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
    assert _prices(f"x = Placeholder()\n y = {line}").variant(1) == variant


def _convolution(op, layout):
    ones = [1] * len(layout)
    attributes = f"strides={ones} padding='SAME' data_format='{layout}'"
    return f"x = Placeholder()\nw = Placeholder()\ny = {op}(x, w) {attributes}"


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
    kernel = None
    if taps is not None:
        kernel = (*[taps] * (rank - 2), 4, 4)
    prices = _prices(_convolution(op, layout), x=(4,) * rank, w=kernel, y=None)
    assert prices.variant(2) == variant


@pytest.mark.parametrize(
    ("layout", "image", "result", "channels", "variant"),
    [
        ("NHWC", (8, 8, 8, 4), (8, 8, 8, 3), 16, ""),
        ("NCHW", (8, 4, 8, 8), (8, 3, 8, 8), 3, CHANNELS_FIRST),
    ],
)
def test_a_convolution_to_three_channels_costs_as_one_to_sixteen_where_channels_are_last(
    layout, image, result, channels, variant
):
    prices = _prices(_convolution("Conv2D", layout), x=image, w=(3, 3, 4, 3), y=result)
    operations = 2 * 8 * 8 * 8 * 4 * channels * 3 * 3
    elements = 8 * 8 * 8 * (4 + 3) + 3 * 3 * 4 * 3
    expected = SHIPPED.of_product("Conv2D", operations, elements, variant)
    assert prices.product(2) == pytest.approx(expected)


def _costing(**nanoseconds):
    """A table in which some ops cost two times for each element, in float32 and in 16 bit."""
    rows = {op: (pair,) * len(SHIPPED.sizes) for op, pair in nanoseconds.items()}
    return dataclasses.replace(SHIPPED, elements=rows)


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
    prices = _prices(f"x = Placeholder()\nz = Placeholder()\n{lines}", _costing(**{SWISH: (7, 5)}))
    assert (prices.op(2, 10.0) == (0.0, 0.0)) == is_one
    assert (prices.op(3, 10.0) == (70.0, 50.0)) == is_one


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
    text = f"x = Placeholder()\ny = Placeholder()\nz = {op}(x, y)"
    alone = {op: (4.0, 3.0)}
    both = {**alone, op + BROADCAST: (2.0, 1.0)}
    for rows, is_found in ((alone, False), (both, is_broadcast)):
        prices = _prices(text, _costing(**rows), x=(32, 64), y=other, z=(32, 64))
        expected = (20.0, 10.0) if is_found else (40.0, 30.0)
        assert prices.op(2, 10.0) == expected


@pytest.mark.parametrize(
    ("call", "stride", "taps", "is_slow"),
    [
        ("BackpropInput(sizes, x, x)", 1, 3, False),
        ("BackpropInput(sizes, x, x)", 1, 5, False),
        ("BackpropInput(sizes, x, x)", 2, 3, True),
        ("BackpropFilter(x, sizes, x)", 2, 3, False),
        ("BackpropFilter(x, sizes, x)", 1, 5, True),
        ("BackpropFilter(x, sizes, x)", 1, 7, True),
    ],
)
def test_a_depthwise_gradient_is_slow_for_strides_or_for_many_taps(call, stride, taps, is_slow):
    text = f"""
        x = Placeholder()
        sizes = Const() dtype=int32 value=int32[4]*1
        y = DepthwiseConv2dNative{call} strides=[1, {stride}, {stride}, 1] padding='SAME'
    """
    kernel = (taps, taps, 8, 1)
    prices = _prices(text, x=kernel, y=kernel)
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
def without_cpu(monkeypatch):
    """Nothing that only auto on CPUs needs can be imported, whatever was before."""
    monkeypatch.delattr(amp_tf, "cpu", raising=False)
    rewriting = [f"amp_tf.rewriting.{name}" for name in ("folding", "lifting")]
    needed = ("amp_tf.cpu", *rewriting)
    for name in [*sys.modules, *needed]:
        if name.startswith(needed):
            monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("goal", ["speed", "memory"])
@pytest.mark.parametrize(
    ("hardware", "precision"), [(GPU, "auto"), (GPU, "float16"), (CPU, "bfloat16")]
)
@pytest.mark.usefixtures("without_cpu")
def test_elsewhere_nothing_of_it_is_imported(hardware, precision, goal, tmp_path):
    # On a CPU, the report also says what ops cost.
    report = str(tmp_path) if hardware is GPU else None
    config = amp_tf.AmpConfig(precision=precision, goal=goal, report_path=report)
    found = amp_tf.rewrite(graph(LOOP), config, hardware=hardware).report
    for product in found.nodes.where(op="MatMul"):
        assert product.precision.is_f16
    assert "matmuls and convolutions: 2 of 2" in str(found)


@pytest.mark.usefixtures("without_cpu")
def test_where_amp_tf_chooses_it_is():
    with pytest.raises(ImportError, match="amp_tf"):
        amp_tf.rewrite(graph(LOOP), amp_tf.AmpConfig(), hardware=CPU)
