"""Turns the inputs of nodes into edges between units, by arithmetic on arrays."""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from amp_tf.graph.templates import Signature
from amp_tf.graph.view import Edges, compact, slots_of_units
from amp_tf.graph.wire import UNKNOWN


class BrokenInputError(Exception):
    """An input that cannot be.

    Attributes:
        node: which node has it.
        what: what is wrong with it.
    """

    def __init__(self, node: int, what: str) -> None:
        self.node = node
        self.what = what
        super().__init__(node, what)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of all nodes, one after the other.

    Attributes:
        counts: how many each node has, control inputs included.
        sources: of each input, the node that it names; :data:`~amp_tf.graph.wire.CONTROL` for a control input,
            :data:`~amp_tf.graph.wire.UNKNOWN` or less for a name that names nothing.
        ports: of each input, the output port.
    """

    counts: Any
    sources: Any
    ports: Any

    def edges(self, ports: Ports, names: Sequence[str], texts: Callable[[int], Sequence[str]]) -> Edges:
        """The data edges.

        Args:
            ports: those of all nodes.
            names: of all nodes, for messages.
            texts: gives the names of a node's inputs, likewise.

        Raises:
            BrokenInputError: an input names nothing, a port does not exist, a data input comes after a control input,
                or a node has not as many inputs as its op expects.
        """
        readers = np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        starts = np.cumsum(self.counts, dtype=np.int32) - self.counts
        self._check_names(readers, starts, texts)
        data = np.flatnonzero(self.sources >= 0)
        src_node, src_port, dst_node = self.sources[data], self.ports[data], readers[data]
        _check_ports(src_node, src_port, dst_node, ports, names)
        _check_arity(np.bincount(dst_node, minlength=len(self.counts)), ports)
        dst_position = (data - starts[dst_node]).astype(np.int32)
        return Edges(
            src_node=src_node,
            src_port=src_port,
            dst_node=dst_node,
            dst_position=dst_position,
            src_unit=ports.output_units(src_node, src_port),
            dst_unit=ports.input_units(dst_node, dst_position),
        )

    def _check_names(self, readers: Any, starts: Any, texts: Callable[[int], Sequence[str]]) -> None:
        sources = self.sources
        unknown = np.flatnonzero(sources <= UNKNOWN)
        if len(unknown):
            node = int(readers[unknown[0]])
            position = int(unknown[0] - starts[node])
            text = texts(node)[position]
            if text[:1] == "^":
                raise BrokenInputError(node, f"control input {text!r} names no node of this graph")
            raise BrokenInputError(node, f"input {position} is {text!r}, which is no tensor of this graph")
        late = np.flatnonzero((sources[:-1] < 0) & (sources[1:] >= 0) & (readers[:-1] == readers[1:])) + 1
        if len(late):
            node = int(readers[late[0]])
            text = texts(node)[int(late[0] - starts[node])]
            raise BrokenInputError(node, f"data input {text!r} comes after a control input")


def find_inputs(texts: Sequence[Sequence[str]], resolve: Callable[[str], tuple[int, int]]) -> Inputs:
    """The inputs of nodes whose inputs are given by their names.

    Args:
        texts: the names, for each node.
        resolve: gives what a name means, as :attr:`Inputs.sources` and :attr:`Inputs.ports`.
    """
    found = np.array([resolve(text) for text in itertools.chain.from_iterable(texts)], np.int32).reshape(-1, 2)
    return Inputs(as_integers(list(map(len, texts))), found[:, 0], found[:, 1])


def _check_ports(src_node: Any, src_port: Any, dst_node: Any, ports: Ports, names: Sequence[str]) -> None:
    existing = ports.output_counts(src_node)
    wrong = np.flatnonzero(src_port >= existing)
    if len(wrong):
        edge = wrong[0]
        what = f"reads port {src_port[edge]} of {names[src_node[edge]]!r}, which has {existing[edge]} output(s)"
        raise BrokenInputError(int(dst_node[edge]), what)


def _check_arity(counts: Any, ports: Ports) -> None:
    wrong = np.flatnonzero(counts != ports.input_counts())
    if len(wrong):
        node = int(wrong[0])
        signature = ports.signatures[node]
        expected = f"{signature.op} expects {len(signature.inputs)} data input(s)"
        raise BrokenInputError(node, f"{expected} and has {counts[node]}")


class Ports:
    """Which unit types each port of each node; the rows of all nodes are looked up at once.

    Args:
        of_kind: a signature for each kind of node.
        kinds: of each node, the number of its kind.

    Attributes:
        signatures: of each node.
        of_kind, kinds: as given.
        base: the first unit of each node, and the number of units at the end.
    """

    def __init__(self, of_kind: Sequence[Signature], kinds: Any) -> None:
        self.signatures = list(map(of_kind.__getitem__, kinds.tolist()))
        self.of_kind = of_kind
        self.kinds = kinds
        self._inputs = _Table(list(map(_get_inputs, of_kind)))
        self._outputs = _Table(list(map(_get_outputs, of_kind)))
        self._slots = as_integers([len(signature.slots) for signature in of_kind])
        self._first_unit = np.zeros(len(kinds) + 1, np.int32)
        np.cumsum(self._slots[kinds], out=self._first_unit[1:])
        self.base = compact(self._first_unit)

    @classmethod
    def of_each(cls, signatures: Sequence[Signature]) -> Ports:
        """Where every node is a kind of its own."""
        return cls(signatures, np.arange(len(signatures), dtype=np.int32))

    def of_nodes(self, slots_of_kinds: Sequence[int]) -> array[int]:
        """What is known of each slot of each kind, one after the other, for each slot of each node."""
        return compact(as_integers(slots_of_kinds)[slots_of_units(self._slots, self.kinds)])

    def input_counts(self) -> Any:
        """How many data inputs the op of each node has."""
        return self._inputs.counts[self.kinds]

    def output_counts(self, nodes: Any) -> Any:
        """How many output ports some nodes have."""
        return self._outputs.counts[self.kinds[nodes]]

    def input_units(self, nodes: Any, positions: Any) -> Any:
        """The units of some data inputs, which must exist."""
        return self._first_unit[nodes] + self._inputs.at(self.kinds[nodes], positions)

    def output_units(self, nodes: Any, numbers: Any) -> Any:
        """The units of some output ports, which must exist."""
        return self._first_unit[nodes] + self._outputs.at(self.kinds[nodes], numbers)


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


_get_inputs = attrgetter("inputs")
_get_outputs = attrgetter("outputs")
