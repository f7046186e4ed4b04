"""Nodes are read from bytes as Python reads them from protos."""

from __future__ import annotations

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.protobuf import text_format
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2

from amp_tf.errors import AmpError, GraphError
from amp_tf.graph import wire
from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.graph.wire import CONTROL, UNKNOWN, NodeTable, SerializedGraph, find_nodes, parse_graph, read_table
from tests.small_graphs import function, graph

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
        "name": st.sampled_from(NAMES),
        "op": st.sampled_from(["Relu", "AddN", ""]),
        "input": st.lists(inputs, max_size=4),
        "device": st.sampled_from(["", "/device:CPU:0", "/device:GPU:0"]),
    }
)
marks = st.dictionaries(st.sampled_from([key for key, _ in ATTRIBUTES]), st.integers(0, 2), max_size=3)


def graph_of(rows):
    made = graph_pb2.GraphDef()
    for fields, attributes in rows:
        node = made.node.add(**fields)
        for key, value in attributes.items():
            if key == "_class":  # a mark of TensorFlow's
                node.attr[key].s = bytes([value])
            else:
                node.attr[key].type = value
    return made


def read(graph):
    data = graph.SerializeToString()
    table = NodeTable(data, find_nodes(data))
    assert table.is_usual
    return table.read()


def numbered(values):
    """Equal values get equal numbers, in the order of their first appearance; and where each appears first."""
    first = {}
    for number, value in enumerate(values):
        first.setdefault(value, number)
    rank = {value: number for number, value in enumerate(first)}
    return [rank[value] for value in values], list(first.values())


def meaning(text, number_of):
    if text.startswith("^"):
        return (CONTROL if text[1:] in number_of else UNKNOWN - 1), 0
    if text in number_of:
        return number_of[text], 0
    found = re.fullmatch(r"(.*):([0-9]{1,9})", text)
    if found is None or found[1] not in number_of:
        return UNKNOWN, 0
    return number_of[found[1]], int(found[2])


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(nodes, marks), max_size=12))
@example([])
def test_bytes_say_what_protos_say(rows):
    made = graph_of(rows)
    found = read(made)
    names = [node.name for node in made.node]
    assert found.names == b"".join(name.encode() + b"\0" for name in names)
    number_of = {}
    duplicates = [number for number, name in enumerate(names) if number_of.setdefault(name, number) != number]
    assert found.duplicate == (duplicates[0] if duplicates else -1)
    assert (found.devices.tolist(), found.device_firsts) == numbered([node.device for node in made.node])
    assert found.input_counts.tolist() == [len(node.input) for node in made.node]
    expected = [meaning(text, number_of) for node in made.node for text in node.input]
    assert found.sources.tolist() == [source for source, _ in expected]
    for (source, wanted), port in zip(expected, found.ports.tolist(), strict=True):
        assert source < 0 or port == wanted
    # Nodes of one kind have one op and the same attributes but for marks.
    facts = [
        (node.op, frozenset((key, value.type) for key, value in node.attr.items() if key != "_class"))
        for node in made.node
    ]
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
def test_what_gives_types_and_ports_is_no_mark_though_its_name_begins_with_an_underscore(is_mark, values):
    made = graph_pb2.GraphDef()
    for value in values:
        text_format.Parse(value, made.node.add(op="f").attr["_x"])
    assert read(made).kinds.tolist() == ([0, 0] if is_mark else [0, 1])


def test_an_entry_that_is_no_key_and_value_is_not_as_usual():
    for entry in (b"", b"\x0a\x01T", b"\x0a\x01T\x12\x020\x01\x1a\x00", b"\x0a\x01_\x0a\x01T\x12\x020\x01"):
        field = b"\x2a" + bytes([len(entry)]) + entry
        data = b"\x0a" + bytes([len(field)]) + field
        assert not NodeTable(data, find_nodes(data)).is_usual


@pytest.mark.timeout(60)  # each pair would be compared to the end: minutes
def test_what_differs_at_its_end_alone_takes_no_time():
    made = graph_pb2.GraphDef()
    for number in range(50_000):
        node = made.node.add(name=f"{'n' * 300}{number}", op="AddN")
        node.attr["N"].i = number
        node.attr["value"].s = b"0" * 300 + str(number % 10_000).encode()
    found = read(made)
    assert found.duplicate == -1
    assert len(found.firsts) == 50_000


def test_threads_may_read_one_table_at_once():
    data = graph_of([({"name": str(n), "op": "AddN", "input": [str(n + 1)], "device": ""}, {}) for n in range(500)])
    data = data.SerializeToString()
    table = NodeTable(data, find_nodes(data))
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: table.read(), range(200)):
            assert found.sources.tolist() == [*range(1, 500), UNKNOWN]


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(nodes, marks), min_size=1, max_size=4), st.data())
def test_whatever_the_bytes_are_nothing_but_them_is_read(rows, data):
    """The bytes end where memory that must not be read begins."""
    changed = bytearray(graph_of(rows).SerializeToString())
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with Fenced(bytes(changed)) as given_bytes:
        ends = find_nodes(given_bytes)
        if ends is None:
            return
        for is_tail_opaque in (False, True):
            table = NodeTable(given_bytes, ends, is_tail_opaque=is_tail_opaque)
            if table.is_usual:
                found = table.read()
                assert len(found.kinds) == len(ends)
                assert found.sources.max(initial=-1) < len(ends)


class Fenced:
    """Bytes at the end of a page, behind which a page follows that nobody may read."""

    PAGE = 4096

    def __init__(self, content):
        self._content = content
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def __enter__(self):
        pages = -(-len(self._content) // self.PAGE) + 1
        self._size = pages * self.PAGE
        self._start = self._libc.mmap(None, self._size, 3, 0x22, -1, 0)  # readable, writable; private, anonymous
        fence = self._start + self._size - self.PAGE
        ctypes.memmove(fence - len(self._content), self._content, len(self._content))
        assert self._libc.mprotect(fence, self.PAGE, 0) == 0
        return Address(fence - len(self._content), len(self._content))

    def __exit__(self, *error):
        self._libc.munmap(self._start, self._size)


class Address(int):
    """An address where bytes are, which ctypes takes in place of them."""

    def __new__(cls, value, length):
        made = super().__new__(cls, value)
        made._length = length
        return made

    def __len__(self):
        return self._length


def test_a_library_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(wire, "_Graph", type("_Graph", (ctypes.Structure,), {"_fields_": wire._Graph._fields_[:-1]}))
    with pytest.raises(AmpError, match=r"is of another version.*setup\.py build_native"):
        wire._library.__wrapped__()


def test_a_library_that_does_not_load_is_told_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(wire, "LIBRARY", tmp_path / "none.so")
    with pytest.raises(AmpError, match=r"none\.so.*Install amp-tf again with pip"):
        wire._library.__wrapped__()


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
    assert found.library == before.library
    assert not found.rest.node
    with pytest.raises(IndexError):
        found.node[4]


def test_fields_one_after_the_other_are_the_bytes_that_came_in():
    data = made().SerializeToString()
    found = SerializedGraph(data)
    assert bytes(found.node.span(0, 4)) + found.rest_data == data
    assert list(read_table(bytes(found.node.span(0, 4)))) == list(found.node)


def test_nodes_that_come_after_other_fields_are_found():
    before = made()
    nodes, rest = type(before)(node=before.node), type(before)(library=before.library)
    halves = nodes.SerializeToString(), rest.SerializeToString()
    found = SerializedGraph(halves[1] + halves[0])
    assert list(found.node) == list(before.node)
    assert found.library == before.library


def test_a_tag_or_length_with_more_bytes_than_needed_is_read_too():
    field = bytes(SerializedGraph(made().SerializeToString()).node.span(0, 1))
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
    field = bytes(SerializedGraph(made().SerializeToString()).node.span(0, 1))
    later = b"\x78\x05\x82\x01\x02ab"  # field 15, a number, and field 16, a text
    data = field[:1] + bytes([field[1] + len(later)]) + field[2:] + later
    found = SerializedGraph(data)
    assert found.node.span(0, 1) == data
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
