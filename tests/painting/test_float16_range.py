"""Squares, quotients and gradients of roots, which leave float16's range where bfloat16 holds them."""

from __future__ import annotations

from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

INPUT = "x = Placeholder()\ny = Placeholder()\n"
CPU = {"precision": "bfloat16", "target": "cpu"}
GPU = {"precision": "float16", "target": "gpu"}


def test_a_square_is_float32_in_float16_and_a_product_of_two_is_not():
    text = INPUT + "a = MatMul(x, y)\ns = Mul(a, {other})\nb = MatMul(s, y)"
    assert painted(text.format(other="a"), **GPU).rule("s") is Rule.LEAVES_RANGE
    assert painted(text.format(other="y"), **GPU).f16 == "a s b"
    assert painted(text.format(other="a"), **CPU).f16 == "a s b"


def test_a_quotient_is_float32_in_float16_unless_its_divisor_is_a_constant():
    text = INPUT + "eight = Const() value=float32[]*8\na = MatMul(x, y)\nq = RealDiv(a, {divisor})\nb = MatMul(q, y)"
    assert painted(text.format(divisor="y"), **GPU).rule("q") is Rule.LEAVES_RANGE
    assert painted(text.format(divisor="eight"), **GPU).f16 == "a q b"


def test_what_reads_the_gradient_of_a_root_is_float32_in_float16():
    """The gradient of a root of 1e-3 is 16 times as large; times 1e-3 it is in range again, but not if it was cast."""
    text = INPUT + "a = MatMul(x, y)\ng = SqrtGrad(x, a)\nm = Mul(g, a)\nb = MatMul(m, y)"
    assert painted(text, **GPU).rule("m") is Rule.LEAVES_RANGE
    assert painted(text, **CPU).f16 == "a m b"


def test_so_is_what_reads_it_once_it_was_moved_and_multiplied_by_a_constant():
    """As in the gradient of RMSNorm: the gradient of a mean tiles it and divides it by a count."""
    text = INPUT + (
        "multiples = Const() dtype=int32 value=int32[2]*4\ncount = Const() value=float32[]*8\na = MatMul(x, y)\n"
        "g = RsqrtGrad(x, a)\nmoved = Tile(g, multiples)\nscaled = RealDiv(moved, count)\nm = Mul(scaled, {value})\n"
        "b = MatMul(m, y)"
    )
    for value in ("a", "y"):
        found = painted(text.format(value=value), **GPU)
        assert found.rule("scaled") is found.rule("m") is Rule.LEAVES_RANGE
    assert painted(text.format(value="a"), **CPU).f16 == "a m b"
