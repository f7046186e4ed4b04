"""What counts as exact, what as a parameter, and where exact and product join."""

from __future__ import annotations

import pytest

from amp_tf.painting.origins import GREAT, NEVER
from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

CPU = {"precision": "bfloat16", "target": "cpu"}
START = """
    x = Placeholder()
    handle = VarHandleOp() dtype=float32 shape=[4]
    bias = ReadVariableOp(handle) dtype=float32
    axis = Const() dtype=int32 value=int32[]*1
    a = MatMul(x, x)
"""
END = "\nb = MatMul(s, x)"


@pytest.mark.parametrize(
    "joined",
    [
        "s = AddV2(x, a)",
        "s = AddV2(a, x)",
        "s = Sub(a, x)",
        "n = Placeholder() dtype=int32\nf = Cast(n) SrcT=int32 DstT=float32\ns = AddV2(a, f)",
        f"c = Const() value=float32[]*{GREAT}\ns = AddV2(a, c)",
        "t = Mul(x, bias)\ns = AddV2(a, t)",
        "w_of = VarHandleOp() dtype=float32 shape=[4, 4]\nw = ReadVariableOp(w_of) dtype=float32\np = MatMul(x, w)\n"
        "s = Sub(w, p)",  # an update
    ],
)
def test_what_adds_exact_data_to_what_a_product_gave_is_float32(joined):
    assert painted(START + joined + END, **CPU).rule("s") is Rule.JOINED


@pytest.mark.parametrize(
    "free",
    [
        "s = AddV2(a, bias)",
        "s = BiasAdd(a, x)",  # a value for each channel, whatever it is
        "s = Mul(a, x)",
        "t = Mul(x, a)\ns = AddV2(t, a)",
        "c = Const() value=float32[]*1\ns = AddV2(a, c)",
        f"c = Const() value=float32[]*-{NEVER:.0f}\nm = Mul(x, c)\ns = AddV2(a, m)",  # a mask
        "size = Const() dtype=int32 value=int32[2]*4\nr = RandomUniform(size) T=int32\ns = AddV2(a, r)",
        "t = Tanh(x)\ns = AddV2(a, t)",
        "s = ConcatV2(a, x, axis) N=2",  # each number keeps its own rounding
    ],
)
def test_what_multiplies_or_adds_parameters_and_what_products_alone_read_may_be_16_bit(free):
    assert "s" in painted(START + free + END, **CPU).f16.split()


def test_what_moves_a_joined_value_to_a_sum_is_float32():
    result = painted(START + "m = ConcatV2(a, x, axis) N=2\nr = Relu(m)\ns = Sub(r, a)" + END, **CPU)
    assert result.f16 == "a b"
    assert {result.rule(name) for name in ("m", "r", "s")} == {Rule.JOINED}


def test_a_bounded_or_normalized_result_begins_anew():
    result = painted(START + "j = AddV2(x, a)\nt = Tanh(j)\ns = AddV2(t, a)" + END, **CPU)
    assert result.rule("j") is result.rule("t") is Rule.JOINED
    assert "s" in result.f16.split()


def test_a_sum_that_no_product_uses_is_told_so():
    assert painted(START + "s = AddV2(x, a)", **CPU).rule("s") is Rule.AFTER_PRODUCTS


def test_an_argument_that_a_trace_captured_is_a_parameter():
    """Callers give those before; a captured table of positions is added as a bias is."""
    import tensorflow as tf

    from amp_tf import AmpConfig, rewrite

    kept = tf.random.normal((4, 4))
    weight = tf.Variable(tf.eye(4))

    @tf.function
    def run(x, y):
        a = tf.matmul(x, weight)
        return tf.matmul(tf.add(a, kept, name="captured"), tf.add(a, y, name="given"))

    function = run.get_concrete_function(*[tf.TensorSpec((4, 4))] * 2)
    done = rewrite(function.function_def, AmpConfig(**CPU), library=function.graph.as_graph_def().library)
    f16 = {node.name: node.precision.is_f16 for node in done.report.graphs[0].nodes}
    assert f16["captured"]
    assert not f16["given"]
