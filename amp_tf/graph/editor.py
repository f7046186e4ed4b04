"""Applies edits to a graph or a FunctionDef; the only code that writes to a proto.

A graph is copied once, and edited in the copy. :class:`EditedNodes` shows single nodes as they will
be, before that.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from amp_tf.graph.datatypes import Node, Port
from amp_tf.graph.edits import Edits, Reop, Rewire, SlotType, Wait
from amp_tf.graph.protos import new_graph
from amp_tf.graph.templates import Signature

if TYPE_CHECKING:
    from amp_tf.graph.view import GraphView


def apply_to_graph(graph: Any, names: Sequence[str], edits: Edits) -> Any:
    """Returns a new GraphDef with the edits made, and the graph's library and versions."""
    edited = copy.deepcopy(graph)
    changes = _Changes(edits, names)
    for number in changes.old_nodes():
        changes.make(number, edited.node[number])
    for number in changes.new_nodes():
        changes.add(number, edited.node)
    return edited


def apply_to_function(
    function: Any, view: GraphView, edits: Edits, signatures: Sequence[Signature]
) -> Any:
    """Returns the FunctionDef once the edits are made; its own signature does not change.

    Args:
        function: the FunctionDef, which is not modified.
        view: the view that was read of it.
        edits: what changes.
        signatures: the signatures once the edits are made. New nodes behind the last of them are
            casts.
    """
    edited = copy.deepcopy(function)
    results = edited.signature.output_arg
    first_result = len(edited.signature.input_arg)
    first_node = first_result + len(results)
    # Readers of a node whose outputs get other names are rewired to the same tensors.
    renaming = []
    with_new_inputs = {reop.node for reop in edits.reops if reop.inputs is not None}
    for node, before in enumerate(view.signatures):
        if before.output_starts == signatures[node].output_starts:
            continue
        for reader, position in view.readers(node):
            if reader not in with_new_inputs:
                renaming.append(Rewire(reader, position, *view.inputs(reader)[position]))
    edits = dataclasses.replace(edits, rewires=(*renaming, *edits.rewires))
    changes = _Changes(edits, view.names, signatures)
    for number in changes.old_nodes():
        if number >= first_node:
            changes.make(number, edited.node_def[number - first_node])
            continue
        for edit in changes.of(number):
            if isinstance(edit, Rewire):
                result = results[number - first_result].name
                edited.ret[result] = changes.text(edit.src_node, edit.src_port)
    for number in changes.new_nodes():
        changes.add(number, edited.node_def)
    return edited


class EditedNodes(Sequence[Any]):
    """The nodes of a graph or function after some edits, to read only.

    Each access makes an edited node anew. Nodes of a function name tensors as a graph's nodes do.
    """

    def __init__(self, original: Sequence[Any], names: Sequence[str], edits: Edits) -> None:
        self.original = original
        self._changes = _Changes(edits, names)

    def __len__(self) -> int:
        return self._changes.new_nodes().stop

    def __getitem__(self, key: Any) -> Any:
        is_new = key >= len(self.original)
        if not is_new and not self._changes.of(key):
            return self.original[key]
        protos = new_graph().node
        if is_new:
            self._changes.add(key, protos)
        else:
            protos.append(self.original[key])  # a copy
            self._changes.make(key, protos[0])
        return protos[0]


_CAST_OUTPUTS = {"y": 0}

_Edit: TypeAlias = Reop | SlotType | Rewire | Wait


class _Changes:
    """The edits of a graph, grouped by the node that they change.

    A function needs the signatures after the edits, because its nodes name tensors by output
    argument.
    """

    def __init__(
        self, edits: Edits, names: Sequence[str], signatures: Sequence[Signature] | None = None
    ) -> None:
        self._names = [*names, *(node.name for node in edits.new)]
        self._first_new = len(names)
        self._new = edits.new
        self._signatures = signatures
        types: list[SlotType] = []
        for retype in edits.retypes:
            types += retype.each()
        ordered: list[_Edit] = [*edits.reops, *types, *edits.rewires, *edits.waits]
        self._edits: dict[Node, list[_Edit]] = {}
        for edit in ordered:
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
        # The last output that begins there: an output without ports begins where the next one does.
        output = [output for output, start in starts.items() if start <= port][-1]
        return f"{name}:{output}:{port - starts[output]}"

    def old_nodes(self) -> list[Node]:
        """Returns the old nodes that change, in order."""
        return sorted(node for node in self._edits if node < self._first_new)

    def new_nodes(self) -> range:
        """Returns the nodes that are new."""
        return range(self._first_new, len(self._names))

    def of(self, number: Node) -> Sequence[_Edit]:
        """Returns the edits of a node, in the order in which they are made."""
        return self._edits.get(number, ())

    def make(self, number: Node, proto: Any) -> None:
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
        if edit.inputs is None:
            return
        texts = list(itertools.starmap(self.text, edit.inputs))
        for text in proto.input:
            if text.startswith("^"):
                texts.append(text)
        proto.input[:] = texts

    def add(self, number: Node, protos: Any) -> None:
        """Adds a new node to a container of NodeDefs, and makes its edits."""
        node = self._new[number - self._first_new]
        inputs = itertools.starmap(self.text, node.inputs)
        proto = protos.add(name=node.name, op=node.op, device=node.device, input=inputs)
        for source in node.after:
            proto.input.append(f"^{self._names[source]}")
        proto.MergeFrom(node.attributes)
        self.make(number, proto)
