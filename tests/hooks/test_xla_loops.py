"""Which casts leave a loop's body, in functions such as other libraries than TensorFlow's tracing write them."""

from __future__ import annotations

import pytest
from tensorflow.core.framework import function_pb2

from amp_tf.graph.text import to_text
from amp_tf.hooks.xla_loops import fixed_arguments, hoist_casts
from tests.small_graphs import function

CALLER = function("""
    function main(x: float32, w: float32) -> (y: float32)
      loop = While(x, w) T=[float32, float32] cond=cond body=body
      return y = loop:output:0
""")
COND = function("""
    function cond(x: float32, w: float32) -> (go: bool)
      g = Const() dtype=bool value=bool[]*1
      return go = g:output:0
""")


def body(nodes: str, right: str = "c:y:0", w: str = "float32") -> function_pb2.FunctionDef:
    """A body that multiplies x with ``right``, a bfloat16 tensor of one of the nodes, and hands w on."""
    return function(f"""
        function body(x: float32, w: {w}) -> (y: float32, same: {w})
          {nodes}
          left = Cast(x) DstT=bfloat16
          product = MatMul(left:y:0, {right}) T=bfloat16
          result = Cast(product:product:0) SrcT=bfloat16 DstT=float32
          return y = result:y:0
          return same = w
    """)


def hoist(looped: function_pb2.FunctionDef) -> int:
    caller, cond = (type(made).FromString(made.SerializeToString()) for made in (CALLER, COND))
    return hoist_casts(caller, 0, cond, looped)


@pytest.mark.parametrize("right", ["c:y:0", "c:y"])  # the number of a result's only tensor may be left out
def test_what_read_a_cast_reads_what_the_loop_carries(right):
    looped = body("c = Cast(w) DstT=bfloat16", right)
    assert hoist(looped) == 1
    assert "product = MatMul(left:y:0, amp_tf_invariant)" in to_text(looped)
    assert "c = Cast" not in to_text(looped)


@pytest.mark.parametrize("handle", ["w", "i:output:0", "i:output"])
@pytest.mark.parametrize(("line", "fixed"), [("AssignVariableOp({}, x)", set()), ("ReadVariableOp({})", {"w"})])
def test_variable_that_the_body_writes_is_not_fixed_whatever_it_is_called_there(line, fixed, handle):
    looped = body(
        f"""
        use = {line.format(handle)} dtype=float32 ^r
        i = Identity(w) T=resource
        r = ReadVariableOp(i:output) dtype=float32
        c = Cast(r:value:0) DstT=bfloat16
        """,
        w="resource",
    )
    assert fixed_arguments(function("function cond(x: float32, w: resource) -> ()"), looped) == fixed


def test_what_waits_for_a_cast_still_waits_for_what_the_cast_waits_for():
    looped = body("""
        first = NoOp()
        i = Identity(w) ^first
        c = Cast(i:output:0) DstT=bfloat16
        last = NoOp() ^c
    """)
    before = to_text(looped)
    assert hoist(looped) == 0
    assert to_text(looped) == before


def test_cast_that_the_body_promises_to_run_stays_in_it():
    looped = body("c = Cast(w) DstT=bfloat16")
    looped.control_ret["done"] = "c"
    looped.signature.control_output.append("done")
    assert hoist(looped) == 0
