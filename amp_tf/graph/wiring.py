"""Turns the inputs of nodes, which are names, into edges, which are numbers.

Names are looked up and counted by loops that run in C (``map`` over a dictionary's ``get``), the rest is arithmetic on
arrays: a training graph has tens of thousands of inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph.attributes import BROKEN, Place
from amp_tf.graph.templates import Signature
from amp_tf.graph.view import Edges

_NOT_PLAIN = -1  # neither a node's first output nor known otherwise
_CONTROL = -2


class TensorNames(Protocol):
    """How the nodes of a graph or a function name the tensors that they read.

    Attributes:
        names: of all nodes.
        nodes: the number of each node that a control input may name.
        plain: names that stand for the first output of a node as they are.
        place: says where a node is, for a message.
    """

    names: Sequence[str]
    nodes: Mapping[str, int]
    plain: Mapping[str, int]
    place: Place

    def resolve(self, text: str) -> tuple[int, int] | None:
        """The node and port of a name that is not plain; ``None`` if there is no such tensor."""


class Wires:
    """Collects the inputs of nodes, then makes the edges.

    Args:
        tensors: tells what the names mean.
    """

    def __init__(self, tensors: TensorNames) -> None:
        self._tensors = tensors
        self._nodes: list[int] = []  # whose inputs were added
        self._counts: list[Any] = []  # of their inputs, as arrays; likewise:
        self._readers: list[Any] = []  # of each input, its node
        self._sources: list[Any] = []  # and the node that it names
        self._ports: list[Any] = []

    def add(self, nodes: Sequence[int], inputs: Sequence[Sequence[str]]) -> None:
        """Adds the inputs of some nodes.

        Args:
            nodes: their numbers.
            inputs: the names in each node's ``input``.

        Raises:
            GraphError: an input names no tensor or node of the graph, or a data input comes after a control input.
        """
        texts = list(itertools.chain.from_iterable(inputs))
        counts = np.fromiter(map(len, inputs), np.int32, len(inputs))
        readers = np.repeat(as_integers(nodes), counts)
        sources = list(map(self._tensors.plain.get, texts, itertools.repeat(_NOT_PLAIN)))
        ports = np.zeros(len(texts), np.int32)
        for number in [number for number, source in enumerate(sources) if source == _NOT_PLAIN]:
            text = texts[number]
            if text[:1] == "^":
                sources[number] = self._read_control(text, readers[number])
            else:
                sources[number], ports[number] = self._read_rare(number, text, readers)
        array = as_integers(sources)
        late = np.flatnonzero((array[:-1] < 0) & (array[1:] >= 0) & (readers[:-1] == readers[1:]))
        if len(late):
            number = late[0] + 1
            raise self._error(readers[number], f"data input {texts[number]!r} comes after a control input")
        self._nodes += nodes
        self._counts.append(counts)
        self._readers.append(readers)
        self._sources.append(array)
        self._ports.append(ports)

    def _read_control(self, text: str, reader: int) -> int:
        if text[1:] not in self._tensors.nodes:
            raise self._error(reader, f"control input {text!r} names no node of this graph")
        return _CONTROL

    def _read_rare(self, number: int, text: str, readers: Any) -> tuple[int, int]:
        found = self._tensors.resolve(text)
        if found is None:
            position = number - int(np.flatnonzero(readers == readers[number])[0])
            raise self._error(readers[number], f"input {position} is {text!r}, which is no tensor of this graph")
        return found

    def edges(self, signatures: Sequence[Signature], base: Sequence[int]) -> Edges:
        """The edges into the nodes whose inputs were added, in the order in which they were added.

        Args:
            signatures, base: of all nodes of the graph; see :class:`~amp_tf.graph.view.GraphView`.

        Raises:
            GraphError: a port does not exist, or a node has not as many inputs as its op expects.
        """
        counts, readers, sources, ports = map(_joined, (self._counts, self._readers, self._sources, self._ports))
        starts = np.cumsum(counts, dtype=np.int32) - counts
        data = np.flatnonzero(sources >= 0)
        src_node, src_port, dst_node = sources[data], ports[data], readers[data]
        output_counts = _port_counts(signatures, _get_outputs)
        self._check_ports(src_node, src_port, dst_node, output_counts)
        rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[data]
        reading = [signatures[node] for node in self._nodes]
        self._check_arity(np.bincount(rows, minlength=len(counts)), reading)

        first_unit = as_integers(base)
        output_starts = np.cumsum(output_counts, dtype=np.int32) - output_counts
        output_slots = _slots(signatures, _get_outputs)
        return Edges(
            src_node=src_node,
            src_port=src_port,
            dst_node=dst_node,
            dst_position=(data - starts[rows]).astype(np.int32),
            src_unit=first_unit[src_node] + output_slots[output_starts[src_node] + src_port],
            dst_unit=first_unit[dst_node] + _slots(reading, _get_inputs),
        )

    def _check_ports(self, src_node: Any, src_port: Any, dst_node: Any, output_counts: Any) -> None:
        wrong = np.flatnonzero(src_port >= output_counts[src_node])
        if len(wrong):
            edge = wrong[0]
            source = src_node[edge]
            what = f"reads port {src_port[edge]} of {self._tensors.names[source]!r}, which has {output_counts[source]}"
            raise self._error(dst_node[edge], f"{what} output(s)")

    def _check_arity(self, counts: Any, reading: Sequence[Signature]) -> None:
        wrong = np.flatnonzero(counts != _port_counts(reading, _get_inputs))
        if len(wrong):
            row = wrong[0]
            expected = f"{reading[row].op} expects {len(reading[row].inputs)} data input(s)"
            raise self._error(self._nodes[row], f"{expected} and has {counts[row]}")

    def _error(self, node: int, what: str) -> GraphError:
        return GraphError(what, where=self._tensors.place(self._tensors.names[node]), fix=BROKEN)


def as_integers(values: Sequence[int]) -> Any:
    """An array of 32-bit integers, which number nodes, ports and units."""
    return np.fromiter(values, np.int32, len(values))


def _joined(arrays: Sequence[Any]) -> Any:
    return np.concatenate([np.zeros(0, np.int32), *arrays])


def _port_counts(signatures: Sequence[Signature], get_ports: Any) -> Any:
    return np.fromiter(map(len, map(get_ports, signatures)), np.int32, len(signatures))


def _slots(signatures: Sequence[Signature], get_ports: Any) -> Any:
    return np.fromiter(itertools.chain.from_iterable(map(get_ports, signatures)), np.int32)


_get_inputs = attrgetter("inputs")
_get_outputs = attrgetter("outputs")
