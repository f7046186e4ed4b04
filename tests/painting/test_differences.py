"""A value and its own mean, where the program added a number to the value."""

from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Code
from tests.painting.painted import both, painted

INPUT = """
x = Placeholder()
y = Placeholder()
z_of = VarHandleOp() dtype=float32 shape=[4, 4]
z = ReadVariableOp(z_of) dtype=float32
axis = Const() dtype=int32 value=int32[]*1
one = Const() value=float32[]*1
a = MatMul(x, y)
t = Mul(a, y)
"""


@both
@pytest.mark.parametrize(
    ("text", "is_needed"),
    [
        ("s = AddV2(t, one)", True),
        ("u = AddV2(t, one)\ns = AddV2(u, z)", True),
        ("s = AddV2(t, z)", False),
        ("u = AddV2(t, one)\ns = Mul(u, a)", False),  # a factor is no offset
    ],
    ids=["number", "and a bias", "bias", "factor"],
)
def test_a_number_that_a_mean_takes_away_again_is_added_in_float32(text, is_needed, settings):
    text = f"{INPUT}{text}\nm = Mean(s, axis)\nd = Sub(s, m)\nc = MatMul(s, y)\nb = MatMul(d, y)"
    result = painted(text, **settings)
    assert ("s" in result.f16.split()) is not is_needed
    assert (result.code("s") is Code.NEEDED) is is_needed
