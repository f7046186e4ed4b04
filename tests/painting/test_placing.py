"""What picks rows of a table: float32, and its result is cast, unless a product reads the table itself."""

from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted

INPUT = "x = Placeholder()\ny = Placeholder()\nrows = Const() dtype=int32 value=int32[2]*4\n"
CPU = {"precision": "bfloat16", "target": "cpu"}
GPU = {"precision": "float16", "target": "gpu"}
both = pytest.mark.parametrize("settings", [CPU, GPU], ids=["bfloat16", "float16"])


TABLE = (
    "handle = VarHandleOp() dtype=float32 shape=[5000, 8]\ntable = ReadVariableOp(handle) dtype=float32\n"
    "axis = Const() dtype=int32 value=int32[]*0\n"
    "found = GatherV2(table, rows, axis) Tindices=int32 Taxis=int32\na = MatMul(found, y)"
)


@both
def test_rows_of_a_table_are_cast_and_not_the_table(settings):
    result = painted(INPUT + TABLE, **settings)
    assert result.f16 == "a"
    assert result.rule("found") is Rule.PICKED


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


@both
def test_rows_that_the_user_forces_are_16_bit(settings):
    assert painted(INPUT + TABLE, force_f16=("^found$",), **settings).f16 == "found a"
