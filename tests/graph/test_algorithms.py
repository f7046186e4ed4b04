"""Algorithms on graphs, compared with plain ones on random graphs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_tf.graph.algorithms import gather, reach
from amp_tf.graph.edges import Adjacency

NODES = st.integers(0, 11)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(NODES, NODES), min_size=1))
def test_marks_are_gathered_along_edges_and_around_cycles(edges):
    sources, readers = np.array(edges, np.int32).T
    links = Adjacency(sources, readers, 12)
    expected = []
    for node in range(12):
        behind = {node, *reach([node], np.ones(12, np.bool_), links.inward)}
        expected.append(sum(1 << source for source in behind))
    assert gather([1 << node for node in range(12)], sources, readers) == expected
