"""Minimum cuts, against trying every cut."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from amp_tf.graph.algorithms import SINK, SOURCE, UNBOUNDED, Network


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
