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
from amp_tf.graph.view import Edges, compact

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
        self._nodes: list[Any] = []  # whose inputs were added, as arrays; likewise:
        self._counts: list[Any] = []  # of their inputs
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
        numbers = as_integers(nodes)
        readers = np.repeat(numbers, counts)
        sources = list(map(self._tensors.plain.get, texts, itertools.repeat(_NOT_PLAIN)))
        ports = np.zeros(len(texts), np.int32)
        known = self._tensors.nodes
        for number in [number for number, source in enumerate(sources) if source == _NOT_PLAIN]:
            text = texts[number]
            if text[:1] != "^":
                sources[number], ports[number] = self._read_rare(number, text, readers)
            elif text[1:] in known:
                sources[number] = _CONTROL
            else:
                raise self._error(readers[number], f"control input {text!r} names no node of this graph")
        array = as_integers(sources)
        late = np.flatnonzero((array[:-1] < 0) & (array[1:] >= 0) & (readers[:-1] == readers[1:]))
        if len(late):
            number = late[0] + 1
            raise self._error(readers[number], f"data input {texts[number]!r} comes after a control input")
        self._nodes.append(numbers)
        self._counts.append(counts)
        self._readers.append(readers)
        self._sources.append(array)
        self._ports.append(ports)

    def _read_rare(self, number: int, text: str, readers: Any) -> tuple[int, int]:
        found = self._tensors.resolve(text)
        if found is None:
            position = number - int(np.flatnonzero(readers == readers[number])[0])
            raise self._error(readers[number], f"input {position} is {text!r}, which is no tensor of this graph")
        return found

    def edges(self, ports: Ports) -> Edges:
        """The edges into the nodes whose inputs were added, in the order in which they were added.

        Args:
            ports: those of all nodes of the graph.

        Raises:
            GraphError: a port does not exist, or a node has not as many inputs as its op expects.
        """
        counts, readers, sources, numbers = map(_joined, (self._counts, self._readers, self._sources, self._ports))
        starts = np.cumsum(counts, dtype=np.int32) - counts
        data = np.flatnonzero(sources >= 0)
        src_node, src_port, dst_node = sources[data], numbers[data], readers[data]
        self._check_ports(src_node, src_port, dst_node, ports)
        rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[data]
        self._check_arity(_joined(self._nodes), np.bincount(rows, minlength=len(counts)), ports)
        dst_position = (data - starts[rows]).astype(np.int32)
        return Edges(
            src_node=src_node,
            src_port=src_port,
            dst_node=dst_node,
            dst_position=dst_position,
            src_unit=ports.output_units(src_node, src_port),
            dst_unit=ports.input_units(dst_node, dst_position),
        )

    def _check_ports(self, src_node: Any, src_port: Any, dst_node: Any, ports: Ports) -> None:
        existing = ports.output_counts(src_node)
        wrong = np.flatnonzero(src_port >= existing)
        if len(wrong):
            edge = wrong[0]
            source = self._tensors.names[src_node[edge]]
            what = f"reads port {src_port[edge]} of {source!r}, which has {existing[edge]}"
            raise self._error(dst_node[edge], f"{what} output(s)")

    def _check_arity(self, nodes: Any, counts: Any, ports: Ports) -> None:
        wrong = np.flatnonzero(counts != ports.input_counts(nodes))
        if len(wrong):
            row = wrong[0]
            signature = ports.signatures[nodes[row]]
            expected = f"{signature.op} expects {len(signature.inputs)} data input(s)"
            raise self._error(nodes[row], f"{expected} and has {counts[row]}")

    def _error(self, node: int, what: str) -> GraphError:
        return GraphError(what, where=self._tensors.place(self._tensors.names[node]), fix=BROKEN)


class Ports:
    """Which unit types each port of each node; the rows of all nodes are looked up at once.

    Args:
        signatures: of all nodes of a graph.

    Attributes:
        signatures: the same.
        base: the first unit of each node, and the number of units at the end.
    """

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self.signatures = signatures
        number_of = {signature: number for number, signature in enumerate(dict.fromkeys(signatures))}
        self._kind = np.fromiter(map(number_of.__getitem__, signatures), np.int32, len(signatures))
        self._inputs = _Table(list(map(_get_inputs, number_of)))
        self._outputs = _Table(list(map(_get_outputs, number_of)))
        slots = as_integers([len(signature.slots) for signature in number_of])
        self._first_unit = np.zeros(len(signatures) + 1, np.int32)
        np.cumsum(slots[self._kind], out=self._first_unit[1:])
        self.base = compact(self._first_unit)

    def input_counts(self, nodes: Any) -> Any:
        """How many data inputs the ops of some nodes have."""
        return self._inputs.counts[self._kind[nodes]]

    def output_counts(self, nodes: Any) -> Any:
        """How many output ports some nodes have."""
        return self._outputs.counts[self._kind[nodes]]

    def input_units(self, nodes: Any, positions: Any) -> Any:
        """The units of some data inputs, which must exist."""
        return self._first_unit[nodes] + self._inputs.at(self._kind[nodes], positions)

    def output_units(self, nodes: Any, numbers: Any) -> Any:
        """The units of some output ports, which must exist."""
        return self._first_unit[nodes] + self._outputs.at(self._kind[nodes], numbers)


class _Table:
    """Rows of different lengths, one after the other."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.counts = as_integers([len(row) for row in rows])
        self._values = as_integers(list(itertools.chain.from_iterable(rows)))
        self._starts = np.cumsum(self.counts, dtype=np.int32) - self.counts

    def at(self, rows: Any, places: Any) -> Any:
        return self._values[self._starts[rows] + places]


def as_integers(values: Sequence[int]) -> Any:
    """An array of 32-bit integers, which number nodes, ports and units."""
    return np.fromiter(values, np.int32, len(values))


def _joined(arrays: Sequence[Any]) -> Any:
    return np.concatenate([np.zeros(0, np.int32), *arrays])


_get_inputs = attrgetter("inputs")
_get_outputs = attrgetter("outputs")
