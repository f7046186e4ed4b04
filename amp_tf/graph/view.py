"""The graph in memory: arrays of integers.

A node is an index. A *unit* is a slot of a node (see :mod:`amp_tf.graph.templates`), also an index:
the units of node ``i`` are ``base[i] … base[i + 1] - 1``. Edges connect units
(:mod:`amp_tf.graph.edges`).
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from array import array
from collections.abc import Container, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from amp_tf.graph.attributes import (
    ARG_OP,
    CAPTURED,
    CONST_OP,
    USER_NAME,
    floats,
    place_of,
    read_marks,
    read_signatures,
    read_types,
    value_of,
)
from amp_tf.graph.datatypes import Indices, Mask, Node, Port, Unit, indices, mask_of
from amp_tf.graph.edges import NO_EDGES, Edges, Table, compact
from amp_tf.graph.editor import EditedNodes
from amp_tf.graph.edits import Edits, Reader, Retype, Tensor
from amp_tf.graph.templates import Signature, Slot, Templates

_Value = TypeVar("_Value", bound=np.generic)


def _no_controls() -> Indices:
    return np.zeros((0, 2), np.int32)


@dataclasses.dataclass(frozen=True)
class GraphView:
    """A graph or a function body, read once.

    Attributes:
        function: the function's name, empty for a graph.
        protos: the NodeDef of each node; a function's arguments and results come first. A graph's
            are its own container, which makes a Python object at each access.
        kinds: the number of each node's kind; nodes of one kind differ in name, device, inputs and
            the values of TensorFlow's own marks alone.
        of_kind: the signature of each kind.
        types: the ``DataType`` numbers of the slots of all kinds, one kind after the other.
        marks: the names of TensorFlow's marks on each kind.
        base: the first unit of each node, and the number of units at the end.
        slot_of_unit: for each unit, the number of its slot among the slots of all kinds, one kind
            after the other.
        dtypes: the ``DataType`` number of each unit.
        edges: the data edges.
        controls: a row for each control edge: the node that comes first, and the one that waits.
    """

    function: str
    names: Sequence[str]
    ops: list[str]
    devices: list[str]
    protos: Sequence[Any]
    signatures: list[Signature]
    kinds: Indices
    of_kind: Sequence[Signature]
    types: Sequence[int]
    marks: Sequence[Sequence[str]]
    base: Sequence[Unit] | Indices
    slot_of_unit: Indices
    dtypes: array[int]
    edges: Edges = NO_EDGES
    controls: Indices = dataclasses.field(default_factory=_no_controls)

    @classmethod
    def of(
        cls, of_kind: Sequence[Signature], kinds: Indices, types: Sequence[int], **others: Any
    ) -> GraphView:
        """Makes a view without edges.

        Args:
            of_kind: the signature of each kind.
            kinds: the kind of each node.
            types: the types of the slots of all kinds, one kind after the other.
            others: further attributes.
        """
        signatures = list(map(of_kind.__getitem__, kinds.tolist()))
        counts = np.array([len(signature.slots) for signature in of_kind], np.int32)
        base = np.zeros(len(kinds) + 1, np.int32)
        np.cumsum(counts[kinds], out=base[1:])
        starts = np.cumsum(counts, dtype=np.int32) - counts
        units = np.arange(base[-1], dtype=np.int32)
        slot_of_unit = np.repeat(starts[kinds] - base[:-1], counts[kinds]) + units
        return cls(
            ops=[signature.op for signature in signatures],
            signatures=signatures,
            kinds=kinds,
            of_kind=of_kind,
            types=types,
            base=compact(base),
            slot_of_unit=slot_of_unit,
            dtypes=compact(np.array(types, np.int32)[slot_of_unit]),
            **others,
        )

    @functools.cached_property
    def ports(self) -> tuple[Table, Table]:
        """The slots of the inputs of each kind, and those of its outputs."""
        inputs = Table([kind.inputs for kind in self.of_kind])
        outputs = Table([kind.outputs for kind in self.of_kind])
        return inputs, outputs

    def connected(self, ends: Indices, controls: Indices) -> GraphView:
        """Returns the view with edges between output ports and data inputs, which must exist.

        Args:
            ends: of each data edge the node and port that it comes from, and the node and data
                input that it goes to; four rows, ordered as :class:`Edges` are.
            controls: the control edges.
        """
        base = np.asarray(self.base, np.int32)
        inputs, outputs = self.ports
        src_node, src_port, dst_node, dst_position = ends
        src_unit = base[src_node] + outputs.at(self.kinds[src_node], src_port)
        dst_unit = base[dst_node] + inputs.at(self.kinds[dst_node], dst_position)
        edges = Edges(src_node, src_port, dst_node, dst_position, src_unit, dst_unit)
        return dataclasses.replace(self, edges=edges, controls=controls)

    @property
    def node_count(self) -> int:
        return len(self.names)

    @property
    def unit_count(self) -> int:
        return len(self.dtypes)

    @functools.cached_property
    def number_of(self) -> dict[str, Node]:
        """The number of each node, by its name."""
        return {name: number for number, name in enumerate(self.names)}

    def nodes_with(self, trait: Container[str]) -> list[Node]:
        """Returns the nodes whose ops have a trait (:class:`amp_tf.oplists.table.Trait`)."""
        return indices(self.mask_with(trait))

    def mask_with(self, trait: Container[str]) -> Mask:
        """Tells for each node whether its op has a trait."""
        ops, numbers = self.numbered_ops
        found = [op in trait for op in ops]
        if not any(found):  # the most frequent case
            return np.zeros(len(numbers), np.bool_)
        return np.array(found, np.bool_)[numbers]

    @functools.cached_property
    def numbered_ops(self) -> tuple[dict[str, int], Indices]:
        """A number for each op of the graph, and the number of each node's op."""
        ops: dict[str, int] = {}
        of_kinds = [ops.setdefault(kind.op, len(ops)) for kind in self.of_kind]
        return ops, np.array(of_kinds, np.int32)[self.kinds]

    def of_kinds(self, values: Iterable[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Spreads one value for each kind of node to an array with one for each node."""
        return np.fromiter(values, dtype, len(self.of_kind))[self.kinds]

    def of_slots(self, values: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
        """Spreads one value for each slot of each kind, in order, to an array with one for each
        unit.
        """
        return values[self.slot_of_unit]

    @functools.cached_property
    def constants(self) -> npt.NDArray[Any]:
        """Three figures of the float32 values of each Const node; zeros for all other nodes.

        They are the number of values, the number of those that are finite and not zero, and the
        largest magnitude of a finite one.
        """
        of_kinds = np.zeros((3, len(self.of_kind)), np.float32)
        constants = self.nodes_with((CONST_OP,))
        examples = dict(zip(self.kinds[constants].tolist(), constants, strict=True))
        for kind, node in examples.items():
            of_kinds[:, kind] = _figures_of(self.protos[node])
        return of_kinds[:, self.kinds]

    def marked(self, mark: str) -> list[Node]:
        """Returns the nodes that have one of TensorFlow's marks."""
        has_mark = self.of_kinds((mark in marks for marks in self.marks), np.bool_)
        return indices(has_mark)

    def units(self, node: Node) -> range:
        return range(self.base[node], self.base[node + 1])

    def input_unit(self, node: Node, position: int) -> Unit:
        """Returns the unit of one data input of a node."""
        return self.base[node] + self.signatures[node].inputs[position]

    def output_unit(self, node: Node, port: Port) -> Unit:
        """Returns the unit of one output port of a node."""
        return self.base[node] + self.signatures[node].outputs[port]

    def input_units(self, node: Node) -> list[Unit]:
        """Returns the unit of each data input of a node."""
        first = self.base[node]
        return [first + slot for slot in self.signatures[node].inputs]

    def output_units(self, node: Node) -> list[Unit]:
        """Returns the unit of each output port of a node."""
        first = self.base[node]
        return [first + slot for slot in self.signatures[node].outputs]

    @functools.cached_property
    def unit_nodes(self) -> Sequence[Node]:
        """The node of each unit."""
        return compact(np.repeat(np.arange(self.node_count), np.diff(self.base)))

    def units_of(self, nodes: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
        """Spreads an array with one entry for each node to one with an entry for each unit."""
        return nodes[np.asarray(self.unit_nodes, np.int32)]

    def units_with(self, trait: Container[str]) -> Mask:
        """Returns the units of the nodes whose ops have a trait."""
        return self.units_of(self.mask_with(trait))

    def nodes_of(self, units: Mask) -> Mask:
        """Returns the nodes that have at least one of some units."""
        return mask_of(np.asarray(self.unit_nodes, np.int32)[units], self.node_count)

    def fixed_units(self) -> Mask:
        """Returns the units whose type the op's definition fixes."""
        is_fixed = [slot.is_fixed for slot in self._slots()]
        return self.of_slots(np.array(is_fixed, np.bool_))

    def slot(self, node: Node, unit: Unit) -> Slot:
        return self.signatures[node].slots[unit - self.base[node]]

    def inputs(self, node: Node) -> list[Tensor]:
        """Returns the tensors that a node reads, in the order of its data inputs."""
        starts, tensors = self._inward
        return tensors[starts[node] : starts[node + 1]]

    def readers(self, node: Node, port: Port | None = None) -> list[Reader]:
        """Returns the data inputs that read a node's results, or those of one port."""
        starts, ports, readers = self._outward
        start = starts[node]
        end = starts[node + 1]
        if port is not None:
            start = bisect.bisect_left(ports, port, start, end)
            end = bisect.bisect_right(ports, port, start, end)
        return readers[start:end]

    def only_reader(self, node: Node) -> Node | None:
        """Returns the only reader of a node's results; ``None`` unless they are read once."""
        readers = self.readers(node)
        if len(readers) != 1:
            return None
        return readers[0][0]

    @functools.cached_property
    def links(self) -> tuple[Indices, Indices]:
        """The sources and the readers of all edges, control edges included."""
        first, waiting = self.controls.T
        sources = np.concatenate([self.edges.src_node, first])
        readers = np.concatenate([self.edges.dst_node, waiting])
        return sources, readers

    def awaited(self, node: Node) -> list[Node]:
        """Returns the nodes that a node waits for by control inputs."""
        first, waiting = self.controls.T
        return first[waiting == node].tolist()  # type: ignore[no-any-return]

    @functools.cached_property
    def _inward(self) -> tuple[list[int], list[Tensor]]:
        """The starts of each node's inputs, and the tensors that all inputs read."""
        nodes = np.arange(self.node_count + 1, dtype=np.int32)
        starts = np.searchsorted(self.edges.dst_node, nodes)
        return starts.tolist(), list(self.edges.rows("src_node", "src_port"))

    @functools.cached_property
    def _outward(self) -> tuple[list[int], list[Port], list[Reader]]:
        """The starts of each node's readers, the ports that are read, and the inputs that read."""
        nodes = np.arange(self.node_count + 1, dtype=np.int32)
        edges = self.edges.at(np.lexsort((self.edges.src_port, self.edges.src_node)))
        starts = np.searchsorted(edges.src_node, nodes)
        readers = list(edges.rows("dst_node", "dst_position"))
        return starts.tolist(), edges.src_port.tolist(), readers

    @functools.cached_property
    def given_arguments(self) -> list[Node]:
        """The arguments that callers give.

        They are those before the first tensor or variable that a trace captured.
        """
        arguments = self.nodes_with((ARG_OP,))
        arguments.sort(key=lambda node: value_of(self.protos[node], "index").i)
        given = []
        for node in arguments:
            name = value_of(self.protos[node], USER_NAME).s
            if not name or name.isdigit() or name == CAPTURED:
                break
            given.append(node)
        return given

    def where(self, node: Node) -> str:
        """Returns the place of a node, for a message."""
        return place_of(self.function, self.names[node])

    def retyped(self, units: Sequence[Unit] | Indices, data_type: int) -> Retype:
        """Returns the edit that gives some units a type."""
        nodes = np.asarray(self.unit_nodes, np.int32)[units]
        slots = self.of_slots(np.array(self._slots(), object))
        return Retype(nodes, slots[units], data_type)

    def _slots(self) -> list[Slot]:
        """Returns the slots of all kinds, one kind after the other."""
        slots: list[Slot] = []
        for kind in self.of_kind:
            slots += kind.slots
        return slots

    def after(self, edits: Edits, templates: Templates) -> GraphView:
        """Returns the view of the edited graph, before its bytes exist."""
        nodes = EditedNodes(self.protos, self.names, edits)
        # A node that is new, or gets another op, attributes or types, is a kind of its own.
        remade = np.array(edits.remade(self.node_count), np.int32)
        made = [nodes[number] for number in remade.tolist()]
        signatures = read_signatures(made, templates, self.function)
        after = self.remade(
            remade,
            np.arange(len(made), dtype=np.int32),
            signatures,
            read_types(made, signatures, self.function),
            read_marks(made),
            names=[*self.names, *(node.name for node in edits.new)],
            devices=[*self.devices, *(node.device for node in edits.new)],
            protos=nodes,
        )
        waits: list[tuple[Node, Node]] = []
        for wait in edits.waits:
            waits.append((wait.after, wait.node))
        for number, node in enumerate(edits.new, self.node_count):
            for awaited in node.after:
                waits.append((awaited, number))
        added = np.array(waits, np.int32).reshape(-1, 2)
        controls = np.concatenate([self.controls, added])
        return after.connected(self._ends_after(edits), controls)

    def remade(
        self,
        numbers: Indices,
        kinds: Indices,
        of_kind: Sequence[Signature],
        types: Sequence[int],
        marks: Sequence[Sequence[str]],
        **others: Any,
    ) -> GraphView:
        """Returns the view, without edges, once some nodes are others.

        Args:
            numbers: the nodes that are others, or new.
            kinds: their kinds, numbered anew.
            of_kind: the signature of each of these kinds.
            types: the types of the slots of these kinds, one kind after the other.
            marks: the marks of these kinds.
            others: names, devices and protos of all nodes.
        """
        new_count = len(others["names"]) - self.node_count
        all_kinds = np.concatenate([self.kinds, np.zeros(new_count, np.int32)])
        all_kinds[numbers] = len(self.of_kind) + kinds
        return GraphView.of(
            [*self.of_kind, *of_kind],
            all_kinds,
            [*self.types, *types],
            function=self.function,
            marks=[*self.marks, *marks],
            **others,
        )

    def _ends_after(self, edits: Edits) -> Indices:
        """Returns the ends of the data edges once the edits are made.

        They are four rows, as :meth:`connected` takes them.
        """
        # The inputs of nodes that are new or read something else.
        new_inputs: dict[Node, list[Tensor]] = {}
        for reop in edits.reops:
            if reop.inputs is not None:
                new_inputs[reop.node] = list(reop.inputs)
        for number, node in enumerate(edits.new, self.node_count):
            new_inputs[number] = list(node.inputs)
        for rewire in edits.rewires:
            if rewire.node not in new_inputs:
                new_inputs[rewire.node] = self.inputs(rewire.node)
            new_inputs[rewire.node][rewire.position] = (rewire.src_node, rewire.src_port)
        # An edge for each of them.
        rows = []
        for number, inputs in new_inputs.items():
            for position, (source, port) in enumerate(inputs):
                rows.append((source, port, number, position))
        added = np.array(rows, np.int32).reshape(-1, 4).T
        return self.ends_with_others(list(new_inputs), added)

    def ends_with_others(self, readers: Sequence[Node] | Indices, others: Indices) -> Indices:
        """Returns the ends of the data edges once some nodes read other tensors.

        They are four rows, as :meth:`connected` takes them.

        Args:
            readers: the nodes that read other tensors.
            others: the ends of their edges, in any order.
        """
        edges = self.edges.at(~np.isin(self.edges.dst_node, readers))
        kept = [edges.src_node, edges.src_port, edges.dst_node, edges.dst_position]
        ends: Indices = np.concatenate([kept, others], axis=1)
        return ends[:, np.argsort(ends[2], kind="stable")]

    def detached(self) -> GraphView:
        """Returns the view without its protos and edges, which are most of its memory."""
        base = np.asarray(self.base, np.int32)
        none = np.zeros(0, np.int32)
        return dataclasses.replace(
            self,
            protos=[],
            base=base,
            slot_of_unit=none,
            edges=NO_EDGES,
            controls=_no_controls(),
        )


def _figures_of(constant: Any) -> tuple[int, Any, Any]:
    """Returns what :attr:`GraphView.constants` has for a NodeDef."""
    values = np.abs(floats(constant))
    if not values.size:
        return 0, 0, 0
    finite = values[np.isfinite(values)]
    return values.size, np.count_nonzero(finite), finite.max(initial=0.0)
