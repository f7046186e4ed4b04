"""The graph in memory: arrays of integers.

A node is an index. A *unit* is a slot of a node (see :mod:`amp_tf.graph.templates`), also an index: the units of node
``i`` are ``base[i] … base[i + 1] - 1``. Adjacency is two flat lists in compressed-row form, between units.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from amp_tf.graph.templates import Signature, Slot


@dataclasses.dataclass(frozen=True)
class Edges:
    """All data edges, as parallel arrays of 32-bit integers.

    They are in the order of the nodes that they go to, and of these nodes' inputs.

    Attributes:
        src_node, src_port: where the tensor comes from.
        dst_node, dst_position: where it goes: the node and the number of its data input.
        src_unit, dst_unit: the units that the edge connects.
    """

    src_node: Any
    src_port: Any
    dst_node: Any
    dst_position: Any
    src_unit: Any
    dst_unit: Any

    def __len__(self) -> int:
        return len(self.src_node)

    def at(self, numbers: Any) -> Edges:
        """Some of the edges.

        Args:
            numbers: which, as a numpy index: numbers, a mask or a slice.
        """
        return Edges(*(column[numbers] for column in self._columns()))

    def followed_by(self, other: Edges) -> Edges:
        """These edges and then the others."""
        return Edges(*map(np.concatenate, zip(self._columns(), other._columns(), strict=True)))

    def _columns(self) -> tuple[Any, ...]:
        return self.src_node, self.src_port, self.dst_node, self.dst_position, self.src_unit, self.dst_unit


class Adjacency:
    """Neighbours of each unit, in both directions, as flat arrays: the fanins of ``u`` are
    ``fanin[fanin_start[u]:fanin_start[u + 1]]``, and likewise the fanouts."""

    def __init__(self, src: Sequence[int], dst: Sequence[int], unit_count: int) -> None:
        src_array = np.asarray(src, dtype=np.int32)
        dst_array = np.asarray(dst, dtype=np.int32)
        self.fanin_start, self.fanin = _compress(dst_array, src_array, unit_count)
        self.fanout_start, self.fanout = _compress(src_array, dst_array, unit_count)

    def fanins(self, unit: int) -> list[int]:
        return self.fanin[self.fanin_start[unit] : self.fanin_start[unit + 1]].tolist()

    def fanouts(self, unit: int) -> list[int]:
        return self.fanout[self.fanout_start[unit] : self.fanout_start[unit + 1]].tolist()


def slots_of_units(slot_counts: Any, kinds: Any) -> Any:
    """For each unit, the number of its slot among the slots of all kinds, one kind after the other.

    Args:
        slot_counts: how many slots each kind has.
        kinds: of each node.
    """
    slot_counts = np.asarray(slot_counts, np.int32)
    starts = np.cumsum(slot_counts, dtype=np.int32) - slot_counts
    counts = slot_counts[kinds]
    first_units = np.cumsum(counts, dtype=np.int32) - counts
    return np.repeat(starts[kinds] - first_units, counts) + np.arange(counts.sum(), dtype=np.int32)


def _compress(keys: Any, values: Any, count: int) -> tuple[array[int], array[int]]:
    order = np.argsort(keys, kind="stable")
    starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=starts[1:])
    return compact(starts), compact(values[order])


def compact(values: Any) -> array[int]:
    """Integers in four bytes each; a list of Python integers takes several times that.

    Args:
        values: a numpy array, or other integers.
    """
    return array("i", values.astype(np.int32).tobytes() if isinstance(values, np.ndarray) else values)


class PackedNames(Sequence[str]):
    """Names as one text, which takes half the memory, and are taken apart when they are first looked at."""

    def __init__(self, names: Sequence[str]) -> None:
        self._lengths = np.fromiter(map(len, names), np.int32, len(names))
        self._text = "".join(names)

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, key: Any) -> Any:
        return self._names[key]

    @functools.cached_property
    def _names(self) -> list[str]:
        ends = itertools.accumulate(self._lengths.tolist(), initial=0)
        return [self._text[start:end] for start, end in itertools.pairwise(ends)]


@dataclasses.dataclass(frozen=True)
class GraphView:
    """A graph or a function body, read once.

    Attributes:
        function: the function's name, empty for a graph.
        names, ops, devices: of each node.
        protos: the NodeDef of each node; ``None`` for a function's arguments and results, which come first and last.
            Of a graph they are its own container, which makes a Python object at each access.
        signatures: of each node.
        kinds: of each node, the number of its kind, as an array; nodes of one kind are told apart by name, device,
            inputs and TensorFlow's own marks alone.
        of_kind: the signature of each kind.
        base: first unit of each node, and the number of units at the end.
        dtypes: the ``DataType`` number of each unit.
        edges: all data edges.
    """

    function: str
    names: Sequence[str]
    ops: list[str]
    devices: list[str]
    protos: Sequence[Any]
    signatures: list[Signature]
    kinds: Any
    of_kind: Sequence[Signature]
    base: Sequence[int]
    dtypes: array[int]
    edges: Edges

    @property
    def node_count(self) -> int:
        return len(self.names)

    @property
    def unit_count(self) -> int:
        return len(self.dtypes)

    def nodes_where(self, is_wanted: Callable[[Signature], bool]) -> list[int]:
        """The nodes whose signatures are wanted, in order; each kind is asked once."""
        wanted = self.of_kinds(map(is_wanted, self.of_kind), np.bool_)
        return np.flatnonzero(wanted).tolist()  # type: ignore[no-any-return]

    def of_kinds(self, values: Iterable[Any], dtype: Any) -> Any:
        """An array with one entry a node from one value a kind."""
        return np.fromiter(values, dtype, len(self.of_kind))[self.kinds]

    def of_slots(self, values: Any) -> Any:
        """An array with one entry a unit from one for each slot of each kind, in order."""
        return values[slots_of_units([len(signature.slots) for signature in self.of_kind], self.kinds)]

    def units(self, node: int) -> range:
        return range(self.base[node], self.base[node + 1])

    def unit_nodes(self) -> Sequence[int]:
        """The node of each unit."""
        return compact(self.spread(np.arange(self.node_count)))

    def spread(self, node_values: Any) -> Any:
        """An array with one entry a node, as an array with one entry a unit."""
        counts: Any = np.diff(self.base)
        return np.repeat(node_values, counts)

    def slot(self, node: int, unit: int) -> Slot:
        return self.signatures[node].slots[unit - self.base[node]]

    def where(self, node: int, port: int | None = None) -> str:
        """The place of a node, for a message."""
        function = f"function {self.function!r}, " if self.function else ""
        suffix = "" if port is None else f":{port}"
        return f"{function}node {self.names[node]!r}{suffix}"

    def adjacency(self) -> Adjacency:
        """Neighbours of each unit along the data edges."""
        return Adjacency(self.edges.src_unit, self.edges.dst_unit, self.unit_count)

    def detached(self) -> GraphView:
        """The same view without its protos and edges, which are most of its memory, and with less for the rest."""
        no_edges = self.edges.at(np.zeros(0, np.intp))  # a copy; an empty slice would keep the arrays alive
        base: Any = np.asarray(self.base, np.int32)
        return dataclasses.replace(self, names=PackedNames(self.names), protos=[], base=base, edges=no_edges)
