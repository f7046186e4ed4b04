from __future__ import annotations

import pytest

from amp_tf.graph.moving import (
    BiasTurn,
    Move,
    Moves,
    NewEnter,
    NewRead,
    NewReshape,
    Wait,
    apply_moves,
    find_deviation,
)
from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from tests.small_graphs import graph

TEXT = """
    x = Placeholder() shape=[2, 4, 4, 3]
    w = Placeholder() shape=[1, 1, 3, 3]
    s = Placeholder() shape=[3]
    conv = Conv2D(x, w) padding='SAME' strides=[1, 1, 1, 1]
    scaled = Mul(conv, s)
    shifted = AddV2(scaled, s)
"""
X, W, S, CONV, SCALED, SHIFTED = range(6)
RESHAPE = NewReshape(("shape", "vector"), S, 0, (1, 3), SCALED)
MOVES = Moves(
    (Move(CONV, 1, SCALED, 0), Move(SCALED, 0, W, 0), Move(SCALED, 1, 7, 0), Move(SHIFTED, 0, CONV, 0)),
    (BiasTurn(SHIFTED),),
    (RESHAPE,),
)


def moved(tamper=lambda proto: None):
    """The views before and after the moves, and what was tampered with besides."""
    before, proto = read_graph(graph(TEXT), Templates()), graph(TEXT)
    apply_moves(proto.node, before, MOVES)
    tamper(proto)
    return before, read_graph(proto, Templates()), proto


def test_moved_nodes_read_what_was_planned():
    before, after, proto = moved()
    assert [list(node.input) for node in proto.node[CONV:]] == [
        ["x", "scaled"],
        ["w", "vector"],
        ["conv", "s"],
        [],
        ["s", "shape"],
    ]
    assert list(proto.node[6].attr["value"].tensor.int_val) == [1, 3]
    assert find_deviation(before, after, MOVES) == ""


@pytest.mark.parametrize(
    ("tamper", "found"),
    [
        (lambda proto: proto.node[SCALED].input.reverse(), "reads a tensor that was not planned"),
        (lambda proto: setattr(proto.node[SCALED], "op", "Add"), "the ops of the nodes"),
        (lambda proto: setattr(proto.node[X], "device", "/cpu:0"), "the devices of the nodes"),
        (lambda proto: proto.node.add(name="more", op="NoOp"), "the names of the nodes"),
    ],
)
def test_what_was_not_planned_is_found(tamper, found):
    before, after, _ = moved(tamper)
    assert found in find_deviation(before, after, MOVES)


def test_a_cycle_is_found():
    before, proto = read_graph(graph(TEXT), Templates()), graph(TEXT)
    ring = Moves((Move(CONV, 1, SCALED, 0),))
    apply_moves(proto.node, before, ring)
    assert "is on a cycle" in find_deviation(before, read_graph(proto, Templates()), ring)


LOOP = """
    w = VarHandleOp() dtype=float32 shape=[4, 4]
    x = Placeholder() shape=[4, 4]
    w_in = Enter(w) T=resource frame_name='loop' is_constant=true parallel_iterations=7 @/device:CPU:0
    x_in = Enter(x) frame_name='loop'
    read = ReadVariableOp(w_in) dtype=float32 _mark=true @/device:CPU:0 ^x_in
    product = MatMul(x_in, read)
"""
W_OUTSIDE, X_OUTSIDE, W_IN, X_IN, READ, PRODUCT, EARLY, ENTER = range(8)
HOISTED = Moves(
    (Move(PRODUCT, 1, ENTER, 0),),
    reads=(NewRead("early", READ, W_OUTSIDE, 0, (X_OUTSIDE,)),),
    enters=(NewEnter("enter", W_IN, EARLY, (X_OUTSIDE,)),),
    waits=(Wait(READ, ENTER),),
)


def hoisted(tamper=lambda nodes: None, moves=HOISTED):
    before, proto = read_graph(graph(LOOP), Templates()), graph(LOOP)
    apply_moves(proto.node, before, moves)
    tamper(proto.node)
    return before, read_graph(proto, Templates()), proto


def test_a_new_read_and_its_enter_are_those_of_the_loop_elsewhere():
    before, after, proto = hoisted()
    early, enter = proto.node[EARLY], proto.node[ENTER]
    assert (early.op, early.device, list(early.input)) == ("ReadVariableOp", "/device:CPU:0", ["w", "^x"])
    assert early.attr == before.protos[READ].attr
    assert (enter.op, enter.device, list(enter.input)) == ("Enter", "/device:CPU:0", ["early", "^x"])
    assert enter.attr["T"].type == early.attr["dtype"].type
    assert enter.attr["frame_name"].s == b"loop"
    assert enter.attr["is_constant"].b
    assert enter.attr["parallel_iterations"].i == 7
    assert list(proto.node[READ].input) == ["w_in", "^x_in", "^enter"]
    assert list(proto.node[PRODUCT].input) == ["x_in", "enter"]
    assert find_deviation(before, after, HOISTED) == ""
    assert HOISTED.added == 2
    assert sorted(HOISTED.links(before)) == sorted(
        [(W_OUTSIDE, EARLY), (X_OUTSIDE, EARLY), (EARLY, ENTER), (X_OUTSIDE, ENTER), (ENTER, PRODUCT), (ENTER, READ)]
    )


@pytest.mark.parametrize(
    ("tamper", "found"),
    [
        (lambda nodes: nodes[EARLY].input.remove("^x"), "waits for others"),
        (lambda nodes: nodes[READ].input.remove("^x_in"), "waits for others"),
        (lambda nodes: nodes[READ].input.append("^product"), "waits for others"),
        (lambda nodes: nodes[EARLY].input.__setitem__(0, "w_in"), "reads a tensor that was not planned"),
        (lambda nodes: nodes[ENTER].input.__setitem__(0, "read"), "reads a tensor that was not planned"),
        (lambda nodes: setattr(nodes[ENTER], "op", "Identity"), "the ops of the nodes"),
        (lambda nodes: setattr(nodes[EARLY], "device", ""), "the devices of the nodes"),
    ],
)
def test_a_new_read_that_is_another_than_was_planned_is_found(tamper, found):
    before, after, _ = hoisted(tamper)
    assert found in find_deviation(before, after, HOISTED)
