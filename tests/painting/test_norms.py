"""Roots of sums of squares: from where to where they are float32."""

from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

START = """
x = Placeholder()
y = Placeholder()
axis = Const() dtype=int32 value=int32[]*1
a = MatMul(x, y)
"""
CPU = {"precision": "bfloat16", "target": "cpu"}


@pytest.mark.parametrize("root", ["Rsqrt", "Sqrt"])
@pytest.mark.parametrize("total", ["Sum", "Mean"])
@pytest.mark.parametrize("square", ["Square(a)", "Mul(a, a)"])
def test_a_norm_is_float32_from_its_squares_to_its_root(square, total, root):
    result = painted(
        START
        + f"""
        s = {square}
        t = {total}(s, axis)
        more = AddV2(t, y)
        bound = Maximum(more, y)
        r = {root}(bound)
        n = Mul(a, r)
        b = MatMul(n, y)
        """,
        **CPU,
    )
    assert not {"s", "t", "more", "bound", "r"} & set(result.f16.split())
    assert {result.rule(name) for name in ("s", "t", "more", "bound", "r")} <= {Rule.NORM, Rule.DENY_LIST}
    assert {"a", "n", "b"} <= set(result.f16.split())


@pytest.mark.parametrize(
    "between",
    [
        "s = Square(a)\nt = Mean(s, axis)\nn = Mul(a, t)",  # no root
        "s = Square(a)\nr = Rsqrt(s)\nn = Mul(a, r)",  # no sum
        "t = Mean(a, axis)\nr = Rsqrt(t)\nn = Mul(a, r)",  # no squares
        "s = Square(a)\nt = Mean(s, axis)\nw = Tanh(t)\nr = Rsqrt(w)\nn = Mul(a, r)",  # of something else
    ],
)
def test_what_is_no_norm_is_converted(between):
    result = painted(START + between + "\nb = MatMul(n, y)", **CPU)
    assert {line.partition(" ")[0] for line in between.splitlines()} <= set(result.f16.split())


def test_squares_that_others_sum_too_are_float32_for_the_norm():
    result = painted(
        START
        + """
        s = Square(a)
        t = Mean(s, axis)
        r = Rsqrt(t)
        other = Sum(s, axis)
        n = Mul(a, r)
        b = MatMul(n, y)
        c = MatMul(other, y)
        """,
        **CPU,
    )
    assert "s" not in result.f16.split()
