from __future__ import annotations

import pytest

from amp_tf.graph.moving import BiasTurn, Move, Moves, NewReshape, apply_moves, find_deviation
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
