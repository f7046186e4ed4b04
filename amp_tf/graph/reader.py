"""Reads a GraphDef or a FunctionDef into a :class:`~amp_tf.graph.view.GraphView`.

What cannot be a graph is refused here, with the node and port: unknown ops, duplicate names, dangling inputs, a wrong
number of inputs, a data input after a control input, edges whose types disagree.

A graph's nodes are read by ``wire.c``, and one node of each kind by Python; a function's body, which is small and names
tensors in its own way, by Python alone.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP, BROKEN, Place, read_signatures, read_types
from amp_tf.graph.datatypes import Indices, Node
from amp_tf.graph.templates import Signature, Templates, fixed_slot
from amp_tf.graph.view import Edges, GraphView, Ports, as_integers
from amp_tf.graph.wire import CONTROL, UNKNOWN, NodeTable, SerializedGraph, WireNodes, pieces

RETVAL_OP = "_Retval"
_MAX_DIGITS = 9  # of a port; larger numbers than any op has ports


def read_graph(graph: Any, templates: Templates) -> GraphView:
    """The view of a graph's nodes (its function library is not read).

    Args:
        graph: a :class:`~amp_tf.graph.wire.SerializedGraph`, or a GraphDef.
        templates: the known ops.

    Raises:
        GraphError: the graph is broken; the message names node and port.
    """
    if not isinstance(graph, SerializedGraph):
        graph = SerializedGraph(graph.SerializeToString())
    return read_nodes(graph.node, templates)


def read_nodes(nodes: NodeTable, templates: Templates, names_before: Sequence[str] = ()) -> GraphView:
    """The view of a graph whose nodes are given, as :func:`read_graph`.

    Args:
        nodes: the nodes.
        templates: the known ops.
        names_before: names with which those of the nodes may begin; where they do, the view shares them.
    """
    found = nodes.layout.read()
    names = _split_names(found, nodes, names_before)
    place = functools.partial(_place, "")
    if found.duplicate >= 0:
        raise _duplicate(names[found.duplicate], place)
    of_kind: list[Signature] = []
    types_of_kind: list[int] = []
    for firsts in pieces(found.firsts):  # each constant is a kind, and constants are large
        protos = nodes.some(firsts)
        signatures = read_signatures(protos, templates, place)
        of_kind += signatures
        types_of_kind += read_types(protos, signatures, place)
    ports = Ports(of_kind, found.kinds)
    devices = [sys.intern(proto.device) for proto in nodes.some(found.device_firsts)]
    return _view(
        function="",
        names=names,
        devices=list(map(devices.__getitem__, found.devices.tolist())),
        protos=nodes,
        ports=ports,
        dtypes=ports.of_nodes(types_of_kind),
        inputs=Inputs(found.input_counts, found.sources, found.ports),
        texts=lambda node: nodes[node].input,
    )


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
    inner = read_signatures(body, templates, place)
    signatures = [*arguments, *inner, *results]
    tensors = FunctionTensors(function, signatures)
    returned = []
    for arg in function.signature.output_arg:
        if arg.name not in function.ret:
            raise GraphError(f"result {arg.name!r} has no tensor", where=f"function {title!r}", fix=BROKEN)
        returned.append([function.ret[arg.name]])
    texts = [*[[]] * len(arguments), *(node.input[:] for node in body), *returned]
    types = ([slot.fixed for signature in ends for slot in signature.slots] for ends in (arguments, results))
    first, last = types
    return _view(
        function=title,
        names=tensors.names,
        devices=[*[""] * len(arguments), *(sys.intern(node.device) for node in body), *[""] * len(results)],
        protos=[*[None] * len(arguments), *body, *[None] * len(results)],
        ports=Ports.of_each(signatures),
        dtypes=array("i", [*first, *read_types(body, inner, place), *last]),
        inputs=find_inputs(texts, tensors.resolve),
        texts=texts.__getitem__,
        argument_attributes=[
            function.arg_attr[number].attr if number in function.arg_attr else {} for number in range(len(arguments))
        ],
    )


def _view(
    *,
    function: str,
    names: list[str],
    devices: list[str],
    protos: Sequence[Any],
    ports: Ports,
    dtypes: array[int],
    inputs: Inputs,
    texts: Callable[[int], Sequence[str]],
    argument_attributes: Sequence[Mapping[str, Any]] = (),
) -> GraphView:
    """Puts a view together.

    Args:
        texts: gives the names of a node's inputs, for a message.
        argument_attributes: of a function's arguments.

    Raises:
        GraphError: an edge is broken.
    """
    if not "".join([function, *names, *devices]).isprintable():  # TensorFlow refuses such names, too
        odd = [name for name, device in zip(names, devices, strict=True) if not f"{name}{device}".isprintable()]
        what = "the name or device of a node or function holds control characters"
        raise GraphError(what, where=_place(function, odd[0] if odd else ""), fix=BROKEN)
    try:
        edges = inputs.edges(ports, names, texts)
    except BrokenInputError as error:
        raise GraphError(error.what, where=_place(function, names[error.node]), fix=BROKEN) from None
    view = GraphView(
        function=function,
        names=names,
        ops=list(map(_get_op, ports.signatures)),
        devices=devices,
        protos=protos,
        signatures=ports.signatures,
        kinds=ports.kinds,
        of_kind=ports.of_kind,
        base=ports.base,
        dtypes=dtypes,
        edges=edges,
        argument_attributes=argument_attributes,
    )
    check_edge_types(view)
    return view


class FunctionTensors:
    """How the nodes of a FunctionDef name tensors: ``argument``, ``node:output argument:number``.

    Args:
        function: the FunctionDef.
        signatures: of its arguments and of the nodes of its body.

    Attributes:
        names: of all nodes.

    Raises:
        GraphError: two nodes, or a node and an argument, have one name.
    """

    def __init__(self, function: Any, signatures: Sequence[Signature]) -> None:
        title = function.signature.name
        arguments = [arg.name for arg in function.signature.input_arg]
        inner = [*arguments, *(node.name for node in function.node_def)]
        self.names = [*inner, *(f"{title}/{arg.name}" for arg in function.signature.output_arg)]
        self._nodes = {name: number for number, name in enumerate(inner)}
        if len(self._nodes) != len(inner):
            duplicate = next(name for number, name in enumerate(inner) if self._nodes[name] != number)
            raise _duplicate(duplicate, functools.partial(_place, title))
        self._argument_count = len(arguments)
        self._signatures = signatures

    def resolve(self, text: str) -> tuple[int, int]:
        """The node and port of an input; the node is ``CONTROL`` for a control input, ``UNKNOWN`` or less for none.

        Reads ``argument``, ``argument:0``, ``node:output argument``, ``node:output argument:number`` and ``^node``.
        """
        if text[:1] == "^":
            return (CONTROL if text[1:] in self._nodes else UNKNOWN - 1), 0
        name, _, rest = text.partition(":")
        argument, _, offset = rest.partition(":")
        node = self._nodes.get(name, UNKNOWN)
        if 0 <= node < self._argument_count:
            return (node if rest in ("", "0") else UNKNOWN), 0
        start = None if node < 0 else self._signatures[node].output_starts.get(argument)
        if start is None or not (offset or "0").isdecimal() or len(offset) > _MAX_DIGITS:
            return UNKNOWN, 0
        return node, start + int(offset or "0")


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


def _split_names(found: WireNodes, nodes: NodeTable, before: Sequence[str]) -> list[str]:
    known = "".join([f"{name}\0" for name in before]).encode()
    is_known = found.names.startswith(known)
    text = found.names[len(known) if is_known else 0 :]
    try:
        new = text.decode().split("\0")[:-1]
    except UnicodeDecodeError as error:
        name = text[text.rfind(b"\0", 0, error.start) + 1 :].partition(b"\0")[0]
        raise GraphError("its name is not UTF-8 text", where=f"node {name!r}", fix=BROKEN) from None
    names = [*before, *new] if is_known else new
    if len(names) != len(found.kinds):
        name = next(node.name for node in nodes if "\0" in node.name)
        raise GraphError("its name has a NUL in it", where=f"node {name!r}", fix=BROKEN)
    return names


def _duplicate(name: str, place: Place) -> GraphError:
    return GraphError("two nodes have this name", where=place(name), fix=BROKEN)


def _place(function: str, node: str) -> str:
    return f"function {function!r}, node {node!r}" if function else f"node {node!r}"


_get_op = attrgetter("op")


class BrokenInputError(Exception):
    """An input that cannot be.

    Attributes:
        node: which node has it.
        what: what is wrong with it.
    """

    def __init__(self, node: Node, what: str) -> None:
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

    counts: Indices
    sources: Indices
    ports: Indices

    def edges(self, ports: Ports, names: Sequence[str], texts: Callable[[int], Sequence[str]]) -> Edges:
        """The data edges.

        Args:
            ports: those of all nodes.
            names: of all nodes, for messages.
            texts: gives the names of a node's inputs, for messages.

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
        return ports.edges(src_node, src_port, dst_node, dst_position)

    def _check_names(self, readers: Indices, starts: Indices, texts: Callable[[int], Sequence[str]]) -> None:
        sources = self.sources
        unknown = np.flatnonzero(sources <= UNKNOWN)
        if len(unknown):
            node = int(readers[unknown[0]])
            position = int(unknown[0] - starts[node])
            text = texts(node)[position]
            if text[:1] == "^":
                raise BrokenInputError(node, f"control input {text!r} names no node of this graph")
            raise BrokenInputError(node, f"input {position} is {text!r}, which is not a tensor of this graph")
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


def _check_ports(src_node: Indices, src_port: Indices, dst_node: Indices, ports: Ports, names: Sequence[str]) -> None:
    existing = ports.output_counts(src_node)
    wrong = np.flatnonzero(src_port >= existing)
    if len(wrong):
        edge = wrong[0]
        what = f"reads port {src_port[edge]} of {names[src_node[edge]]!r}, which has {existing[edge]} output(s)"
        raise BrokenInputError(int(dst_node[edge]), what)


def _check_arity(counts: npt.NDArray[np.intp], ports: Ports) -> None:
    wrong = np.flatnonzero(counts != ports.input_counts())
    if len(wrong):
        node = int(wrong[0])
        signature = ports.signatures[node]
        expected = f"{signature.op} expects {len(signature.inputs)} data input(s)"
        raise BrokenInputError(node, f"{expected} and has {counts[node]}")
