"""Applies edits to a graph or a FunctionDef; the only code that writes to a proto.

A graph is copied once, and edited in the copy. :class:`EditedNodes` shows what single nodes become,
before that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from amp_tf.graph.datatypes import Node, Port
from amp_tf.graph.edits import Edits, Reop, Rewire, Wait
from amp_tf.graph.protos import new_graph
from amp_tf.graph.templates import Signature


def apply_to_graph(graph: Any, names: Sequence[str], edits: Edits) -> Any:
    """Returns the graph once the edits are made, with its library and versions, as a new GraphDef."""
    edited = type(graph)()
    edited.CopyFrom(graph)
    changes = _Changes(edits, names)
    for number in changes.nodes():
        if number < len(names):
            changes.make(number, edited.node[number])
    for number in range(len(names), len(names) + len(edits.new)):
        changes.add(edited.node, number)
    return edited


def apply_to_function(
    function: Any, names: Sequence[str], signatures: Sequence[Signature], edits: Edits
) -> Any:
    """The FunctionDef once the edits are made; its signature does not change.

    Names and signatures are those of its arguments, of the nodes of its body and of its results.
    New nodes are casts.
    """
    edited = type(function)()
    edited.CopyFrom(function)
    arguments, results = edited.signature.input_arg, edited.signature.output_arg
    first_result = len(arguments) + len(edited.node_def)
    changes = _Changes(edits, names, signatures)
    protos = [None] * len(arguments) + list(edited.node_def)
    for number in changes.nodes():
        if number < first_result:
            changes.make(number, protos[number])
        elif number < len(names):
            *_, last = (edit for edit in changes.of(number) if isinstance(edit, Rewire))
            edited.ret[results[number - first_result].name] = changes.text(
                last.src_node, last.src_port
            )
    for number in range(len(names), len(names) + len(edits.new)):
        changes.add(edited.node_def, number)
    return edited


class EditedNodes(Sequence[Any]):
    """The nodes of a graph as edits leave them, to be looked at only.

    Each access makes an edited node again.
    """

    def __init__(self, original: Sequence[Any], names: Sequence[str], edits: Edits) -> None:
        self.original = original
        self._added = len(edits.new)
        self._changes = _Changes(edits, names)

    def __len__(self) -> int:
        return len(self.original) + self._added

    def __getitem__(self, key: Any) -> Any:
        if not 0 <= key < len(self):
            raise IndexError(key)
        if key < len(self.original) and not self._changes.of(key):
            return self.original[key]
        protos = new_graph().node
        if key < len(self.original):
            protos.append(self.original[key])  # a copy
            self._changes.make(key, protos[0])
        else:
            self._changes.add(protos, key)
        return protos[0]


class _OneType(NamedTuple):
    node: Node
    attribute: str
    place: int  #: in the attribute's list, -1 for a single type
    data_type: int


_Edit: TypeAlias = Reop | _OneType | Rewire | Wait


class _Changes:
    """Edits, by the node that they change.

    Signatures are given of a function, whose nodes name tensors by argument.
    """

    def __init__(
        self, edits: Edits, names: Sequence[str], signatures: Sequence[Signature] | None = None
    ) -> None:
        self._names = [*names, *(node.name for node in edits.new)]
        self._first_new, self._new, self._signatures = len(names), edits.new, signatures
        types = (
            _OneType(*one, retype.data_type) for retype in edits.retypes for one in retype.each()
        )
        kinds: tuple[Iterable[_Edit], ...] = (edits.reops, types, edits.rewires, edits.waits)
        self._edits: dict[Node, list[_Edit]] = {}
        for edit in itertools.chain.from_iterable(kinds):
            self._edits.setdefault(edit.node, []).append(edit)

    def text(self, node: Node, port: Port) -> str:
        """How other nodes name an output."""
        name = self._names[node]
        if self._signatures is None:
            return f"{name}:{port}" if port else name
        starts = {"y": 0} if node >= self._first_new else self._signatures[node].output_starts
        if not starts:
            return name  # an argument
        # Outputs without ports begin where the next one does.
        output, start = [(each, first) for each, first in starts.items() if first <= port][-1]
        return f"{name}:{output}:{port - start}"

    def nodes(self) -> list[int]:
        return sorted(self._edits)

    def of(self, number: int) -> Sequence[_Edit]:
        return self._edits.get(number, ())

    def make(self, number: int, proto: Any) -> None:
        for edit in self.of(number):
            if isinstance(edit, Rewire):
                proto.input[edit.position] = self.text(edit.src_node, edit.src_port)
            elif isinstance(edit, Wait):
                proto.input.append(f"^{self._names[edit.after]}")
            elif isinstance(edit, Reop):
                proto.op = edit.op
                for name, value in edit.attributes.items():
                    if value is not None:
                        proto.attr[name].CopyFrom(value)
                    elif name in proto.attr:
                        del proto.attr[name]
                if edit.inputs is not None:
                    controls = [text for text in proto.input if text.startswith("^")]
                    proto.input[:] = [*(self.text(*source) for source in edit.inputs), *controls]
            elif edit.place < 0:
                proto.attr[edit.attribute].type = edit.data_type
            else:
                proto.attr[edit.attribute].list.type[edit.place] = edit.data_type

    def add(self, protos: Any, number: int) -> None:
        node = self._new[number - self._first_new]
        inputs = [self.text(*source) for source in node.inputs]
        inputs += [f"^{self._names[source]}" for source in node.after]
        proto = protos.add(name=node.name, op=node.op, device=node.device, input=inputs)
        proto.MergeFrom(node.attributes)
        self.make(number, proto)
