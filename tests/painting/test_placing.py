"""Ops that pass a value on, or pick rows of a table, are float32 where a cast can stand behind
them.
"""

from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Code
from tests.painting.painted import CPU, both, check

INPUT = "x = Placeholder()\ny = Placeholder()\nrows = Const() dtype=int32 value=int32[2]*4\n"
MOVED = "first = Reshape({}, rows)\nsecond = Squeeze(first)\n"
READ = "table = ReadVariableOp(handle) dtype=float32"
TABLE = (
    f"handle = VarHandleOp() dtype=float32 shape=[5000, 8]\n{READ}\naxis = Const() dtype=int32 "
    "value=int32[]*0\n"
    "found = GatherV2(table, rows, axis) Tindices=int32 Taxis=int32\na = MatMul(found, y)"
)
#: The graph, the nodes that become 16 bit, and those through which a float32 value passes.
SHOWN = {
    "what products alone read is converted: the cast stands before it": (
        "flat = Reshape(x, rows)\na = MatMul(flat, y)\nb = MatMul(y, flat)",
        "flat a b",
        "",
    ),
    "what something else reads stays, and what hands the value to it, however far": (
        f"{MOVED.format('x')}third = Reshape(second, rows)\na = MatMul(third, y)\nexact = "
        "Digamma(third)",
        "a",
        "first second third",
    ),
    "what comes after the last other reader is converted": (
        f"{MOVED.format('x')}a = MatMul(second, y)\nexact = Digamma(first)",
        "second a",
        "first",
    ),
    "what a product gave is 16 bit already, and no more exact in float32": (
        f"p = MatMul(x, y)\n{MOVED.format('p')}a = MatMul(second, y)\nexact = Digamma(second)",
        "p first second a",
        "",
    ),
    "a table that a product reads as well, as the logits of a language model do, is cast once": (
        f"{TABLE}\nlogits = MatMul(x, table)",
        "found a logits",
        "",
    ),
    "rows of what a product gave are 16 bit": (
        TABLE.replace(READ, "table = MatMul(x, y)"),
        "table found a",
        "",
    ),
    "of what is no variable and of unknown size nothing is moved": (
        TABLE.replace(READ, "table = Placeholder()"),
        "found a",
        "",
    ),
}


@both
@pytest.mark.parametrize(("text", "f16", "passing"), SHOWN.values(), ids=SHOWN)
def test_casts_stand_behind_what_passes_a_float32_value_on(text, f16, passing, settings):
    rules = dict.fromkeys(passing.split(), Code.CARRIED)
    check(INPUT + text, f16, rules, settings)


SLICE = "s = Const() dtype=int32 value=int32[2]*1"
#: Nodes that arrange gradients: behind a slice, a transposition and parts of a tensor.
ARRANGED = {
    "slice": "back = StridedSliceGrad(rows, s, s, s, y) Index=int32",
    "transposition": "back = Transpose(y, s)",
    "parts": "back = ConcatV2(y, y, zero) N=2",
}


@pytest.mark.parametrize("back", ARRANGED.values(), ids=ARRANGED)
def test_the_gradient_of_a_bias_is_not_rounded_where_gradients_are_arranged(back):
    text = (
        f"{SLICE}\nzero = Const() dtype=int32 value=int32[]*0\n{{}}\n"
        "kernel = MatMul(x, back) transpose_a=true\nbefore = MatMul(back, x)\n"
        "bias = Sum(back, zero)\nstep = Mul(bias, x)"
    )
    check(INPUT + text.format(back), "kernel before", {"back": Code.CARRIED}, CPU)
    of_a_product = f"p = MatMul(x, y)\n{back.replace('y', 'p')}"
    check(INPUT + text.format(of_a_product), "p back kernel before", {}, CPU)


def test_the_gradient_of_a_bias_is_a_sum_of_gradients_that_nobody_rounded():
    """Its product's gradients read them in 16 bit: one cast for both, behind the Reshape."""
    text = (
        "axes = Const() dtype=int32 value=int32[]*0\nback = Reshape(y, rows)\n"
        "kernel = MatMul(x, back) transpose_a=true\nbefore = MatMul(back, x)\nbias = Sum(back, "
        "axes)\n"
        "step = Mul(bias, x)"
    )
    check(INPUT + text, "kernel before", {"back": Code.CARRIED}, CPU)
