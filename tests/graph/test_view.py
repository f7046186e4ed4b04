from __future__ import annotations

import numpy as np
import pytest

from amp_tf.graph.reader import read_function, read_graph
from amp_tf.graph.templates import Templates
from amp_tf.graph.view import Adjacency
from tests.small_graphs import function, graph


@pytest.fixture(scope="module")
def view():
    text = """
        x = Placeholder()
        c = Cast(x) SrcT=float32 DstT=int32
        p = Pack(x, x, x)
        n = NoOp()
        i = IdentityN(c, p) T=[int32, float32]
    """
    return read_graph(graph(text), Templates())


def test_units_run_through_the_nodes_in_order(view):
    assert [list(view.units(node)) for node in range(view.node_count)] == [[0], [1, 2], [3], [], [4, 5]]
    assert list(view.unit_nodes()) == [0, 1, 1, 2, 4, 4]
    assert view.unit_count == 6


def test_a_unit_knows_its_slot(view):
    assert [str(view.slot(node, unit)) for node in (1, 4) for unit in view.units(node)] == [
        "SrcT",
        "DstT",
        "T[0]",
        "T[1]",
    ]


def test_neighbours_are_the_units_at_the_other_ends_of_the_edges(view):
    adjacency = view.adjacency()
    assert [adjacency.fanins(unit) for unit in range(6)] == [[], [0], [], [0, 0, 0], [2], [3]]
    assert [adjacency.fanouts(unit) for unit in range(6)] == [[1, 3, 3, 3], [], [4], [5], [], []]


def test_adjacency_is_the_same_relation_in_both_directions():
    random = np.random.default_rng(0)
    src, dst = random.integers(0, 20, (2, 100)).tolist()
    adjacency = Adjacency(src, dst, 25)
    pairs = sorted(zip(src, dst, strict=True))
    assert sorted((unit, reader) for unit in range(25) for reader in adjacency.fanouts(unit)) == pairs
    assert sorted((source, unit) for unit in range(25) for source in adjacency.fanins(unit)) == pairs


def test_a_place_names_function_and_node(view):
    assert view.where(2) == "node 'p'"
    body = read_function(function("function f(x: int32) -> (y: int32)\nreturn y = x"), Templates())
    assert body.where(0) == "function 'f', node 'x'"


def test_a_detached_view_forgets_protos_and_edges_alone(view):
    detached = view.detached()
    assert detached.protos == []
    assert len(detached.edges) == 0
    assert detached.edges.src_node.base is None, "the arrays of the edges stay in memory"
    assert [detached.units(node) for node in range(5)] == [view.units(node) for node in range(5)]
    assert (detached.names, detached.ops, detached.dtypes) == (view.names, view.ops, view.dtypes)
    assert len(view.protos) == 5


def test_a_view_tells_what_a_node_reads_and_who_reads_it(view):
    assert [view.inputs(node) for node in range(5)] == [[], [(0, 0)], [(0, 0)] * 3, [], [(1, 0), (2, 0)]]
    assert view.readers(0) == [(1, 0), (2, 0), (2, 1), (2, 2)]
    assert (view.readers(2, port=0), view.readers(2, port=1)) == ([(4, 1)], [])
    assert [view.only_reader(node) for node in range(5)] == [None, 4, 4, None, None]
    assert view.first_inputs(view.mask_with({"Pack", "IdentityN"})) == {2: (0, 0), 4: (1, 0)}
