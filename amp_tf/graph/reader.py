"""Reads a GraphDef or a FunctionDef into a :class:`~amp_tf.graph.view.GraphView`.

What cannot be a graph is refused here, with the node and port: unknown ops, duplicate names, dangling inputs, a wrong
number of inputs, a data input after a control input, edges whose types disagree.

Python makes an object for each proto that it looks at. Protos are looked at in pieces, so that few of these objects
live at a time: together they would take more memory than the serialized graph.
"""

from __future__ import annotations

import functools
import itertools
import sys
from array import array
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes
from amp_tf.graph.attributes import BROKEN, Place, SignatureReader, read_types
from amp_tf.graph.serialized import pieces
from amp_tf.graph.templates import Signature, Templates, fixed_slot
from amp_tf.graph.view import GraphView
from amp_tf.graph.wiring import Ports, TensorNames, Wires

ARG_OP = "_Arg"
RETVAL_OP = "_Retval"
_MAX_DIGITS = 9  # of a port; larger numbers than any op has ports


def read_graph(graph: Any, templates: Templates) -> GraphView:
    """The view of a graph's nodes (its function library is not read).

    Args:
        graph: a GraphDef, or a :class:`~amp_tf.graph.serialized.SerializedGraph`.
        templates: the known ops.

    Raises:
        GraphError: the graph is broken; the message names node and port.
    """
    return read_nodes(graph.node, templates)


def read_nodes(protos: Sequence[Any], templates: Templates) -> GraphView:
    """The view of a graph whose nodes are given, as :func:`read_graph`."""
    tensors = GraphTensors([node.name for node in protos])
    nodes = NodeReader(tensors, templates)
    nodes.read(protos)
    return nodes.view("", protos)


def read_function(function: Any, templates: Templates) -> GraphView:
    """The view of a FunctionDef's body, with its arguments as first and its results as last nodes.

    Raises:
        GraphError: the function is broken, or its types are parameters of the call.
    """
    title = function.signature.name
    place = functools.partial(_place, title)
    arguments = [_boundary(arg, ARG_OP, title) for arg in function.signature.input_arg]
    results = [_boundary(arg, RETVAL_OP, title) for arg in function.signature.output_arg]
    body = list(function.node_def)
    tensors = FunctionTensors(function, [*arguments, *SignatureReader(templates, place).read(body)])
    returned = []
    for arg in function.signature.output_arg:
        if arg.name not in function.ret:
            raise GraphError(f"result {arg.name!r} has no tensor", where=f"function {title!r}", fix=BROKEN)
        returned.append([function.ret[arg.name]])
    nodes = NodeReader(tensors, templates)
    nodes.add_boundary(arguments, [[]] * len(arguments))
    nodes.read(body)
    nodes.add_boundary(results, returned)
    return nodes.view(title, [*[None] * len(arguments), *body, *[None] * len(results)])


class GraphTensors(TensorNames):
    """How the nodes of a GraphDef name tensors: ``node``, ``node:port``.

    Args:
        names: of all nodes.

    Raises:
        GraphError: two nodes have one name.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.place = functools.partial(_place, "")
        self.nodes = self.plain = _number(names, self.place)

    def resolve(self, text: str) -> tuple[int, int] | None:
        """Reads ``node:port``."""
        name, _, port = text.rpartition(":")
        node = self.nodes.get(name)
        return None if node is None or not _is_port(port) else (node, int(port))


class FunctionTensors(TensorNames):
    """How the nodes of a FunctionDef name tensors: ``argument``, ``node:output argument:number``.

    Args:
        function: the FunctionDef.
        signatures: of its arguments and of the nodes of its body.

    Raises:
        GraphError: two nodes, or a node and an argument, have one name.
    """

    def __init__(self, function: Any, signatures: Sequence[Signature]) -> None:
        title = function.signature.name
        self.place = functools.partial(_place, title)
        arguments = [arg.name for arg in function.signature.input_arg]
        inner = [*arguments, *(node.name for node in function.node_def)]
        self.names = [*inner, *(f"{title}/{arg.name}" for arg in function.signature.output_arg)]
        self.nodes = _number(inner, self.place)
        self.plain = {name: number for number, name in enumerate(arguments)}
        self.signatures = signatures

    def resolve(self, text: str) -> tuple[int, int] | None:
        """Reads ``argument:0``, ``node:output argument`` and ``node:output argument:number``."""
        name, _, rest = text.partition(":")
        argument, _, offset = rest.partition(":")
        node = self.nodes.get(name)
        if node is None:
            return None
        if node < len(self.plain):
            return (node, 0) if rest == "0" else None
        start = self.signatures[node].output_starts.get(argument)
        return None if start is None or not _is_port(offset or "0") else (node, start + int(offset or "0"))


class NodeReader:
    """Reads nodes one after the other, then makes the view.

    Args:
        tensors: how the nodes name tensors.
        templates: the known ops.
        numbers: of the nodes that will be read, where not all are.

    Attributes:
        signatures, devices: of the nodes that have been read.
        dtypes: the ``DataType`` number of each of their slots.
        wires: their inputs.
    """

    def __init__(self, tensors: TensorNames, templates: Templates, numbers: Iterable[int] | None = None) -> None:
        self._tensors = tensors
        self._numbers = itertools.count() if numbers is None else iter(numbers)
        self._read_signatures = SignatureReader(templates, tensors.place).read
        self.signatures: list[Signature] = []
        self.devices: list[str] = []
        self.dtypes = array("i")
        self.wires = Wires(tensors)

    def read(self, protos: Sequence[Any]) -> None:
        """Reads the NodeDefs.

        Raises:
            GraphError: a node is broken.
        """
        for piece in pieces(protos):
            signatures = self._read_signatures(piece)
            self.dtypes.extend(read_types(piece, signatures, self._tensors.place))
            self.devices += map(sys.intern, map(_get_device, piece))
            self._add(signatures, [node.input[:] for node in piece])

    def add_boundary(self, signatures: Sequence[Signature], inputs: Sequence[Sequence[str]]) -> None:
        """Adds a function's arguments or results, which have no NodeDef."""
        self.dtypes.extend(slot.fixed for signature in signatures for slot in signature.slots)
        self.devices += [""] * len(signatures)
        self._add(signatures, inputs)

    def _add(self, signatures: Sequence[Signature], inputs: Sequence[Sequence[str]]) -> None:
        self.wires.add(list(itertools.islice(self._numbers, len(signatures))), inputs)
        self.signatures += signatures

    def view(self, function: str, protos: Sequence[Any]) -> GraphView:
        """The view of what was read, which is all nodes.

        Raises:
            GraphError: an edge is broken.
        """
        ports = Ports(self.signatures)
        view = GraphView(
            function=function,
            names=self._tensors.names,
            ops=list(map(_get_op, self.signatures)),
            devices=self.devices,
            protos=protos,
            signatures=self.signatures,
            base=ports.base,
            dtypes=self.dtypes,
            edges=self.wires.edges(ports),
        )
        check_edge_types(view)
        return view


def check_edge_types(view: GraphView) -> None:
    """Compares the types at the two ends of each edge.

    Raises:
        GraphError: they differ.
    """
    edges = view.edges
    dtypes = np.asarray(view.dtypes, np.int32)
    wrong = np.flatnonzero(dtypes[edges.src_unit] != dtypes[edges.dst_unit])
    if not len(wrong):
        return
    edge = wrong[0]
    found, wanted = (datatypes.type_name(view.dtypes[units[edge]]) for units in (edges.src_unit, edges.dst_unit))
    raise GraphError(
        f"input {edges.dst_position[edge]} expects {wanted} and gets {found} from {view.names[edges.src_node[edge]]!r}",
        where=view.where(edges.dst_node[edge]),
        fix=BROKEN,
    )


def _boundary(arg: Any, op: str, function: str) -> Signature:
    """The signature of a function argument (one output) or result (one input); its type is the function's."""
    if arg.type_attr or arg.type_list_attr or arg.number_attr:
        raise GraphError(
            f"argument {arg.name!r} has a type that each call chooses",
            where=f"function {function!r}",
            fix="Instantiate the function for one set of types first",
        )
    is_argument = op == ARG_OP
    try:
        slot = fixed_slot(function, arg.type)
    except GraphError as error:
        raise GraphError(error.what, where=f"function {function!r}", fix=error.fix) from None
    port = (0,)
    return Signature(
        op, (slot,), () if is_argument else port, port if is_argument else (), {}, False, arg.is_ref, False
    )


def _number(names: Sequence[str], place: Place) -> dict[str, int]:
    """The number of each name.

    Raises:
        GraphError: two are equal.
    """
    numbers = {name: number for number, name in enumerate(names)}
    if len(numbers) != len(names):
        twice = next(name for number, name in enumerate(names) if numbers[name] != number)
        raise GraphError("two nodes have this name", where=place(twice), fix=BROKEN)
    return numbers


def _place(function: str, node: str) -> str:
    return f"function {function!r}, node {node!r}" if function else f"node {node!r}"


def _is_port(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS


_get_device = attrgetter("device")
_get_op = attrgetter("op")
