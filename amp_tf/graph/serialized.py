"""Graphs as bytes: what a rewrite reads and what it makes, without a tree of protos for either.

A serialized GraphDef is a row of fields, one for each node, and after them the rest (function library, versions). As
Python's protobuf objects the same graph takes about five times the memory. So nodes are parsed when they are looked at,
some at a time, and the fields of nodes that nobody edits are copied from the one row of bytes into the other.

Source of the format: the encoding of protocol buffers (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import bisect
import io
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from amp_tf.errors import GraphError

PIECE = 1024  # nodes looked at in one go
_NODE_TAG = 0x0A  # field 1 of GraphDef, with a length
_MORE = 0x80  # in a byte of a number: another byte follows


class NodeTable(Sequence[Any]):
    """The nodes of a serialized GraphDef, to be looked at only. Each access parses them, unless all are one piece.

    Args:
        data: node fields, and nothing else.
        ends: the end of each field.
    """

    def __init__(self, data: bytes, ends: Sequence[int]) -> None:
        self._data = data
        self._ends = ends
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

    def differences(self, after: Iterable[bytes]) -> tuple[list[int], NodeTable]:
        """The nodes of another graph that are not, byte for byte, those of the same number here.

        Args:
            after: the other graph, its nodes first, in pieces of whole fields.

        Returns:
            The number of each, and these nodes. Numbers at the end to which no node belongs are those of missing nodes.
        """
        numbers: list[int] = []
        fields, field_ends = io.BytesIO(), array("Q")
        number = start = 0
        count, data, ends = len(self), self._data, self._ends
        for piece in after:
            position, size = 0, len(piece)
            while position < size and piece[position] == _NODE_TAG:
                end = ends[number] if number < count else start
                if number < count and piece.startswith(data[start:end], position):
                    position += end - start
                else:
                    field_end = _find_end(piece, position)
                    numbers.append(number)
                    fields.write(piece[position:field_end])
                    field_ends.append(fields.tell())
                    position = field_end
                number, start = number + 1, end
        numbers.extend(range(number, count))
        return numbers, NodeTable(fields.getvalue(), field_ends)  # hands out its own memory

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

    def __init__(self, data: bytes) -> None:
        ends = _find_ends(data)
        self.rest_data = data[ends[-1] if ends else 0 :]
        self.rest = parse_graph(self.rest_data)
        if self.rest.node:  # nodes after other fields, or not written as usual: protobuf writes them first
            data = parse_graph(data).SerializeToString()
            ends = _find_ends(data)
            self.rest_data = data[ends[-1] :]
            self.rest = parse_graph(self.rest_data)
        self.node = NodeTable(data, ends)

    @property
    def library(self) -> Any:
        """The function library."""
        return self.rest.library


class NodesUnderEdit:
    """The nodes of a graph while they are edited: those that are looked at are copied, the others are not.

    Args:
        original: the nodes before.
        expected: the numbers, in order, of nodes that will be looked at in this order: they are parsed together.
    """

    def __init__(self, original: NodeTable, expected: Sequence[int] = ()) -> None:
        self._original = original
        self._expected = expected
        self._edited: dict[int, bytes] = {}  # the bytes of nodes that were edited before
        self._copies = _graph_class()()  # one proto for many: each proto of its own would have its own arena
        self._number_of: dict[int, int] = {}  # of a node among the copies
        self._added = _graph_class()()

    def __len__(self) -> int:
        return len(self._original) + len(self._added.node)

    def __getitem__(self, number: int) -> Any:
        """A node's NodeDef, to be changed in place before another node is looked at."""
        if number >= len(self._original):
            return self._added.node[number - len(self._original)]
        if number not in self._number_of:
            self._copy(number)
        return self._copies.node[self._number_of[number]]

    def add(self) -> Any:
        """A new node after all others, empty."""
        return self._added.node.add()

    def serialize(self, rest: bytes = b"", *, joined: bool = False) -> list[bytes]:
        """The bytes of all nodes as they are now, in pieces of whole fields.

        Args:
            rest: comes after them.
            joined: give it all in one piece, which is built up in its place: a copy of a large graph costs memory.
        """
        self._put_away()
        parts = (b"".join(part) for part in _batched(self._parts(), PIECE))
        pieces = itertools.chain(parts, (self._added.SerializeToString(), rest))
        return [_join(pieces)] if joined else [piece for piece in pieces if piece]

    def _copy(self, number: int) -> None:
        if len(self._number_of) == PIECE:
            self._put_away()
        position = bisect.bisect_left(self._expected, number)
        wanted = self._expected[position : position + PIECE - len(self._number_of)]
        if not wanted or wanted[0] != number:
            wanted = [number]
        fresh = [each for each in wanted if each not in self._number_of]
        first = len(self._number_of)
        self._number_of.update(zip(fresh, range(first, first + len(fresh)), strict=True))
        original, edited = self._original, self._edited
        self._copies.MergeFromString(b"".join([edited.get(each) or original.fields(each, each + 1) for each in fresh]))

    def _put_away(self) -> None:
        fields = split_pieces([self._copies.SerializeToString()])
        self._edited.update(zip(self._number_of, fields, strict=True))
        self._number_of.clear()
        self._copies = _graph_class()()

    def _parts(self) -> Iterator[bytes]:
        start = 0
        for number in sorted(self._edited):
            yield self._original.fields(start, number)
            yield self._edited.pop(number)
            start = number + 1
        yield self._original.fields(start, len(self._original))


def split_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of each node of a graph in pieces of whole fields; what follows the nodes is left out."""
    for piece in pieces:
        yield from NodeTable(piece, _find_ends(piece)).split()


def join_fields(fields: Sequence[bytes]) -> NodeTable:
    """The table of nodes of which each one's bytes are given."""
    return NodeTable(b"".join(fields), array("Q", itertools.accumulate(map(len, fields))))


def merge_pieces(pieces: list[bytes]) -> Any:
    """The GraphDef whose bytes the pieces are; empties the list, so that they do not stay beside it."""
    graph = _graph_class()()
    pieces.reverse()
    while pieces:
        graph.MergeFromString(pieces.pop())
    return graph


def parse_graph(data: bytes) -> Any:
    """The GraphDef of a serialized one.

    Raises:
        GraphError: it is none.
    """
    from google.protobuf.message import DecodeError

    try:
        return _graph_class().FromString(data)
    except DecodeError as error:
        raise _unreadable(data, str(error)) from error


def pieces(values: Sequence[Any]) -> Iterator[Any]:
    """The values in lists that are short enough for Python to hold a proto object for each."""
    for start in range(0, len(values), PIECE):
        yield values[start : start + PIECE]


def _join(pieces: Iterable[bytes]) -> bytes:
    whole = io.BytesIO()
    for piece in pieces:
        whole.write(piece)
    return whole.getvalue()  # hands out its own memory


def _batched(values: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """The values in lists of a size; the last may be shorter."""
    rest = iter(values)
    while batch := list(itertools.islice(rest, size)):
        yield batch


def _find_ends(data: bytes) -> Sequence[int]:
    """The end of each of the node fields with which the bytes begin.

    Raises:
        GraphError: the last of them is cut off.
    """
    ends = array("Q")
    position, size = 0, len(data)
    try:
        while position < size and data[position] == _NODE_TAG:
            length = data[position + 1]
            if length < _MORE:
                position += 2 + length
            elif (more := data[position + 2]) < _MORE:  # as _read_number; nearly all nodes have a length of two bytes
                position += 3 + (length & ~_MORE | more << 7)
            else:
                length, position = _read_number(data, position + 1)
                position += length
            ends.append(position)
    except (IndexError, OverflowError):
        position = size + 1
    if position > size:
        raise _unreadable(data, "a node is cut off")
    return ends


def _find_end(data: bytes, start: int) -> int:
    """The end of the node field that begins at a place."""
    length, position = _read_number(data, start + 1)
    return position + length


def _read_number(data: bytes, position: int) -> tuple[int, int]:
    """A number in groups of seven bits, least first, and where it ends."""
    number = shift = 0
    while (byte := data[position]) >= _MORE:
        number |= (byte & ~_MORE) << shift
        shift += 7
        position += 1
    return number | byte << shift, position + 1


def _unreadable(data: bytes, why: str) -> GraphError:
    return GraphError(f"not a serialized GraphDef ({why})", where=f"{len(data)} bytes")


def _graph_class() -> Any:
    from tensorflow.core.framework import graph_pb2

    return graph_pb2.GraphDef
