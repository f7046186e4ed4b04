"""Graphs that are broken in random ways: each is refused with a GraphError, or rewritten; nothing else may happen."""

from __future__ import annotations

import contextlib
import gc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import amp_tf
from amp_tf.errors import GraphError
from amp_tf.oplists.hardware import Hardware
from tests.small_graphs import function, graph

TEXT = """
    x = Placeholder()
    n = Const() dtype=int32 value=int32[]*0
    axis = Const() dtype=int32 value=int32[]*0
    shape = Const() dtype=int32 value=int32[2]*4
    c = Placeholder() dtype=bool
    allow1 = MatMul(x, x) ^n
    e = Enter(allow1) frame_name='f'
    m = Merge(e, next)
    l = LoopCond(c)
    s = Switch(m, l)
    clr1 = Relu(s:1) @/device:CPU:0
    next = NextIteration(clr1)
    exit = Exit(s)
    split = Split(axis, exit) num_split=2
    many = IdentityN(split:1, n, split) T=[float32, int32, float32]
    sum1 = AddN(many, many:2)
    r = TensorListReserve(shape, n) element_dtype=float32 shape_type=int32
    w = TensorListSetItem(r, n, sum1) element_dtype=float32
    g = TensorListGetItem(w, n, shape) element_dtype=float32
    norm = FusedBatchNorm(g, x, x, x, x)
    cast1 = Cast(n) SrcT=int32 DstT=float32
    call = f(norm, cast1)
    allow2 = MatMul(call, call:1)
"""
FUNCTION = """
    function f(a: float32, b: float32) -> (y: float32, z: float32)
      m = MatMul(a, b) ^r
      r = Relu(a)
      return y = m:product:0
      return z = r:activations:0
"""
TYPES = (0, 1, 3, 7, 14, 19, 20, 21, 77, 101)
NAMES = ("x", "m", "f", "", "^x", "x:0", "x:1", "s:-1", "s:99999999999999999999", "m:product:0", "a:0", "ä", ":", "^")


def break_somewhere(proto, draw) -> None:
    """Changes one thing about the graph or about its function."""
    library = proto.library.function
    nodes = library[0].node_def if library and draw(st.booleans()) else proto.node
    if not nodes:
        return
    node = nodes[draw(st.integers(0, len(nodes) - 1))]
    attr = sorted(node.attr)[draw(st.integers(0, len(node.attr) - 1))] if node.attr else None
    kind = draw(st.integers(0, 11))
    if kind == 0:
        node.name = draw(st.sampled_from(NAMES))
    elif kind == 1:
        node.op = draw(st.sampled_from(("MatMul", "NextIteration", "TensorListStack", "While", "f", "Nothing", "")))
    elif kind == 2 and node.input:
        node.input[draw(st.integers(0, len(node.input) - 1))] = draw(st.sampled_from(NAMES))
    elif kind == 3:
        node.input.append(draw(st.sampled_from(NAMES)))
    elif kind == 4 and node.input:
        node.input.pop()
    elif kind == 5 and attr:
        del node.attr[attr]
    elif kind == 6 and attr:
        node.attr[attr].type = draw(st.sampled_from(TYPES))
    elif kind == 7 and attr:
        node.attr[attr].i = draw(st.sampled_from((-1, 0, 2, 2**62)))
    elif kind == 8 and attr:
        node.attr[attr].list.type.extend(draw(st.lists(st.sampled_from(TYPES), max_size=4)))
    elif kind == 9:
        node.device = draw(st.sampled_from(("/gpu:0", "/device:TPU:0", "nowhere", ":::")))
    elif kind == 10:
        nodes.remove(node)
    elif library:
        definition = library[0]
        definition.ret["y"] = draw(st.sampled_from(NAMES))
        definition.signature.output_arg[1].type = draw(st.sampled_from(TYPES))


@settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_broken_graph_is_refused_or_rewritten_and_never_changed(data):
    proto = graph(TEXT, function(FUNCTION))
    for _ in range(data.draw(st.integers(1, 3))):
        break_somewhere(proto, data.draw)
    before = proto.SerializeToString(deterministic=True)
    level = data.draw(st.sampled_from(("DEFAULT", "UNSAFE_FORCE_ALL")))
    config = amp_tf.AmpConfig(precision=data.draw(st.sampled_from(("float16", "bfloat16"))), level=level)
    with contextlib.suppress(GraphError):
        amp_tf.rewrite(proto, config, hardware=Hardware(cpu_has_bf16=True))
    assert proto.SerializeToString(deterministic=True) == before
    assert gc.isenabled()


def test_the_graph_that_is_broken_above_is_whole():
    result = amp_tf.rewrite(
        graph(TEXT, function(FUNCTION)), amp_tf.AmpConfig(precision="float16"), hardware=Hardware(cpu_has_bf16=True)
    )
    assert result.report.converted > 10


ESCAPES = "\x1b]0;owned\x07\n\x9b31m\u202e"  # a title, a line of its own, a colour, text turned around


@pytest.mark.parametrize("where", ["node", "device", "function", "body", "op", "input"])
def test_what_a_terminal_would_obey_reaches_no_message(where: str, tmp_path) -> None:
    proto = graph("x = Placeholder()\nm = MatMul(x, x)", function(FUNCTION))
    named = {
        "node": (proto.node[1], "name"),
        "device": (proto.node[1], "device"),
        "op": (proto.node[1], "op"),
        "function": (proto.library.function[0].signature, "name"),
        "body": (proto.library.function[0].node_def[1], "name"),
    }
    if where == "input":
        proto.node[1].input[0] = f"a{ESCAPES}"
    else:
        target, field = named[where]
        setattr(target, field, f"a{ESCAPES}")
    config = amp_tf.AmpConfig(precision="bfloat16", log_path=str(tmp_path))
    with pytest.raises(GraphError) as caught:
        amp_tf.rewrite(proto, config, hardware=Hardware(cpu_has_bf16=True))
    assert str(caught.value).isprintable()
    for file in tmp_path.glob("*.t*"):
        if not file.name.endswith(".pb.txt"):  # which escapes by itself
            assert file.read_text().replace("\n", "").replace("\t", "").isprintable()
    assert len((tmp_path / "index.tsv").read_text().splitlines()) == 2
