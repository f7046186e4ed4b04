"""Graphs as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_tf.errors import GraphError
from amp_tf.graph import serialized
from amp_tf.graph.reader import read_graph
from amp_tf.graph.serialized import SerializedGraph, parse_graph, read_table
from amp_tf.graph.templates import Templates
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
    assert list(read_table(b"".join(found.node.split()))) == list(found.node)


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


@pytest.mark.parametrize("length", [b"", b"\xff", b"\xff" * 9 + b"\x01", b"\xff" * 12 + b"\x01"])
def test_a_length_that_is_cut_off_or_too_large_for_any_number_is_refused(length):
    with pytest.raises(GraphError, match="not a serialized GraphDef"):
        SerializedGraph(b"\x0a" + length)


def test_fields_of_a_node_in_another_order_are_read_too():
    node = made().node[1]
    name, op = (type(node)(**{field: getattr(node, field)}).SerializeToString() for field in ("name", "op"))
    whole = node.SerializeToString()
    turned = op + name + whole.removeprefix(name + op)
    assert turned != whole
    data = b"\x0a" + bytes([len(turned) & 0x7F | 0x80, len(turned) >> 7]) + turned
    assert list(SerializedGraph(data).node) == [node]


def test_fields_that_this_version_does_not_know_are_kept():
    field = SerializedGraph(made().SerializeToString()).node.fields(0, 1)
    later = b"\x78\x05\x82\x01\x02ab"  # field 15, a number, and field 16, a text
    data = field[:1] + bytes([field[1] + len(later)]) + field[2:] + later
    found = SerializedGraph(data)
    assert found.node.fields(0, 1) == data
    assert read_graph(found, Templates()).names == ["x"]


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


@pytest.mark.parametrize("piece", [1024, 3], ids=["parsed once", "parsed at each look"])
def test_nodes_are_looked_at_by_number_and_by_slice(monkeypatch, piece):
    monkeypatch.setattr(serialized, "PIECE", piece)
    nodes, expected = SerializedGraph(made().SerializeToString()).node, list(made().node)
    assert list(nodes) == expected
    assert [nodes[number] for number in (3, 0)] == [expected[3], expected[0]]
    assert (nodes[1:3], nodes[2:9], nodes[4:]) == (expected[1:3], expected[2:], [])
    for number in (-1, 4):
        with pytest.raises(IndexError):
            nodes[number]
