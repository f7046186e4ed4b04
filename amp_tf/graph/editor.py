"""Applies edits to a graph or a FunctionDef; the only code that writes to a proto.

A graph is copied once, and edited in the copy. :class:`EditedNodes` shows single nodes as they will
be, before that.
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
    """Returns a new GraphDef with the edits made; its library and versions are the graph's."""
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
    function: Any,
    names: Sequence[str],
    signatures: Sequence[Signature],
    edits: Edits,
    signatures_after: Sequence[Signature],
) -> Any:
    """Returns the FunctionDef once the edits are made; its own signature does not change.

    Args:
        function: the FunctionDef, which is not modified.
        names: the names of its nodes, in the order of :func:`~amp_tf.graph.reader.read_function`.
        signatures: the signatures of these nodes.
        edits: what changes.
        signatures_after: the signatures once the edits are made. New nodes behind the last of them
            are casts.
    """
    edited = type(function)()
    edited.CopyFrom(function)
    results = edited.signature.output_arg
    first_result = len(edited.signature.input_arg)
    first_node = first_result + len(results)
    changes = _Changes(edits, names, signatures_after)
    _rename_outputs(edited, changes, signatures)
    for number in changes.nodes():
        if number >= len(names):
            continue  # it is new, and added with its edits
        if number >= first_node:
            changes.make(number, edited.node_def[number - first_node])
            continue
        *_, last = (edit for edit in changes.of(number) if isinstance(edit, Rewire))
        result = results[number - first_result].name
        edited.ret[result] = changes.text(last.src_node, last.src_port)
    for number in range(len(names), len(names) + len(edits.new)):
        changes.add(edited.node_def, number)
    return edited


def _rename_outputs(function: Any, changes: _Changes, signatures: Sequence[Signature]) -> None:
    """Rewrites the inputs and results of a FunctionDef that read a node whose outputs get other
    names, because it gets another op.
    """
    renamed = changes.with_other_outputs(signatures)
    if not renamed:
        return

    def after(text: str) -> str:
        name, _, rest = text.partition(":")
        if name not in renamed:
            return text
        node = renamed[name]
        output, _, offset = rest.partition(":")
        return changes.text(node, signatures[node].output_starts[output] + int(offset or "0"))

    for node in function.node_def:
        node.input[:] = map(after, node.input)
    for result, text in function.ret.items():
        function.ret[result] = after(text)


class EditedNodes(Sequence[Any]):
    """The nodes of a graph or function as edits leave them, to be looked at only.

    Each access makes an edited node again. Nodes of a function name tensors as those of a graph do.
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
        if key < len(self.original):
            original = self.original[key]
            if original is None or not self._changes.of(key):
                return original
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


_CAST_OUTPUTS = {"y": 0}

_Edit: TypeAlias = Reop | _OneType | Rewire | Wait


class _Changes:
    """Edits, by the node that they change.

    Signatures, once the edits are made, are given for a function: its nodes name tensors by output
    arguments.
    """

    def __init__(
        self, edits: Edits, names: Sequence[str], signatures: Sequence[Signature] | None = None
    ) -> None:
        self._names = [*names, *(node.name for node in edits.new)]
        self._first_new = len(names)
        self._new = edits.new
        self._signatures = signatures
        types = (
            _OneType(*one, retype.data_type) for retype in edits.retypes for one in retype.each()
        )
        kinds: tuple[Iterable[_Edit], ...] = (edits.reops, types, edits.rewires, edits.waits)
        self._edits: dict[Node, list[_Edit]] = {}
        for edit in itertools.chain.from_iterable(kinds):
            self._edits.setdefault(edit.node, []).append(edit)

    def text(self, node: Node, port: Port) -> str:
        """Returns the text by which other nodes name an output."""
        name = self._names[node]
        if self._signatures is None:
            return f"{name}:{port}" if port else name
        is_cast = node >= len(self._signatures)
        starts = _CAST_OUTPUTS if is_cast else self._signatures[node].output_starts
        if not starts:
            return name  # an argument
        # The last output that begins so early: those without ports begin where the next one does.
        output = [output for output, start in starts.items() if start <= port][-1]
        return f"{name}:{output}:{port - starts[output]}"

    def with_other_outputs(self, signatures: Sequence[Signature]) -> dict[str, Node]:
        """Returns the nodes, by name, whose outputs had other names by these signatures."""
        assert self._signatures is not None
        return {
            self._names[node]: node
            for node in self._edits
            if node < self._first_new
            and signatures[node].output_starts != self._signatures[node].output_starts
        }

    def nodes(self) -> list[int]:
        """Returns the nodes that change, in order."""
        return sorted(self._edits)

    def of(self, number: int) -> Sequence[_Edit]:
        """Returns the edits of a node, in the order in which they are made."""
        return self._edits.get(number, ())

    def make(self, number: int, proto: Any) -> None:
        """Makes the edits of a node in its NodeDef."""
        for edit in self.of(number):
            if isinstance(edit, Rewire):
                proto.input[edit.position] = self.text(edit.src_node, edit.src_port)
            elif isinstance(edit, Wait):
                proto.input.append(f"^{self._names[edit.after]}")
            elif isinstance(edit, Reop):
                self._reop(edit, proto)
            elif edit.place < 0:
                proto.attr[edit.attribute].type = edit.data_type
            else:
                proto.attr[edit.attribute].list.type[edit.place] = edit.data_type

    def _reop(self, edit: Reop, proto: Any) -> None:
        proto.op = edit.op
        for name, value in edit.attributes.items():
            if value is not None:
                proto.attr[name].CopyFrom(value)
            elif name in proto.attr:
                del proto.attr[name]
        if edit.inputs is not None:
            controls = [text for text in proto.input if text.startswith("^")]
            proto.input[:] = [*(self.text(*source) for source in edit.inputs), *controls]

    def add(self, protos: Any, number: int) -> None:
        """Adds a new node to a container of NodeDefs, and makes its edits."""
        node = self._new[number - self._first_new]
        inputs = [self.text(*source) for source in node.inputs]
        inputs += [f"^{self._names[source]}" for source in node.after]
        proto = protos.add(name=node.name, op=node.op, device=node.device, input=inputs)
        proto.MergeFrom(node.attributes)
        self.make(number, proto)
