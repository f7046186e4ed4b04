"""Graphs as text, and golden files of it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.golden import check_golden
from tests.graph_text import node_to_text, to_text
from tests.small_graphs import function, node


@pytest.mark.parametrize(
    "line",
    [
        "x = Placeholder() dtype=float32 shape=[2, ?]",
        "x = Const() dtype=int32 value=int32[2, 3]",
        "x = Const() dtype=int32 value=int32[]",
        "m = MatMul(a, b:1) T=bfloat16 transpose_a=false transpose_b=true @/device:CPU:0 ^c ^d",
        "n = NoOp() ^c",
        "i = IdentityN(a, b) T=[float32, int64]",
        "l = LeakyRelu(a) T=float32 alpha=0.200000003",
        "c = Conv2D(a, b) T=float32 data_format='NHWC' padding='SAME' strides=[1, 2, 2, 1]",
        "w = While(a) T=[float32] body=body() cond=cond() output_shapes=[]",
        "a = AddN(a, b) N=2 T=float32 _scope='x y'",
    ],
)
def test_a_node_is_one_line(line):
    made = node(line)
    for name in set(made.attr) - {part.partition("=")[0] for part in line.split()}:
        del made.attr[name]
    assert node_to_text(made) == line


def test_an_unknown_rank_is_told_from_a_scalar():
    made = node("x = Placeholder() dtype=float32 shape=[]")
    scalar = node_to_text(made)
    made.attr["shape"].shape.unknown_rank = True
    assert (scalar, node_to_text(made)) == (
        "x = Placeholder() dtype=float32 shape=[]",
        "x = Placeholder() dtype=float32 shape=[...]",
    )


FUNCTION = """\
function f(x: float32, n: int32) -> (y: float32)
  m = MatMul(x, x) T=float32 grad_a=false grad_b=false transpose_a=false transpose_b=false
  return y = m:product:0
"""


def test_a_function_is_its_signature_its_body_and_its_results():
    made = function(FUNCTION)
    for name in ("grad_a", "grad_b", "transpose_a", "transpose_b"):
        made.node_def[0].attr[name].b = False
    assert to_text(made) == FUNCTION


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


def test_a_graph_that_tensorflow_made_has_a_line_for_each_node():
    @tf.function
    def step(x):
        return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.matmul(y, y)), [0, x])[1]

    graph_def = step.get_concrete_function(tf.TensorSpec([4, 4])).graph.as_graph_def()
    text = to_text(graph_def)
    bodies = graph_def.library.function
    named = [item.name for item in (*graph_def.node, *(item for body in bodies for item in body.node_def))]
    assert len(named) > 10
    assert text.count(" = MatMul(") == 1
    for name in named:
        assert f"{name} = " in text


def test_an_equal_text_passes_and_takes_an_old_actual_file_away(tmp_path):
    (tmp_path / "g.txt").write_text("a\nb\n")
    (tmp_path / "g.actual").write_text("old")
    check_golden("g", "a\nb\n", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["g.txt"]


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
