"""Graphs as bytes: the Python side of ``wire.c``, which reads the nodes of a serialized GraphDef into arrays.

A serialized GraphDef is a sequence of fields, one for each node, and after them the rest (function library, versions).
As Python's protobuf objects the same graph takes about five times the memory, and to make them half of a rewrite's
time. So C (no allocation, no state) reads what every node says (name, inputs, device), and numbers the *kinds* of
nodes: one op, the same attributes but for those whose names begin with an underscore, unless they give a type, a number
or a list of types. Python looks into one node of each kind, 132 of an LSTM's 1,573. Nodes are parsed when they are
looked at, 1,024 at a time, and the fields of nodes that nobody edits are copied from the old bytes into the new ones; a
type is one byte, which is changed in its place::

    before   x = Placeholder() | a = MatMul(x, x) T=float32  | library, versions
    after    x = Placeholder() | a = MatMul(c, c) T=bfloat16 | c = Cast(x) | library, versions

Source of the format: the encoding of protocol buffers (https://protobuf.dev/programming-guides/encoding). Only bytes as
protobuf itself writes them are read (fields in order, shortest numbers); all others are parsed and written again by
protobuf first. In a checkout ``python setup.py build_native --inplace`` makes the library; pytest does so by itself.
"""

from __future__ import annotations

import abc
import bisect
import ctypes
import dataclasses
import functools
import io
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amp_tf.errors import AmpError, GraphError
from amp_tf.graph.datatypes import Indices, Mask, Node
from amp_tf.graph.edits import Retype

CONTROL = -1  #: among the sources of inputs: a control input
UNKNOWN = -2  #: among them, not a tensor of the graph; smaller numbers: a control input that names no node
LIBRARY = Path(__file__).with_name("amp_tf_wire.so")


class _Graph(ctypes.Structure):
    """``graph`` in wire.c."""

    _fields_ = (
        ("data", ctypes.c_char_p),
        ("node_count", ctypes.c_uint64),
        ("ends", ctypes.c_void_p),
        ("is_tail_opaque", ctypes.c_int32),
        *((name, ctypes.c_uint64) for name in ("input_count", "names_size")),
        *((name, ctypes.c_void_p) for name in ("names", "name_ends", "input_counts", "kinds", "firsts")),
        *((name, ctypes.c_void_p) for name in ("devices", "device_firsts", "sources", "ports", "entries")),
        *((name, ctypes.c_uint64) for name in ("entry_count", "kind_count", "device_count")),
        ("duplicate", ctypes.c_int32),
    )


@dataclasses.dataclass(frozen=True)
class WireNodes:
    """What the nodes of a graph say, attributes apart.

    Attributes:
        names: of all nodes, as UTF-8, each with a NUL behind it.
        duplicate: the number of a node with the name of one before it, -1 if there is none.
        kinds: of each node, the number of its kind: nodes of one op whose attributes are the same, bar those that
            TensorFlow itself adds (their names begin with an underscore).
        firsts: the first node of each kind; devices and their firsts likewise.
        input_counts: how many inputs each node has, control inputs included.
        sources: of all inputs of all nodes, in order: the node, :data:`CONTROL`, or :data:`UNKNOWN` and less.
        ports: of all inputs, in the same order, the port that is read.
    """

    names: bytes
    duplicate: int
    kinds: Indices
    firsts: list[Node]
    devices: Indices
    device_firsts: list[Node]
    input_counts: Indices
    sources: Indices
    ports: Indices


def find_nodes(data: bytes) -> array[int] | None:
    """The end of each of the node fields with which a serialized GraphDef begins, ``None`` if the last is damaged."""
    library = _library()
    count = library.amp_tf_find_nodes(data, len(data), None)
    if count < 0:
        return None
    ends = array("Q", bytes(8 * count))
    library.amp_tf_find_nodes(data, len(data), ends.buffer_info()[0])
    return ends


@functools.cache
def _library() -> Any:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise _unusable(str(error)) from None
    library.amp_tf_graph_size.restype = ctypes.c_uint64
    if library.amp_tf_graph_size() != ctypes.sizeof(_Graph):
        raise _unusable(f"{LIBRARY} is of another version")
    library.amp_tf_find_nodes.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
    library.amp_tf_find_nodes.restype = ctypes.c_int64
    library.amp_tf_measure_nodes.argtypes = library.amp_tf_read_nodes.argtypes = (ctypes.POINTER(_Graph),)
    library.amp_tf_find_change.argtypes = (ctypes.POINTER(_Graph), ctypes.POINTER(_Graph), ctypes.c_uint64)
    library.amp_tf_find_change.restype = ctypes.c_int64
    library.amp_tf_find_types.argtypes = (ctypes.POINTER(_Graph), ctypes.c_uint64, *[ctypes.c_void_p] * 6)
    library.amp_tf_read_nodes.restype = library.amp_tf_find_types.restype = None
    return library


def _unusable(why: str) -> AmpError:
    return AmpError(
        f"the library that reads graphs does not load ({why})",
        where="amp_tf.graph.wire",
        fix="Install amp-tf again with pip; in a checkout run: python setup.py build_native --inplace",
    )


PIECE = 1024  # nodes looked at in one go


class Nodes(Sequence[Any], abc.ABC):
    """The nodes of a graph, to be looked at only."""

    @abc.abstractmethod
    def mentioning(self, text: str) -> list[int]:
        """The numbers of the nodes in which a text may stand, in order; all others can be left aside."""

    @abc.abstractmethod
    def some(self, numbers: Sequence[int]) -> Sequence[Any]:
        """The NodeDefs of some numbers."""


class NodeTable(Nodes):
    """The nodes of a serialized GraphDef, to be looked at only. Each access parses them, unless all are one piece.

    Args:
        ends: of each node's field.
        is_tail_opaque: fields of nodes that this version does not know are passed over. They must be their node's last,
            where protobuf puts what it does not know.

    Attributes:
        is_usual: whether the nodes are written as protobuf writes them; others cannot be read.
    """

    def __init__(self, data: bytes, ends: array[int], *, is_tail_opaque: bool = False) -> None:
        self.data, self._ends = data, ends
        self._parsed: Any = None  # a GraphDef of all nodes
        self._graph = _Graph(data=data, node_count=len(ends), ends=ends.buffer_info()[0], is_tail_opaque=is_tail_opaque)
        self.is_usual = bool(_library().amp_tf_measure_nodes(ctypes.byref(self._graph)))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, key: Any) -> Any:
        """The NodeDef of a number.

        Raises:
            GraphError: the bytes are not a NodeDef.
        """
        if not 0 <= key < len(self):
            raise IndexError(key)
        if len(self) > PIECE:
            return self.some([key])[0]
        self._parsed = self._parsed or parse_graph(bytes(self.span(0, len(self))))
        return self._parsed.node[key]

    def __iter__(self) -> Iterator[Any]:
        return some(self, range(len(self)))

    def span(self, first: int, end: int) -> memoryview:
        """The bytes of some nodes one after the other, field headers included, without a copy."""
        return memoryview(self.data)[self._start(first) : self._start(end)]

    def some(self, numbers: Iterable[int]) -> Sequence[Any]:
        """The NodeDefs of some numbers.

        Raises:
            GraphError: the bytes of one are not a NodeDef.
        """
        fields = b"".join([self.data[self._start(number) : self._ends[number]] for number in numbers])
        return parse_graph(fields).node  # type: ignore[no-any-return]

    def mentioning(self, text: str, first: int = 0) -> list[int]:
        """The numbers of the nodes, from one on, in whose bytes a text stands, at whatever place."""
        wanted, numbers, place = text.encode(), list[int](), self._start(first)
        while (place := self.data.find(wanted, place, self.end)) >= 0:
            numbers.append(bisect.bisect_right(self._ends, place))
            place = self._ends[numbers[-1]]
        return numbers

    def _start(self, number: int) -> int:
        return self._ends[number - 1] if number else 0

    @property
    def end(self) -> int:
        """The end of the last node."""
        return self._ends[-1] if self._ends else 0

    def with_types(self, retype: Retype) -> tuple[NodeTable, Mask]:
        """The same nodes with other types, where a type is one byte that can be changed in its place.

        A type's number is less than 128. The new table comes with whether each of the types was changed.
        """
        places = np.empty(len(retype.nodes), np.uint64)
        names: dict[str, int] = {}
        attributes = np.array([names.setdefault(slot.attr, len(names)) for slot in retype.slots], np.int32)
        indices = np.array([slot.index for slot in retype.slots], np.int32)
        ends = np.cumsum([len(name.encode()) for name in names], dtype=np.uint64)
        columns = (retype.nodes, attributes, indices, np.frombuffer("".join(names).encode(), np.uint8), ends, places)
        addresses = [column.ctypes.data for column in columns]
        _library().amp_tf_find_types(ctypes.byref(self._graph), len(places), *addresses)
        is_found = places > 0
        changed = io.BytesIO(self.data)  # copies once, when it is written to, and then hands out its own memory
        with changed.getbuffer() as buffer:
            np.asarray(buffer)[places[is_found]] = retype.data_type
        return NodeTable(changed.getvalue(), self._ends, is_tail_opaque=self._graph.is_tail_opaque), is_found

    def find_change(self, after: NodeTable, first: int = 0) -> int:
        """The first node whose control inputs or, types apart, attributes may not be in an edited graph what they were.
        The first nodes of the edited graph are these; -1 if there is none.
        """
        graphs = (ctypes.byref(layout._graph) for layout in (self, after))
        return int(_library().amp_tf_find_change(*graphs, first))

    def read(self) -> WireNodes:
        """Reads the nodes, which must be as usual."""
        graph, count = _Graph.from_buffer_copy(self._graph), len(self._ends)  # threads may read at once
        graph.entry_count = 1 << (2 * count).bit_length()
        made = {
            "names": np.empty(graph.names_size, np.uint8),
            "name_ends": np.empty(count, np.uint64),
            "input_counts": np.empty(count, np.int32),
            **{column: np.empty(count, np.int32) for column in ("kinds", "firsts", "devices", "device_firsts")},
            **{column: np.empty(graph.input_count, np.int32) for column in ("sources", "ports")},
            "entries": np.empty(3 * graph.entry_count, np.int32),
        }
        for column, values in made.items():
            setattr(graph, column, values.ctypes.data)
        _library().amp_tf_read_nodes(ctypes.byref(graph))
        return WireNodes(
            names=made["names"].tobytes(),
            duplicate=graph.duplicate,
            kinds=made["kinds"],
            firsts=made["firsts"][: graph.kind_count].tolist(),
            devices=made["devices"],
            device_firsts=made["device_firsts"][: graph.device_count].tolist(),
            input_counts=made["input_counts"],
            sources=made["sources"],
            ports=made["ports"],
        )


class SerializedGraph:
    """A serialized GraphDef.

    Attributes:
        node: its nodes.
        rest: a GraphDef that holds all the rest, parsed.
        rest_data: the same as bytes.
        library: the function library, a part of ``rest``.

    Raises:
        GraphError: the bytes are not a GraphDef. Nodes are looked at later.
    """

    def __init__(self, data: bytes) -> None:
        nodes = _nodes_of(data)
        rest: Any = None if nodes is None else parse_graph(nodes.data[nodes.end :])
        if nodes is None or rest.node:  # another program wrote it in another way: protobuf writes it again
            nodes = read_table(parse_graph(data).SerializeToString())
            rest = parse_graph(nodes.data[nodes.end :])
        self.node, self.rest, self.rest_data, self.library = nodes, rest, nodes.data[nodes.end :], rest.library


def read_table(data: bytes) -> NodeTable:
    """The nodes of a graph that protobuf, or the editor, serialized.

    Raises:
        GraphError: these are not nodes.
    """
    nodes = _nodes_of(data, is_tail_opaque=True)
    if nodes is None:
        raise _unreadable(data, "a node is cut off, or has fields of another kind than this version knows")
    return nodes


def parse_graph(data: bytes) -> Any:
    """The GraphDef of a serialized one.

    Raises:
        GraphError: it is not a GraphDef.
    """
    from google.protobuf.message import DecodeError

    graph = new_graph()
    try:
        graph.MergeFromString(data)
    except DecodeError as error:
        raise _unreadable(data, str(error)) from error
    return graph


def mentioning(protos: Sequence[Any], text: str) -> Iterator[tuple[int, Any]]:
    """The nodes in which a text may stand, with their numbers; all, where they are not serialized."""
    numbers = protos.mentioning(text) if isinstance(protos, Nodes) else range(len(protos))
    return zip(numbers, some(protos, numbers), strict=True)


def some(protos: Sequence[Any], numbers: Sequence[int]) -> Iterator[Any]:
    """The nodes of some numbers, whether they are serialized or not."""
    for those in pieces(numbers):
        yield from protos.some(those) if isinstance(protos, Nodes) else map(protos.__getitem__, those)


def pieces(values: Sequence[Any]) -> Iterator[Any]:
    """The values in lists that are short enough for Python to hold a proto object for each."""
    for start in range(0, len(values), PIECE):
        yield values[start : start + PIECE]


def _nodes_of(data: bytes, *, is_tail_opaque: bool = False) -> NodeTable | None:
    """The nodes of a graph; ``None`` if they are not written as protobuf writes them."""
    ends = find_nodes(data)
    nodes = None if ends is None else NodeTable(data, ends, is_tail_opaque=is_tail_opaque)
    return nodes if nodes is not None and nodes.is_usual else None


def _unreadable(data: bytes, why: str) -> GraphError:
    return GraphError(f"not a serialized GraphDef ({why})", where=f"{len(data)} bytes")


def new_graph(**fields: Any) -> Any:
    """A GraphDef with these fields."""
    from tensorflow.core.framework import graph_pb2

    return graph_pb2.GraphDef(**fields)
