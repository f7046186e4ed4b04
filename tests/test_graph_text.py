"""Graphs as text, and golden files of it."""

from __future__ import annotations

import pytest

from tests.golden import check_golden
from tests.graph_text import node_to_text, to_text
from tests.small_graphs import function, node


def test_an_unknown_rank_is_told_from_a_scalar():
    made = node("x = Placeholder() dtype=float32 shape=[]")
    scalar = node_to_text(made)
    made.attr["shape"].shape.unknown_rank = True
    assert (scalar, node_to_text(made)) == (
        "x = Placeholder() dtype=float32 shape=[]",
        "x = Placeholder() dtype=float32 shape=[...]",
    )


def test_what_each_call_chooses_and_side_effects_show_in_a_function():
    made = function("function f(x: float32) -> (y: float32)\nn = NoOp()\nreturn y = x")
    made.signature.input_arg[0].number_attr = "N"
    made.signature.input_arg[0].type_attr = "T"
    made.signature.output_arg[0].is_ref = True
    made.control_ret["n"] = "n"
    made.attr["_noinline"].b = True
    assert to_text(made).splitlines() == [
        "function f(x: N * T) -> (y: float32_ref) _noinline=true",
        "  n = NoOp()",
        "  return y = x",
        "  return ^n",
    ]


def test_a_different_text_fails_with_the_difference_and_is_written_beside(tmp_path):
    (tmp_path / "g.txt").write_text("a\nb\n")
    with pytest.raises(AssertionError, match=r"-b\n\+c"):
        check_golden("g", "a\nc\n", tmp_path)
    assert (tmp_path / "g.actual").read_text() == "a\nc\n"
    assert (tmp_path / "g.txt").read_text() == "a\nb\n"


def test_a_text_without_a_golden_file_fails_and_is_written(tmp_path):
    with pytest.raises(AssertionError, match=r"\+a"):
        check_golden("g", "a\n", tmp_path)
    assert (tmp_path / "g.actual").read_text() == "a\n"
