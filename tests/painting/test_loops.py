from __future__ import annotations

import pytest

from amp_tf.errors import GraphError
from amp_tf.painting.reasons import Rule
from tests.painting.painted import painted


def loop(body: str, last: str) -> str:
    """A loop as Grappler sees it; ``m:0`` is the value that goes round, and ``last`` what becomes of it."""
    return f"""
        x = Placeholder()
        c = Placeholder() dtype=bool
        in0 = MatMul(x, x)
        e = Enter(in0) frame_name='f'
        m = Merge(e, n)
        l = LoopCond(c)
        s = Switch(m, l)
        {body}
        n = NextIteration({last})
        exit = Exit(s)
        out0 = MatMul(exit, exit)
    """


def test_a_loop_of_converted_ops_is_converted_as_a_whole():
    result = painted(loop("clr1 = Relu(s:1)", "clr1"))
    assert result.f16 == "in0 e m s clr1 n exit out0"
    assert result.rule("n").converts


def test_a_dangerous_op_in_the_loop_keeps_both_ends_of_its_back_edge():
    result = painted(loop("deny1 = Exp(s:1)\ninfer1 = Sqrt(deny1)", "infer1"))
    assert {"n", "m", "deny1"}.isdisjoint(result.f16.split())
    assert {"in0", "out0"} <= set(result.f16.split())


def test_one_end_that_must_stay_keeps_the_other():
    for kept in ("^n$", "^m$"):
        result = painted(loop("clr1 = Relu(s:1)", "clr1"), keep_float32=(kept,))
        assert {"n", "m"}.isdisjoint(result.f16.split())
        other = {"^n$": "m", "^m$": "n"}[kept]
        assert result.rule(other) in (Rule.LOOP_DENIED, Rule.NO_ALLOW_NEIGHBOUR)
    assert painted(loop("clr1 = Relu(s:1)", "clr1"), keep_float32=("^n$",)).why("m") == (Rule.LOOP_DENIED, "")


def test_a_preserved_end_keeps_the_other():
    result = painted(loop("clr1 = Relu(s:1)", "clr1"), preserve=["n"])
    assert {"n", "m"}.isdisjoint(result.f16.split())


def test_the_other_end_follows_although_it_has_no_reason_of_its_own():
    result = painted(loop("clr1 = Relu(s:1)\nother1 = Digamma(clr1)", "other1"), clear_remove=("NextIteration",))
    assert "m" in result.f16.split()
    assert result.why("n") == (Rule.LOOP_FOLLOWS, "")


def test_a_counter_is_left_alone():
    text = """
        x = Placeholder()
        allow1 = MatMul(x, x)
        i = Placeholder() dtype=int32
        e = Enter(i) T=int32 frame_name='f'
        m = Merge(e, n) T=int32
        n = NextIteration(m) T=int32
    """
    result = painted(text)
    assert result.f16 == "allow1"
    assert result.rule("n") is Rule.NO_FLOAT32


def test_a_next_iteration_that_no_merge_reads_is_refused_with_the_place():
    text = "x = Placeholder()\na = MatMul(x, x)\nn = NextIteration(a)\nr = Relu(n)"
    with pytest.raises(GraphError) as caught:
        painted(text)
    assert str(caught.value) == (
        "node 'r': reads a NextIteration, which only a Merge may do, and is a Relu. "
        "The loop is broken; export the graph again."
    )
