"""Minimum cuts, against trying every cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_tf.graph.algorithms import OUTSIDE, SINK, SOURCE, UNBOUNDED, Network, control_links, data_links, find_frames
from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.graph.verify import find_ring
from amp_tf.graph.wire import SerializedGraph
from tests.small_graphs import graph


@st.composite
def networks(draw):
    inner = draw(st.integers(1, 6))
    vertices = [SOURCE, SINK, *range(2, inner + 2)]
    edge = st.tuples(st.sampled_from(vertices), st.sampled_from(vertices), st.integers(0, 9))
    return inner, draw(st.lists(edge, max_size=16))


def _cost(edges, sides):
    return sum(capacity for tail, head, capacity in edges if sides[tail] and not sides[head])


@settings(max_examples=500, deadline=None)
@given(networks())
def test_no_cut_is_cheaper(case):
    inner, edges = case
    network = Network()
    assert [network.add_vertex() for _ in range(inner)] == list(range(2, inner + 2))
    for edge in edges:
        network.add_edge(*edge)
    sides = network.source_side()
    assert sides[SOURCE]
    assert not sides[SINK]
    others = itertools.product([False, True], repeat=inner)
    assert _cost(edges, sides) == min(_cost(edges, [True, False, *other]) for other in others)


def test_an_unbounded_edge_is_not_cut():
    network = Network()
    middle = network.add_vertex()
    network.add_edge(SOURCE, middle, 5)
    network.add_edge(middle, SINK, UNBOUNDED)
    assert network.source_side() == [True, False, False]


def test_of_equal_cuts_the_one_nearest_the_source_is_taken():
    network = Network()
    middle = network.add_vertex()
    network.add_edge(SOURCE, middle, 5)
    network.add_edge(middle, SINK, 5)
    assert network.source_side() == [True, False, False]


# A loop in a loop; the inner one's body is a constant that only a control edge keeps there.
NESTED = """
    x = Placeholder()
    a_in = Enter(x) frame_name='a'
    a = Merge(a_in, a_next)
    a_switch = Switch(a, a_cond)
    p = Placeholder() dtype=bool
    p_in = Enter(p) T=bool frame_name='a' is_constant=true
    a_cond = LoopCond(p_in)
    b_in = Enter(a_switch:1) frame_name='b'
    q_in = Enter(p_in) T=bool frame_name='b' is_constant=true
    b = Merge(b_in, b_next)
    b_cond = LoopCond(q_in)
    b_switch = Switch(b, b_cond)
    pivot = Identity(b_switch:1)
    body = Const() value=float32[4, 4] ^pivot
    b_next = NextIteration(body)
    b_out = Exit(b_switch)
    a_next = NextIteration(b_out)
    a_out = Exit(a_switch)
    y = Relu(a_out)
"""


def view_of(text, make=lambda proto: proto):
    return read_graph(make(graph(text)), Templates())


def links_of(view):
    return [*data_links(view), *control_links(view)]


def serialized(proto):
    return SerializedGraph(proto.SerializeToString())


@pytest.mark.parametrize("make", [lambda proto: proto, serialized], ids=["proto", "bytes"])
def test_each_node_is_in_the_loop_that_it_runs_in(make):
    view = view_of(NESTED, make)
    frames = find_frames(view, links_of(view))
    found = {}
    for name, frame in zip(view.names, frames.of, strict=True):
        found.setdefault(frame, set()).add(name)
    number = {view.names[enter]: frame for enter, frame in frames.entered.items()}
    assert found == {
        OUTSIDE: {"x", "p", "a_in", "p_in", "y"},
        number["a_in"]: {"a", "a_switch", "a_cond", "b_in", "q_in", "a_next", "a_out"},
        number["b_in"]: {"b", "b_cond", "b_switch", "pivot", "body", "b_next", "b_out"},
    }
    assert number["a_in"] == number["p_in"]
    assert number["b_in"] == number["q_in"]
    assert list(frames.with_those_around(number["b_in"])) == [number["b_in"], number["a_in"]]
    assert list(frames.with_those_around(OUTSIDE)) == []


BROKEN = {
    "a value leaves without an Exit": ("y = Relu(a_out)", "y = Relu(a_switch)\n    z = AddV2(x, y)"),
    "an Exit is in no loop": ("y = Relu(a_out)", "y = Exit(a_out)"),
    "one name for a loop in itself": ("frame_name='b'", "frame_name='a'"),
    "nothing enters": ("b_in = Enter(a_switch:1) frame_name='b'", "b_in = Identity(b_out)"),
}


@pytest.mark.parametrize("why", BROKEN)
def test_broken_loops_have_no_frames(why):
    view = view_of(NESTED.replace(*BROKEN[why]))
    assert find_frames(view, links_of(view)) is None


def test_a_ring_is_one_that_no_next_iteration_closes():
    view = view_of(NESTED)
    links, body, pivot = links_of(view), view.names.index("body"), view.names.index("pivot")
    assert find_ring(view.ops, links, view.node_count) is None
    assert find_ring(view.ops, [*links, (body, pivot)], view.node_count) is not None
    new = view.node_count
    assert find_ring(view.ops, [*links, (pivot, new), (new, body)], new + 1) is None
    assert find_ring(view.ops, [*links, (body, new), (new, pivot)], new + 1) is not None
