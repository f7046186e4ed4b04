"""The graph in memory: arrays of integers.

A node is an index. A *unit* is a slot of a node (see :mod:`amp_tf.graph.templates`), also an index:
the units of node ``i`` are ``base[i] … base[i + 1] - 1``. Adjacency is two flat lists in
compressed-row form, between units.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amp_tf.graph.attributes import (
    ARG_OP,
    CAPTURED,
    CONST_OP,
    USER_NAME,
    floats,
    place_of,
    read_signatures,
    read_types,
)
from amp_tf.graph.datatypes import Indices, Mask, Node, Port, Unit
from amp_tf.graph.editor import EditedNodes
from amp_tf.graph.edits import Edits, NewNode, Reader, Retype, Tensor, having
from amp_tf.graph.templates import Signature, Slot, Templates


@dataclasses.dataclass(frozen=True)
class Edges:
    """All data edges, as parallel arrays of 32-bit integers.

    They are in the order of the nodes that they go to, and of these nodes' inputs.

    Attributes:
        src_node, src_port: where the tensor comes from.
        dst_node, dst_position: where it goes: the node and the number of its data input.
        src_unit, dst_unit: the units that the edge connects.
    """

    src_node: Indices
    src_port: Indices
    dst_node: Indices
    dst_position: Indices
    src_unit: Indices
    dst_unit: Indices

    def __len__(self) -> int:
        return len(self.src_node)

    def at(self, numbers: npt.NDArray[Any] | slice) -> Edges:
        """Some of the edges."""
        if isinstance(numbers, np.ndarray) and numbers.dtype == np.bool_:
            numbers = np.flatnonzero(numbers)  # looked for once, and not in each column
        return Edges(*(column[numbers] for column in vars(self).values()))

    def into(self, node: Node) -> Edges:
        """Those that go to a node, in the order of its inputs."""
        ends = np.array(
            (node, node + 1), self.dst_node.dtype
        )  # of another type numpy would convert all edges
        return self.at(slice(*np.searchsorted(self.dst_node, ends)))

    def rows(self, *columns: str) -> Iterator[Any]:
        """Some columns, row by row, as tuples of Python integers, which are faster to work with one
        by one.
        """
        return zip(*(getattr(self, column).tolist() for column in columns), strict=True)


NO_EDGES = Edges(*[np.zeros(0, np.int32)] * 6)


class Adjacency:
    """Neighbours of each unit, in both directions, as flat arrays: the fanins of ``u`` are
    ``fanin[fanin_start[u]:fanin_start[u + 1]]``, the fanouts the same slice of ``fanout``."""

    def __init__(self, sources: Indices, readers: Indices, count: int) -> None:
        self.fanin_start, self.fanin = compress(readers, sources, count)
        self.fanout_start, self.fanout = compress(sources, readers, count)

    def fanins(self, unit: Unit) -> list[Unit]:
        return self.fanin[self.fanin_start[unit] : self.fanin_start[unit + 1]].tolist()

    def fanouts(self, unit: Unit) -> list[Unit]:
        return self.fanout[self.fanout_start[unit] : self.fanout_start[unit + 1]].tolist()


def compress(keys: Indices, values: Indices, count: int) -> tuple[array[int], array[int]]:
    """Values in rows by their keys, which are below a count: where each row starts, and all of
    them.
    """
    order = np.argsort(
        keys.astype(np.min_scalar_type(count)), kind="stable"
    )  # quick for numbers of two bytes
    starts = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=starts[1:])
    return compact(starts), compact(values[order])


def compact(values: npt.NDArray[Any] | Iterable[int]) -> array[int]:
    """Integers in four bytes each; a list of Python integers takes several times that."""
    return array(
        "i", values.astype(np.int32).tobytes() if isinstance(values, np.ndarray) else values
    )


class _Table:
    """Rows of different lengths, of which many places are looked up at once."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.counts = np.array([len(row) for row in rows], np.int32)
        self._values = np.array(list(itertools.chain.from_iterable(rows)), np.int32)
        self._starts = np.cumsum(self.counts, dtype=np.int32) - self.counts

    def at(self, rows: Indices, places: Indices) -> Indices:
        found: Indices = self._values[self._starts[rows] + places]
        return found


@dataclasses.dataclass(frozen=True)
class GraphView:
    """A graph or a function body, read once.

    Attributes:
        function: the function's name, empty for a graph.
        protos: the NodeDef of each node; ``None`` for a function's arguments and results, which
            come first and last. Of a graph they are its own container, which makes a Python object
            at each access.
        kinds: of each node, the number of its kind, as an array; nodes of one kind are told apart
            by name, device, inputs and TensorFlow's own marks alone.
        base: first unit of each node, and the number of units at the end.
        slot_of_unit: of each unit, the number of its slot among the slots of all kinds, one kind
            after the other.
        argument_attributes: of a function's arguments, which have no NodeDef.
    """

    function: str
    names: Sequence[str]
    ops: list[str]
    devices: list[str]
    protos: Sequence[Any]
    signatures: list[Signature]
    kinds: Indices
    of_kind: Sequence[Signature]
    base: Sequence[Unit] | Indices
    slot_of_unit: Indices
    dtypes: array[int]
    edges: Edges = NO_EDGES
    argument_attributes: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(
        cls, of_kind: Sequence[Signature], kinds: Indices, types: Sequence[int], **others: Any
    ) -> GraphView:
        """A view without edges; the types are those of the slots of all kinds, one kind after the
        other.
        """
        signatures = list(map(of_kind.__getitem__, kinds.tolist()))
        counts = np.array([len(signature.slots) for signature in of_kind], np.int32)
        base = np.zeros(len(kinds) + 1, np.int32)
        np.cumsum(counts[kinds], out=base[1:])
        starts, units = (
            np.cumsum(counts, dtype=np.int32) - counts,
            np.arange(base[-1], dtype=np.int32),
        )
        slot_of_unit = np.repeat(starts[kinds] - base[:-1], counts[kinds]) + units
        return cls(
            ops=[signature.op for signature in signatures],
            signatures=signatures,
            kinds=kinds,
            of_kind=of_kind,
            base=compact(base),
            slot_of_unit=slot_of_unit,
            dtypes=compact(np.array(types, np.int32)[slot_of_unit]),
            **others,
        )

    @functools.cached_property
    def ports(self) -> tuple[_Table, _Table]:
        """The slot of each input, and of each output, of each kind."""
        return _Table([kind.inputs for kind in self.of_kind]), _Table(
            [kind.outputs for kind in self.of_kind]
        )

    def connected(
        self, src_node: Indices, src_port: Indices, dst_node: Indices, dst_position: Indices
    ) -> GraphView:
        """The view with edges between some output ports and data inputs, which must exist."""
        base, (inputs, outputs) = np.asarray(self.base, np.int32), self.ports
        src_unit = base[src_node] + outputs.at(self.kinds[src_node], src_port)
        dst_unit = base[dst_node] + inputs.at(self.kinds[dst_node], dst_position)
        edges = Edges(src_node, src_port, dst_node, dst_position, src_unit, dst_unit)
        return dataclasses.replace(self, edges=edges)

    @property
    def node_count(self) -> int:
        return len(self.names)

    @property
    def unit_count(self) -> int:
        return len(self.dtypes)

    def nodes_with(self, trait: Container[str]) -> list[Node]:
        """The nodes whose ops have a trait (:class:`amp_tf.oplists.table.Trait`), in order."""
        return np.flatnonzero(self.mask_with(trait)).tolist()  # type: ignore[no-any-return]

    def mask_with(self, trait: Container[str]) -> Mask:
        """Of each node, whether its op has a trait."""
        ops, numbers = self.numbered_ops
        found = [op in trait for op in ops]
        return (
            np.array(found, np.bool_)[numbers]
            if True in found
            else np.zeros(len(numbers), np.bool_)
        )

    @functools.cached_property
    def numbered_ops(self) -> tuple[dict[str, int], Indices]:
        """The ops of the graph with a number each, and the number of each node's op."""
        ops: dict[str, int] = {}
        of_kinds = [ops.setdefault(kind.op, len(ops)) for kind in self.of_kind]
        return ops, np.array(of_kinds, np.int32)[self.kinds]

    def of_kinds(self, values: Iterable[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array with one entry a node from one value a kind."""
        return np.fromiter(values, dtype, len(self.of_kind))[self.kinds]

    def of_slots(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An array with one entry a unit from one for each slot of each kind, in order."""
        return values[self.slot_of_unit]

    @functools.cached_property
    def constants(self) -> npt.NDArray[Any]:
        """Of the float32 values of each Const node how many there are, how many of them are finite
        and not zero, and the largest size of a finite one: three entries a node, zeros for all
        other nodes.
        """
        found = np.zeros((3, self.node_count), np.float32)
        constants = self.nodes_with((CONST_OP,))
        found[:, constants] = np.array(self.read_once(constants, _figures_of)).T.reshape(3, -1)
        return found

    def read_once(self, nodes: Sequence[Node], read: Callable[[Any], Any]) -> list[Any]:
        """What the attributes of some nodes say, read once a kind."""
        kinds = self.kinds[np.asarray(nodes, np.int32)].tolist()
        numbers = dict(zip(kinds, nodes, strict=True))
        of_kinds = dict(
            zip(numbers, (read(self.protos[node]) for node in numbers.values()), strict=True)
        )
        return [of_kinds[kind] for kind in kinds]

    def units(self, node: Node) -> range:
        return range(self.base[node], self.base[node + 1])

    @functools.cached_property
    def unit_nodes(self) -> Sequence[Node]:
        """The node of each unit."""
        return compact(np.repeat(np.arange(self.node_count), np.diff(self.base)))

    def spread(self, node_values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An array with one entry a node, as an array with one entry a unit."""
        return node_values[np.asarray(self.unit_nodes, np.int32)]

    def slot(self, node: Node, unit: Unit) -> Slot:
        return self.signatures[node].slots[unit - self.base[node]]

    def inputs(self, node: Node) -> list[Tensor]:
        """The tensors that a node reads, in the order of its data inputs."""
        starts, tensors = self._inward
        return tensors[starts[node] : starts[node + 1]]

    def readers(self, node: Node, port: Port | None = None) -> list[Reader]:
        """The data inputs that read a node's results, or those of one port."""
        starts, readers, ports = self._outward
        found = slice(starts[node], starts[node + 1])
        if port is None:
            return readers[found]
        return [
            reader
            for reader, read in zip(readers[found], ports[found], strict=True)
            if read == port
        ]

    def only_reader(self, node: Node) -> Node | None:
        """The node that reads a node's results where there is one reading."""
        readers = self.readers(node)
        return readers[0][0] if len(readers) == 1 else None

    @functools.cached_property
    def _inward(self) -> tuple[list[int], list[Tensor]]:
        starts = np.searchsorted(
            self.edges.dst_node, np.arange(self.node_count + 1, dtype=np.int32)
        )
        return starts.tolist(), list(self.edges.rows("src_node", "src_port"))

    @functools.cached_property
    def _outward(self) -> tuple[list[int], list[Reader], list[Port]]:
        edges = self.edges.at(np.argsort(self.edges.src_node, kind="stable"))
        starts = np.searchsorted(edges.src_node, np.arange(self.node_count + 1, dtype=np.int32))
        return (
            starts.tolist(),
            list(edges.rows("dst_node", "dst_position")),
            edges.src_port.tolist(),
        )

    def given_arguments(self) -> list[Node]:
        """The arguments that callers give: those before the first that a trace captured, a tensor
        or a variable.
        """
        attributes = dict(enumerate(self.argument_attributes))
        if not self.function:
            attributes = {node: self.protos[node].attr for node in self.nodes_with((ARG_OP,))}
            attributes = dict(sorted(attributes.items(), key=lambda item: item[1]["index"].i))

        def is_given(node: Node) -> bool:
            name = attributes[node][USER_NAME].s if USER_NAME in attributes[node] else b""
            return bool(name) and not name.isdigit() and name != CAPTURED

        return list(itertools.takewhile(is_given, attributes))

    def where(self, node: Node) -> str:
        """The place of a node, for a message."""
        return place_of(self.function, self.names[node])

    def retyped(self, units: Sequence[Unit] | Indices, data_type: int) -> Retype:
        """The edit by which some units become a type."""
        slots = np.array([slot for kind in self.of_kind for slot in kind.slots], object)
        return Retype(
            np.asarray(self.unit_nodes, np.int32)[units], self.of_slots(slots)[units], data_type
        )

    def copied(
        self, model: Node, name: str, inputs: Iterable[Tensor], after: tuple[Node, ...]
    ) -> NewNode:
        """A node that does what another does, on its device, with these inputs and waiting for
        these nodes.
        """
        attributes = having(**self.protos[model].attr)
        return NewNode(name, self.ops[model], self.devices[model], tuple(inputs), after, attributes)

    def after(self, edits: Edits, templates: Templates) -> GraphView:
        """The view of the edited graph, of which no bytes exist yet.

        Only a graph's, not a function's.
        """
        assert not self.function
        nodes = EditedNodes(self.protos, self.names, edits)
        remade = edits.remade(self.node_count)
        made = [nodes[number] for number in remade]
        signatures = read_signatures(made, templates)
        kinds = np.concatenate([self.kinds, np.zeros(len(edits.new), np.int32)])
        kinds[remade] = np.arange(len(self.of_kind), len(self.of_kind) + len(made))
        types = np.zeros(sum(len(kind.slots) for kind in self.of_kind), np.int32)
        types[self.slot_of_unit] = self.dtypes
        view = GraphView.of(
            [*self.of_kind, *signatures],
            kinds,
            [*types.tolist(), *read_types(made, signatures)],
            function=self.function,
            names=[*self.names, *(node.name for node in edits.new)],
            devices=[*self.devices, *(node.device for node in edits.new)],
            protos=nodes,
        )
        return view.connected(*self._ends_after(edits))

    def _ends_after(self, edits: Edits) -> Iterable[Indices]:
        """The ends of the data edges once the edits are made: source and port, reader and position."""
        replaced = {reop.node: reop.inputs for reop in edits.reops if reop.inputs is not None}
        edges = self.edges.at(~np.isin(self.edges.dst_node, list(replaced)))
        given = {
            **replaced,
            **{number: node.inputs for number, node in enumerate(edits.new, self.node_count)},
        }
        new = [
            (*source, number, position)
            for number, inputs in given.items()
            for position, source in enumerate(inputs)
        ]
        added = np.array(new, np.int32).reshape(-1, 4).T
        before = edges.src_node, edges.src_port, edges.dst_node, edges.dst_position
        columns = list(map(np.concatenate, zip(before, added, strict=True)))
        order = np.argsort(columns[2], kind="stable")  # by the nodes that they go to
        src_node, src_port, dst_node, dst_position = (column[order] for column in columns)
        for rewire in edits.rewires:
            place = np.searchsorted(dst_node, rewire.node) + rewire.position
            src_node[place], src_port[place] = rewire.src_node, rewire.src_port
        return src_node, src_port, dst_node, dst_position

    def detached(self) -> GraphView:
        """The same view without its protos and edges, which are most of its memory."""
        base, none = np.asarray(self.base, np.int32), np.zeros(0, np.int32)
        return dataclasses.replace(self, protos=[], base=base, slot_of_unit=none, edges=NO_EDGES)


def _figures_of(constant: Any) -> tuple[int, Any, Any]:
    values = np.abs(floats(constant))
    finite = values[np.isfinite(values)]
    return values.size, np.count_nonzero(finite), finite.max(initial=0.0)
