"""Graphs as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_tf.errors import GraphError
from amp_tf.graph import serialized
from amp_tf.graph.serialized import NodesUnderEdit, SerializedGraph, join_fields, merge_pieces, parse_graph
from tests.small_graphs import function, graph

LONG = "n" * 300  # a name whose node needs two bytes for its length
TEXT = f"""
    x = Placeholder() dtype=float32
    {LONG} = MatMul(x, x)
    r = Relu({LONG})
    f = Relu(r)
"""
BODY = "function g(x: float32) -> (y: float32)\nr = Relu(x)\nreturn y = r:activations:0"


def made():
    return graph(TEXT, function(BODY))


def test_nodes_and_the_rest_are_those_of_the_graph():
    before = made()
    found = SerializedGraph(before.SerializeToString())
    assert list(found.node) == list(before.node)
    assert [found.node[number] for number in range(4)] == list(before.node)
    assert found.node[1:3] == list(before.node)[1:3]
    assert found.node[3:] == [before.node[3]]
    assert found.node[2:2] == []
    assert found.library == before.library
    assert not found.rest.node
    with pytest.raises(IndexError):
        found.node[4]


def test_fields_one_after_the_other_are_the_bytes_that_came_in():
    data = made().SerializeToString()
    found = SerializedGraph(data)
    assert found.node.fields(0, 4) + found.rest_data == data
    assert b"".join(found.node.split()) == found.node.fields(0, 4)
    assert list(join_fields(list(found.node.split()))) == list(found.node)


def test_an_empty_graph_has_no_nodes():
    found = SerializedGraph(b"")
    assert len(found.node) == 0
    assert list(found.node) == []


def test_nodes_that_come_after_other_fields_are_found():
    before = made()
    nodes, rest = type(before)(node=before.node), type(before)(library=before.library)
    halves = nodes.SerializeToString(), rest.SerializeToString()
    found = SerializedGraph(halves[1] + halves[0])
    assert list(found.node) == list(before.node)
    assert found.library == before.library


def test_a_tag_or_length_with_more_bytes_than_needed_is_read_too():
    field = SerializedGraph(made().SerializeToString()).node.fields(0, 1)
    long_length = field[:1] + bytes([field[1] | 0x80, 0x00]) + field[2:]
    long_tag = bytes([field[0] | 0x80, 0x00]) + field[1:]
    for data in (long_length, long_tag):
        assert list(SerializedGraph(data).node) == [made().node[0]]


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_bytes_are_read_as_protobuf_reads_them_or_refused(data):
    whole = bytearray(made().SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        expected = parse_graph(cut)
    except GraphError:
        with pytest.raises(GraphError, match="not a serialized GraphDef"):
            list(SerializedGraph(cut).node)
    else:
        found = SerializedGraph(cut)
        assert list(found.node) == list(expected.node)
        assert found.library == expected.library


def test_nodes_that_mention_a_text_are_found_by_their_bytes():
    nodes = SerializedGraph(made().SerializeToString()).node
    assert nodes.mentioning(LONG) == [1, 2]
    assert nodes.mentioning("nothing") == []


@pytest.mark.parametrize("piece", [1024, 2], ids=["one piece", "many pieces"])
def test_edited_and_new_nodes_stand_beside_the_bytes_of_the_others(monkeypatch, piece):
    monkeypatch.setattr(serialized, "PIECE", piece)
    before = made()
    original = SerializedGraph(before.SerializeToString()).node
    nodes = NodesUnderEdit(original)
    assert len(nodes) == 4
    for number in (3, 0, 2, 3):  # the last, put away in between, is edited once more
        nodes[number].device += "a"
    nodes.add().name = "new"
    nodes[4].op = "NoOp"
    assert len(nodes) == 5
    pieces = nodes.serialize()
    assert original.fields(1, 2) in b"".join(pieces)
    after = merge_pieces(pieces)
    assert pieces == []
    assert [node.device for node in after.node] == ["a", "", "a", "aa", ""]
    for node in after.node:
        node.device = ""
    assert list(after.node) == [*before.node, after.node[4]]
    assert (after.node[4].name, after.node[4].op) == ("new", "NoOp")


def test_without_edits_the_bytes_are_those_that_came_in():
    original = SerializedGraph(made().SerializeToString()).node
    assert b"".join(NodesUnderEdit(original).serialize()) == original.fields(0, 4)
