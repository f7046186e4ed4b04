"""Graphs as bytes: what a rewrite reads and what it makes, without a tree of protos for either.

A serialized GraphDef is a sequence of fields, one for each node, and after them the rest (function library, versions).
As Python's protobuf objects the same graph takes about five times the memory. So nodes are parsed when they are looked
at, some at a time, and the fields of nodes that nobody edits are copied from the old bytes into the new ones.

Where ``a`` becomes 16 bit, its field alone is parsed, edited and written; or, if nothing but types of it change, these
bytes are changed in their places::

    before   x = Placeholder() | a = MatMul(x, x) T=float32  | library, versions
    after    x = Placeholder() | a = MatMul(c, c) T=bfloat16 | c = Cast(x) | library, versions

Source of the format: the encoding of protocol buffers (https://protobuf.dev/programming-guides/encoding).

Nodes are looked at 1,024 at a time, because Python's protobuf keeps a table of live wrappers that only grows: all
wrappers of ResNet-50's graph at once take 1.5 times the serialized graph. API and hook share this path; to serialize
and parse costs the API 5 and 7 ms on ResNet-50. What there are thousands of (types, causes, planned types, converted
units) are arrays of four bytes. With these, the peak from bytes to bytes is below six times the graph; with a GraphDef
on both sides it is not, and cannot be by much: the result's tree of protos alone takes 4.6 to 4.9 times the bytes.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from amp_tf.errors import GraphError
from amp_tf.graph.wire import Layout, find_nodes

PIECE = 1024  # nodes looked at in one go


class Nodes(Sequence[Any], abc.ABC):
    """The nodes of a graph, to be looked at only."""

    @abc.abstractmethod
    def mentioning(self, text: str) -> list[int]:
        """The numbers of the nodes in which a text may stand, in order; all others can be left aside."""


class NodeTable(Nodes):
    """The nodes of a serialized GraphDef, to be looked at only. Each access parses them, unless all are one piece.

    Args:
        layout: where the nodes are in the bytes of a graph.

    Attributes:
        layout: as given; reads what they say, attributes apart, and changes types in their places.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._data = layout.data
        self._ends = layout.ends
        self._parsed: Any = None  # a GraphDef of all nodes

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, key: int) -> Any: ...

    @overload
    def __getitem__(self, key: slice) -> list[Any]: ...

    def __getitem__(self, key: int | slice) -> Any:
        """The NodeDef of a number, or those of a slice without a step.

        Raises:
            GraphError: the bytes are no NodeDef.
        """
        if isinstance(key, int) and not 0 <= key < len(self):
            raise IndexError(key)
        if len(self) <= PIECE:
            self._parsed = self._parsed or parse_graph(self.fields(0, len(self)))
            return self._parsed.node[key]
        first, end, _ = key.indices(len(self)) if isinstance(key, slice) else (key, key + 1, 1)
        nodes = parse_graph(self.fields(first, end)).node if first < end else []
        return list(nodes) if isinstance(key, slice) else nodes[0]

    def __iter__(self) -> Iterator[Any]:
        for piece in pieces(self):
            yield from piece

    def fields(self, first: int, end: int) -> bytes:
        """The bytes of some nodes one after the other, field headers included."""
        return self._data[self._start(first) : self._start(end)]

    def span(self, first: int, end: int) -> memoryview:
        """As :meth:`fields`, without a copy."""
        return memoryview(self._data)[self._start(first) : self._start(end)]

    def some(self, numbers: Iterable[int]) -> Sequence[Any]:
        """The NodeDefs of some numbers.

        Raises:
            GraphError: the bytes of one are no NodeDef.
        """
        fields = b"".join([self._data[self._start(number) : self._ends[number]] for number in numbers])
        return parse_graph(fields).node  # type: ignore[no-any-return]

    def split(self) -> Iterator[bytes]:
        """The bytes of each node, field header included."""
        start = 0
        for end in self._ends:
            yield self._data[start:end]
            start = end

    def mentioning(self, text: str) -> list[int]:
        """The numbers of the nodes in whose bytes a text stands, at whatever place."""
        wanted = text.encode()
        if wanted not in self._data:
            return []
        return [number for number, field in enumerate(self.split()) if wanted in field]

    def _start(self, number: int) -> int:
        return self._ends[number - 1] if number else 0


class SerializedGraph:
    """A serialized GraphDef.

    Args:
        data: the bytes.

    Attributes:
        node: its nodes.
        rest: a GraphDef that holds all the rest, parsed.
        rest_data: the same as bytes.

    Raises:
        GraphError: the bytes are no GraphDef. Nodes are looked at later.
    """

    rest_data: bytes
    rest: Any

    def __init__(self, data: bytes) -> None:
        layout = _layout_of(data)
        if layout is None or self._take_rest(layout).node:
            # Another program wrote it in another way: protobuf writes it again.
            layout = _layout_of(parse_graph(data).SerializeToString(), is_tail_opaque=True)
            if layout is None:
                raise _unreadable(data, "a node has fields of another kind than this version knows")
            self._take_rest(layout)
        self.node = NodeTable(layout)

    def _take_rest(self, layout: Layout) -> Any:
        self.rest_data = layout.data[layout.end :]
        self.rest = parse_graph(self.rest_data)
        return self.rest

    @property
    def library(self) -> Any:
        """The function library."""
        return self.rest.library


def read_table(data: bytes) -> NodeTable:
    """The nodes of a graph that protobuf, or the editor, serialized.

    Raises:
        GraphError: these are no nodes.
    """
    layout = _layout_of(data, is_tail_opaque=True)
    if layout is None:
        raise _unreadable(data, "a node is cut off")
    return NodeTable(layout)


def table_of(protos: Iterable[Any]) -> NodeTable:
    """The table of nodes that are given as NodeDefs."""
    return read_table(new_graph(node=protos).SerializeToString())


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


def pieces(values: Sequence[Any]) -> Iterator[Any]:
    """The values in lists that are short enough for Python to hold a proto object for each."""
    for start in range(0, len(values), PIECE):
        yield values[start : start + PIECE]


def _layout_of(data: bytes, *, is_tail_opaque: bool = False) -> Layout | None:
    """Where the nodes are; ``None`` if they are not written as protobuf writes them."""
    ends = find_nodes(data)
    layout = None if ends is None else Layout(data, ends, is_tail_opaque=is_tail_opaque)
    return layout if layout is not None and layout.is_usual else None


def _unreadable(data: bytes, why: str) -> GraphError:
    return GraphError(f"not a serialized GraphDef ({why})", where=f"{len(data)} bytes")


def new_graph(**fields: Any) -> Any:
    """A GraphDef with these fields."""
    from tensorflow.core.framework import graph_pb2

    return graph_pb2.GraphDef(**fields)
