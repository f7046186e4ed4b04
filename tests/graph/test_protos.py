"""The reader's facts about nodes equal those that are found by another way."""

from __future__ import annotations

import re

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2

from amp_tf.errors import GraphError
from amp_tf.graph.protos import CONTROL, UNKNOWN, TensorNames, find_inputs, parse_graph, read_facts
from tests.small_graphs import graph

NAMES = ["a", "b", "ab", "a/b", "a:1", "", "n" * 200, "ä"]
SUFFIXES = ["", ":0", ":1", ":007", ":123456789", ":1234567890", ":", ":x", ":1:2", ":-1", "::3"]
ATTRIBUTES = [("T", 1), ("T", 14), ("_T", 1), ("_class", 2), ("N", 3), ("dtype", 1)]

inputs = st.builds(
    lambda control, name, suffix: control + name + suffix,
    st.sampled_from(["", "", "^"]),
    st.sampled_from(NAMES),
    st.sampled_from(SUFFIXES),
)
nodes = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["Relu", "AddN", ""]),
        "input": st.lists(inputs, max_size=4),
        "device": st.sampled_from(["", "/device:CPU:0", "/device:GPU:0"]),
    }
)
marks = st.dictionaries(
    st.sampled_from([key for key, _ in ATTRIBUTES]), st.integers(0, 2), max_size=3
)


def graph_of(rows):
    made = graph_pb2.GraphDef()
    for name, fields, attributes in rows:
        node = made.node.add(name=name, **fields)
        for key, value in attributes.items():
            if key == "_class":  # a mark of TensorFlow's
                node.attr[key].s = bytes([value])
            else:
                node.attr[key].type = value
    return made


def numbered(values):
    """Equal values get equal numbers, in the order of their first appearance; and where each
    appears first.
    """
    first = {}
    for number, value in enumerate(values):
        first.setdefault(value, number)
    order = list(first)
    return [order.index(value) for value in values], list(first.values())


def meaning(text, number_of):
    if text.startswith("^"):
        if text[1:] in number_of:
            return CONTROL, number_of[text[1:]]
        return UNKNOWN, 0
    if text in number_of:
        return number_of[text], 0
    name, _, port = text.rpartition(":")
    if name not in number_of or not re.fullmatch("[0-9]+", port) or len(port) > 9:
        return UNKNOWN, 0
    return number_of[name], int(port)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.sampled_from(NAMES), unique=True).flatmap(
        lambda names: st.tuples(*(st.tuples(st.just(name), nodes, marks) for name in names))
    )
)
@example(())
def test_facts_are_what_the_nodes_say(rows):
    made = graph_of(rows)
    found = read_facts(made)
    assert found.names == [node.name for node in made.node]
    assert found.devices == [node.device for node in made.node]
    number_of = {name: number for number, name in enumerate(found.names)}
    numbers = np.arange(len(rows), dtype=np.int32)
    inputs = find_inputs(found.texts, TensorNames(found.names), numbers)
    wanted = []
    # Nodes of one kind have one op and the same attributes, but for the values of marks.
    facts = []
    for reader, node in enumerate(made.node):
        for position, text in enumerate(node.input):
            source, port = meaning(text, number_of)
            wanted.append([source, port, reader, position])
        types = frozenset((key, value.type) for key, value in node.attr.items())
        facts.append((node.op, types))
    assert inputs.T.tolist() == wanted
    assert (found.kinds.tolist(), found.firsts) == numbered(facts)


@pytest.mark.parametrize(
    ("is_mark", "values"),
    [
        (False, ["type: DT_FLOAT", "type: DT_INT32"]),
        (False, ["i: 1", "i: 2"]),
        (False, ["list { type: DT_FLOAT }", "list { type: DT_FLOAT type: DT_FLOAT }"]),
        (True, ['s: "a"', 's: "b"']),
        (True, ["list { shape { } }", "list { shape { } shape { } }"]),
        (True, ["b: true", "b: false"]),
        (True, ["", "b: true"]),
    ],
)
def test_what_gives_types_and_ports_is_no_mark_though_its_name_begins_with_an_underscore(
    is_mark, values
):
    made = graph_pb2.GraphDef()
    for value in values:
        text_format.Parse(value, made.node.add(op="f").attr["_x"])
    before = made.SerializeToString(deterministic=True)
    assert read_facts(made).kinds.tolist() == ([0, 0] if is_mark else [0, 1])
    assert made.SerializeToString(deterministic=True) == before


def test_large_constants_are_of_one_kind_if_they_are_equal():
    made = graph(
        "a = Const() dtype=float32\nb = Const() dtype=float32\nc = Const() dtype=float32\nd = "
        "Relu(c)"
    )
    for node, size in zip(made.node, (16, 16, 100_000, 0), strict=True):
        node.attr["value"].tensor.tensor_content = bytes(size)
    assert read_facts(made).kinds.tolist() == [0, 0, 1, 2]
    made.node[1].CopyFrom(made.node[2])
    assert read_facts(made).kinds.tolist() == [0, 1, 1, 2]


def test_bytes_that_are_no_graph_are_refused():
    data = graph("x = Placeholder()").SerializeToString()
    assert [node.name for node in parse_graph(data).node] == ["x"]
    too_long = b"\x0a" + b"\xff" * 12 + b"\x01"
    for broken in (data[:-1], b"\x0a", too_long, data.replace(b"x", b"\xff")):
        with pytest.raises(GraphError, match=rf"^{len(broken)} bytes: not a serialized GraphDef"):
            parse_graph(broken)


def test_fields_that_this_version_does_not_know_are_kept():
    made = graph("x = Placeholder()")
    later = b"\x78\x05\x82\x01\x02ab"  # field 15, a number, and field 16, a text
    node = made.node[0].SerializeToString() + later
    read = parse_graph(b"\x0a" + bytes([len(node)]) + node)
    assert [node.name for node in read.node] == ["x"]
    assert later in read.SerializeToString()
