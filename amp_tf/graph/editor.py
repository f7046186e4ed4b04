"""Applies edits to a graph or a FunctionDef; the only code that writes to a proto.

The bytes of a graph are written once: types change in their places, nodes with other edits are parsed, edited and
written some at a time, and the bytes of all others are copied. :class:`EditedNodes` shows what single nodes become,
before anything is written.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from array import array
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from amp_tf.graph.datatypes import Node, Port
from amp_tf.graph.edits import Edits, NewNode, Reop, Rewire, Wait
from amp_tf.graph.templates import Signature
from amp_tf.graph.wire import Nodes, NodeTable, new_graph, parse_graph, pieces, read_table


def apply_to_graph(nodes: NodeTable, names: Sequence[str], edits: Edits, rest: bytes = b"") -> bytes:
    """The serialized graph once the edits are made.

    Args:
        nodes: the nodes of a graph.
        names: of these nodes.
        edits: what changes.
        rest: what comes after the nodes: library, versions.
    """
    count = len(nodes)
    nodes, edits = _retype_in_place(nodes, edits)
    changes = _Changes(edits, _Tensors(names, edits.new))
    parts: list[bytes | memoryview] = []
    start = 0
    for numbers in pieces([number for number in changes.nodes() if number < count]):
        graph = parse_graph(b"".join([nodes.fields(number, number + 1) for number in numbers]))
        for number, proto in zip(numbers, graph.node, strict=True):
            changes.make(number, proto)
        for number, field in zip(numbers, read_table(graph.SerializeToString()).split(), strict=True):
            parts += nodes.span(start, number), field
            start = number + 1
    added = new_graph()
    for number in range(count, count + len(edits.new)):
        changes.add(added.node, number)
    return b"".join([*parts, nodes.span(start, count), added.SerializeToString(), rest])


def apply_to_function(function: Any, names: Sequence[str], signatures: Sequence[Signature], edits: Edits) -> Any:
    """The FunctionDef once the edits are made; its signature does not change.

    Args:
        function: a FunctionDef; it is not changed.
        names, signatures: of its arguments, of the nodes of its body and of its results, in this order.
        edits: what changes. New nodes are casts.
    """
    edited = type(function)()
    edited.CopyFrom(function)
    arguments, results = edited.signature.input_arg, edited.signature.output_arg
    first_result = len(arguments) + len(edited.node_def)
    changes = _Changes(edits, _FunctionTensors(names, signatures, edits.new))
    protos = [None] * len(arguments) + list(edited.node_def)
    for number in changes.nodes():
        if number < first_result:
            changes.make(number, protos[number])
        elif number < len(names):
            edited.ret[results[number - first_result].name] = changes.only_input(number)
    for number in range(len(names), len(names) + len(edits.new)):
        changes.add(edited.node_def, number)
    return edited


class EditedNodes(Nodes):
    """The nodes of a graph as edits leave them, to be looked at only. Each access makes an edited node again.

    Args:
        original: the nodes before.
        names: of these nodes.
        edits: what changes.
    """

    def __init__(self, original: Nodes, names: Sequence[str], edits: Edits) -> None:
        self.original = original
        self._added = len(edits.new)
        self._changes = _Changes(edits, _Tensors(names, edits.new))

    def __len__(self) -> int:
        return len(self.original) + self._added

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self[number] for number in range(*key.indices(len(self)))]
        if not 0 <= key < len(self):
            raise IndexError(key)
        if key < len(self.original) and not self._changes.of(key):
            return self.original[key]
        return self._edited(key)

    def mentioning(self, text: str) -> list[int]:
        """The numbers of nodes in whose bytes a text may stand: those where it stood, and all that changed."""
        new = range(len(self.original), len(self))
        return sorted({*self.original.mentioning(text), *self._changes.nodes(), *new})

    def _edited(self, number: int) -> Any:
        protos = new_graph().node
        if number >= len(self.original):
            self._changes.add(protos, number)
        else:
            protos.append(self.original[number])  # a copy
            self._changes.make(number, protos[0])
        return protos[0]


class _OneType(NamedTuple):
    node: Node
    attribute: str
    place: int  #: in the attribute's list, -1 for a single type
    data_type: int


_Edit: TypeAlias = Reop | _OneType | Rewire | Wait


class _Tensors:
    """How the nodes of a graph name each other and their outputs.

    Args:
        names: of the nodes before.
        new: the new nodes, which follow.

    Attributes:
        names: of all nodes.
        first_new, new: the number of the first new node, and they.
    """

    def __init__(self, names: Sequence[str], new: Sequence[NewNode]) -> None:
        self.names = [*names, *(node.name for node in new)]
        self.first_new = len(names)
        self.new = new

    def text(self, node: Node, port: Port) -> str:
        return f"{self.names[node]}:{port}" if port else self.names[node]


class _FunctionTensors(_Tensors):
    """The edited FunctionDef, whose new nodes are casts: by the output's name, arguments by their own alone."""

    def __init__(self, names: Sequence[str], signatures: Sequence[Signature], new: Sequence[NewNode]) -> None:
        super().__init__(names, new)
        self._signatures = signatures

    def text(self, node: Node, port: Port) -> str:
        if node >= self.first_new:
            return f"{self.names[node]}:y:0"
        starts = self._signatures[node].output_starts
        if not starts:
            return self.names[node]  # an argument
        # Outputs without ports begin where the next one does.
        output, start = [(each, first) for each, first in starts.items() if first <= port][-1]
        return f"{self.names[node]}:{output}:{port - start}"


class _Changes:
    """Edits, by the node that they change.

    Args:
        edits: the edits.
        tensors: how nodes name tensors.
    """

    def __init__(self, edits: Edits, tensors: _Tensors) -> None:
        self._tensors = tensors
        types = (_OneType(*one, retype.data_type) for retype in edits.retypes for one in retype.each())
        kinds: tuple[Iterable[_Edit], ...] = (edits.reops, types, edits.rewires, edits.waits)
        self._edits = sorted(itertools.chain.from_iterable(kinds), key=_get_node)  # a node's stay in their order
        self._nodes = array("i", map(_get_node, self._edits))

    def nodes(self) -> list[int]:
        return np.unique(self._nodes).tolist()  # type: ignore[no-any-return]

    def of(self, number: int) -> Sequence[_Edit]:
        return self._edits[bisect.bisect_left(self._nodes, number) : bisect.bisect_right(self._nodes, number)]

    def make(self, number: int, proto: Any) -> None:
        tensors = self._tensors
        for edit in self.of(number):
            if isinstance(edit, Rewire):
                proto.input[edit.position] = tensors.text(edit.src_node, edit.src_port)
            elif isinstance(edit, Wait):
                proto.input.append(f"^{tensors.names[edit.after]}")
            elif isinstance(edit, Reop):
                proto.op = edit.op
                for name, value in edit.attributes.items():
                    if value is not None:
                        proto.attr[name].CopyFrom(value)
                    elif name in proto.attr:
                        del proto.attr[name]
                if edit.inputs is not None:
                    controls = [text for text in proto.input if text.startswith("^")]
                    proto.input[:] = [*(tensors.text(*source) for source in edit.inputs), *controls]
            elif edit.place < 0:
                proto.attr[edit.attribute].type = edit.data_type
            else:
                proto.attr[edit.attribute].list.type[edit.place] = edit.data_type

    def add(self, protos: Any, number: int) -> None:
        tensors = self._tensors
        node = tensors.new[number - tensors.first_new]
        inputs = [tensors.text(*source) for source in node.inputs]
        if node.after:
            inputs += [f"^{tensors.names[source]}" for source in node.after]
        proto = protos.add(name=node.name, op=node.op, device=node.device, input=inputs)
        proto.MergeFrom(node.attributes)
        if self._nodes and number <= self._nodes[-1]:  # few new nodes are edited, and there may be thousands
            self.make(number, proto)

    def only_input(self, number: int) -> str:
        """What a node with a single input, which changes, reads then."""
        *_, last = (edit for edit in self.of(number) if isinstance(edit, Rewire))
        return self._tensors.text(last.src_node, last.src_port)


def _retype_in_place(nodes: NodeTable, edits: Edits) -> tuple[NodeTable, Edits]:
    """Makes the changes of types that are the change of one byte, which are nearly all.

    Returns:
        The nodes with other types, and the edits that are left.
    """
    reoped = [reop.node for reop in edits.reops]  # their types change after their attributes
    left = []
    for retype in edits.retypes:
        places = retype.places.nodes
        is_done = (places < len(nodes)) & ~np.isin(places, reoped)
        layout, is_done[is_done] = nodes.layout.with_types(retype.where(is_done).places, retype.data_type)
        nodes = NodeTable(layout)
        left.append(retype.where(~is_done))
    return nodes, dataclasses.replace(edits, retypes=tuple(left))


_get_node = attrgetter("node")
