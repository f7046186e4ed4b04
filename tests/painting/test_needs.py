"""What a reader needs in float32, row by row: from where to where."""

from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

INPUT = """
x = Placeholder()
y = Placeholder()
z_of = VarHandleOp() dtype=float32 shape=[4, 4]
z = ReadVariableOp(z_of) dtype=float32
axis = Const() dtype=int32 value=int32[]*1
half = Const() value=float32[]*0.5
a = MatMul(x, y)
"""
CPU = {"precision": "bfloat16", "target": "cpu"}
GPU = {"precision": "float16", "target": "gpu"}
both = pytest.mark.parametrize("settings", [CPU, GPU], ids=["bfloat16", "float16"])


@both
@pytest.mark.parametrize("op", ["Sub(twice, z)", "Sub(z, twice)", "SquaredDifference(twice, z)", "Sqrt(twice)"])
def test_what_is_needed_is_float32_back_to_its_product(op, settings):
    result = painted(INPUT + f"twice = Mul(a, y)\nd = {op}\nb = MatMul(d, y)", **settings)
    assert result.f16 == "a b"
    assert result.why("twice") == (Rule.NEEDED, "d")


@both
@pytest.mark.parametrize("op", ["Log", "Log1p", "Cholesky", "MatrixInverse", "Prod"])
def test_a_logarithm_needs_all_that_it_is_computed_of(op, settings):
    text = f"s = AddV2(a, z)\np = Sigmoid(s)\nd = {op}(p{', axis' if op == 'Prod' else ''})\nb = MatMul(d, s)"
    result = painted(INPUT + text, **settings)
    assert result.why("p") == (Rule.NEEDED, "d")
    assert result.why("s") == (Rule.NEEDED, "p")
    assert result.f16 == "a b"


@both
@pytest.mark.parametrize(
    "text",
    [
        "s = AddV2(a, z)\nd = Sub(s, half)",  # a constant is no value that could be like the other
        "s = AddV2(a, z)\nm = Mean(s, axis) keep_dims=true\nstopped = StopGradient(m)\nd = Sub(s, stopped)",
        "s = AddV2(a, z)\nm = Mean(s, axis)\nwide = ExpandDims(m, axis)\nmoved = Squeeze(s)\nd = Sub(moved, wide)",
        "s = Tanh(a)\nd = Sqrt(s)",  # what is bounded is as it was rounded
        "s = Mul(a, y)\nm = Mean(s, axis)\nd = Sqrt(m)",  # roundings of either sign
    ],
    ids=["constant", "centred", "moved", "bounded", "mean"],
)
def test_what_asks_nothing_of_a_value_leaves_it_16_bit(text, settings):
    result = painted(INPUT + text + "\ndown = MatMul(s, y)\nb = MatMul(d, y)", **settings)
    assert "s" in result.f16.split()


@both
def test_what_a_gradient_only_sees_the_sign_of_is_not_needed(settings):
    text = "f = AddV2(a, z)\nr = Relu(f)\nb = MatMul(r, y)\nback = ReluGrad(b, r)\nd = Sub(back, z)\nc = MatMul(d, y)"
    result = painted(INPUT + text, **settings)
    assert {"f", "r"} <= set(result.f16.split())
    assert result.rule("back") is Rule.NEEDED


def test_a_product_is_16_bit_whoever_reads_it_and_what_was_fused_into_it_is_split_from_it():
    text = "f = _FusedMatMul(a, y, y) num_args=1 fused_ops=['BiasAdd']\nmoved = Squeeze(f)\nd = Sub(moved, a)\n"
    result = painted(INPUT + text + "b = MatMul(d, y)", **CPU)
    assert result.f16 == "a f b"
    assert [result.painting.view.names[node] for node in result.painting.to_split] == ["f"]
    plain = painted(INPUT + text.replace("Sub(moved, a)", "Tanh(moved)") + "b = MatMul(d, y)", **CPU)
    assert not plain.painting.to_split


@both
def test_what_the_user_forces_stays_so(settings):
    text = "s = AddV2(a, z)\nlogged = Log(s)\nb = MatMul(logged, s)"
    assert "s" in painted(INPUT + text, force_f16=("^s$",), **settings).f16.split()


def test_the_sentence_says_by_which_node_or_nothing():
    result = painted(INPUT + "s = AddV2(a, z)\nd = Sub(s, z)\nb = MatMul(d, y)", **CPU)
    assert result.words("s").endswith("which would show its rounding, by 'd'")
    assert result.words("d").endswith("which would show its rounding")


def test_of_two_sums_that_are_subtracted_neither_is_rounded_and_what_they_add_may_be():
    """The mean square less the square of the mean, as Keras' synchronized BatchNormalization takes it."""
    sums = "squares = Square(a)\ntotal = Sum(squares, axis)\nmean = Mean(a, axis)\nsquare = Square(mean)\n"
    text = f"{sums}scaled = DivNoNan(total, z)\nd = Sub(scaled, square)\nb = MatMul(d, squares)"
    result = painted(INPUT + text, **CPU)
    assert result.f16 == "a squares b"
    assert result.rule("total") is result.rule("mean") is Rule.NEEDED
    beside_a_value = painted(INPUT + text.replace("Sub(scaled, square)", "Sub(z, square)"), **CPU)
    assert "mean" in beside_a_value.f16.split()
