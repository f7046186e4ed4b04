"""What passes a value on, and what picks rows of a table: float32 where the cast can stand behind it."""

from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

INPUT = "x = Placeholder()\ny = Placeholder()\nrows = Const() dtype=int32 value=int32[2]*4\n"
CPU = {"precision": "bfloat16", "target": "cpu"}
GPU = {"precision": "float16", "target": "gpu"}
both = pytest.mark.parametrize("settings", [CPU, GPU], ids=["bfloat16", "float16"])


@both
def test_what_products_alone_read_is_converted(settings):
    """The cast stands before it."""
    text = INPUT + "flat = Reshape(x, rows)\na = MatMul(flat, y)\nb = MatMul(y, flat)"
    assert painted(text, **settings).f16 == "flat a b"


@both
def test_so_is_what_hands_the_value_to_it_however_far(settings):
    chain = "first = Reshape(x, rows)\nsecond = Squeeze(first)\nthird = Reshape(second, rows)\n"
    result = painted(INPUT + chain + "a = MatMul(third, y)\nexact = Digamma(third)", **settings)
    assert result.f16 == "a"
    assert {result.rule(name) for name in ("first", "second", "third")} == {Rule.CARRIED}


@both
def test_what_comes_after_the_last_other_reader_is_converted(settings):
    chain = "first = Reshape(x, rows)\nsecond = Squeeze(first)\n"
    result = painted(INPUT + chain + "a = MatMul(second, y)\nexact = Digamma(first)", **settings)
    assert result.f16 == "second a"
    assert result.rule("first") is Rule.CARRIED


@both
def test_a_value_that_is_16_bit_already_stays_so(settings):
    """A product gave it: in float32 it would be no more exact."""
    chain = "p = MatMul(x, y)\nfirst = Reshape(p, rows)\nsecond = Squeeze(first)\n"
    result = painted(INPUT + chain + "a = MatMul(second, y)\nexact = Digamma(second)", **settings)
    assert result.f16 == "p first second a"


def test_the_gradient_of_a_bias_is_a_sum_of_gradients_that_nobody_rounded():
    """Its product's gradients read them in 16 bit: one cast for both, behind the Reshape."""
    result = painted(
        INPUT + "axes = Const() dtype=int32 value=int32[]*0\nback = Reshape(y, rows)\n"
        "kernel = MatMul(x, back) transpose_a=true\nbefore = MatMul(back, x)\nbias = Sum(back, axes)\n"
        "step = Mul(bias, x)",
        **CPU,
    )
    assert result.f16 == "kernel before"
    assert result.rule("back") is Rule.CARRIED


TABLE = (
    "handle = VarHandleOp() dtype=float32 shape=[5000, 8]\ntable = ReadVariableOp(handle) dtype=float32\n"
    "axis = Const() dtype=int32 value=int32[]*0\n"
    "found = GatherV2(table, rows, axis) Tindices=int32 Taxis=int32\na = MatMul(found, y)"
)


@both
def test_a_table_that_a_product_reads_as_well_is_cast_once(settings):
    """The logits of a language model, by the table of its embeddings."""
    assert painted(f"{INPUT}{TABLE}\nlogits = MatMul(x, table)", **settings).f16 == "found a logits"


@both
def test_rows_of_what_a_product_gave_are_16_bit(settings):
    text = TABLE.replace("table = ReadVariableOp(handle) dtype=float32", "table = MatMul(x, y)")
    assert painted(INPUT + text, **settings).f16 == "table found a"


@both
def test_of_what_is_no_variable_and_of_unknown_size_nothing_is_moved(settings):
    text = TABLE.replace("table = ReadVariableOp(handle) dtype=float32", "table = Placeholder()")
    assert painted(INPUT + text, **settings).f16 == "found a"
