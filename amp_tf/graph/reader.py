"""Reads a GraphDef or a FunctionDef into a :class:`~amp_tf.graph.view.GraphView`.

What cannot be a graph is refused here, with the node and port: unknown ops, duplicate names, dangling inputs, a wrong
number of inputs, a data input after a control input, edges whose types disagree.

A graph's nodes are read by ``wire.c``, and one node of each kind by Python; a function's body, which is small and names
tensors in its own way, by Python alone.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP, BROKEN, place_of, read_signatures, read_types
from amp_tf.graph.datatypes import Indices
from amp_tf.graph.templates import Signature, Templates, fixed_slot
from amp_tf.graph.view import GraphView
from amp_tf.graph.wire import CONTROL, UNKNOWN, NodeTable, SerializedGraph, WireNodes, pieces

RETVAL_OP = "_Retval"
_MAX_DIGITS = 9  # of a port; larger numbers than any op has ports


def read_graph(graph: Any, templates: Templates) -> GraphView:
    """The view of the nodes of a SerializedGraph or GraphDef (its function library is not read).

    Raises:
        GraphError: the graph is broken; the message names node and port.
    """
    if not isinstance(graph, SerializedGraph):
        graph = SerializedGraph(graph.SerializeToString())
    return read_nodes(graph.node, templates)


def read_nodes(nodes: NodeTable, templates: Templates) -> GraphView:
    """The view of given nodes, as :func:`read_graph`."""
    found = nodes.read()
    names = _split_names(found, nodes)
    if found.duplicate >= 0:
        raise _duplicate(names[found.duplicate])
    of_kind: list[Signature] = []
    types_of_kind: list[int] = []
    for firsts in pieces(found.firsts):  # each constant is a kind, and constants are large
        protos = nodes.some(firsts)
        signatures = read_signatures(protos, templates)
        of_kind += signatures
        types_of_kind += read_types(protos, signatures)
    devices = [sys.intern(proto.device) for proto in nodes.some(found.device_firsts)]
    view = GraphView.of(
        of_kind,
        found.kinds,
        types_of_kind,
        function="",
        names=names,
        devices=list(map(devices.__getitem__, found.devices.tolist())),
        protos=nodes,
    )
    _check_names(view)
    return _connected(view, found.input_counts, found.sources, found.ports, lambda node: nodes[node].input)


def read_function(function: Any, templates: Templates) -> GraphView:
    """The view of a FunctionDef's body, with its arguments as first and its results as last nodes.

    Raises:
        GraphError: the function is broken, or its types are parameters of the call.
    """
    title = function.signature.name
    arguments = [_boundary(arg, ARG_OP, title) for arg in function.signature.input_arg]
    results = [_boundary(arg, RETVAL_OP, title) for arg in function.signature.output_arg]
    body = list(function.node_def)
    names = [*(arg.name for arg in function.signature.input_arg), *(node.name for node in body)]
    number_of = {name: number for number, name in enumerate(names)}
    if len(number_of) != len(names):
        raise _duplicate(next(name for number, name in enumerate(names) if number_of[name] != number), title)
    inner = read_signatures(body, templates, title)
    signatures = [*arguments, *inner, *results]

    def resolve(text: str) -> tuple[int, int]:
        """Reads ``argument``, ``argument:0``, ``node:output argument``, ``node:output argument:number``, ``^node``."""
        if text[:1] == "^":
            return (CONTROL if text[1:] in number_of else UNKNOWN - 1), 0
        name, _, rest = text.partition(":")
        argument, _, offset = rest.partition(":")
        node = number_of.get(name, UNKNOWN)
        if 0 <= node < len(arguments):
            return (node if rest in ("", "0") else UNKNOWN), 0
        start = None if node < 0 else signatures[node].output_starts.get(argument)
        if start is None or not (offset or "0").isdecimal() or len(offset) > _MAX_DIGITS:
            return UNKNOWN, 0
        return node, start + int(offset or "0")

    returned = []
    for arg in function.signature.output_arg:
        if arg.name not in function.ret:
            raise GraphError(f"result {arg.name!r} has no tensor", where=f"function {title!r}", fix=BROKEN)
        returned.append([function.ret[arg.name]])
    texts = [*[[]] * len(arguments), *(node.input[:] for node in body), *returned]
    inputs = np.array(list(map(resolve, itertools.chain.from_iterable(texts))), np.int32).reshape(-1, 2)
    first, last = ([signature.slots[0].fixed for signature in ends] for ends in (arguments, results))
    view = GraphView.of(
        signatures,
        np.arange(len(signatures), dtype=np.int32),
        [*first, *read_types(body, inner, title), *last],
        function=title,
        names=[*names, *(f"{title}/{arg.name}" for arg in function.signature.output_arg)],
        devices=[*[""] * len(arguments), *(sys.intern(node.device) for node in body), *[""] * len(results)],
        protos=[*[None] * len(arguments), *body, *[None] * len(results)],
        argument_attributes=[
            function.arg_attr[number].attr if number in function.arg_attr else {} for number in range(len(arguments))
        ],
    )
    _check_names(view)
    counts = np.array(list(map(len, texts)), np.int32)
    return _connected(view, counts, inputs[:, 0], inputs[:, 1], texts.__getitem__)


def _check_names(view: GraphView) -> None:
    """Refuses control characters, as TensorFlow does."""
    if not "".join([view.function, *view.names, *set(view.devices)]).isprintable():
        named = zip(view.names, view.devices, strict=True)
        odd = next((node for node, texts in enumerate(named) if not "".join(texts).isprintable()), None)
        what = "the name or device of a node or function holds control characters"
        raise GraphError(what, where=place_of(view.function, "" if odd is None else view.names[odd]), fix=BROKEN)


def _connected(
    view: GraphView,
    counts: Indices,
    sources: Indices,
    source_ports: Indices,
    texts: Callable[[int], Sequence[str]],
) -> GraphView:
    """The view with its data edges.

    Args:
        counts: how many inputs each node has, control inputs included.
        sources: of all inputs, one after the other, the node that each names; :data:`~amp_tf.graph.wire.CONTROL` for a
            control input, :data:`~amp_tf.graph.wire.UNKNOWN` or less for a name that names nothing.
        source_ports: of all inputs, the output port.
        texts: gives the names of a node's inputs, for a message.

    Raises:
        GraphError: an input names nothing, a port does not exist, a data input comes after a control input, a node has
            not as many inputs as its op expects, or the types at the ends of an edge differ.
    """

    def broken(node: Any, what: str) -> GraphError:
        return GraphError(what, where=view.where(node), fix=BROKEN)

    readers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    starts = np.cumsum(counts, dtype=np.int32) - counts
    is_late = np.append(False, (sources[:-1] < 0) & (sources[1:] >= 0) & (readers[:-1] == readers[1:]))
    for place in (*np.flatnonzero(sources <= UNKNOWN), *np.flatnonzero(is_late)):
        reader, position = int(readers[place]), int(place - starts[readers[place]])
        text = texts(reader)[position]
        if sources[place] >= 0:
            raise broken(reader, f"data input {text!r} comes after a control input")
        if text[:1] == "^":
            raise broken(reader, f"control input {text!r} names no node of this graph")
        raise broken(reader, f"input {position} is {text!r}, which is not a tensor of this graph")
    data = np.flatnonzero(sources >= 0)
    src_node, src_port, dst_node = sources[data], source_ports[data], readers[data]
    inputs, outputs = view.ports
    existing = outputs.counts[view.kinds[src_node]]
    for edge in np.flatnonzero(src_port >= existing):
        what = f"reads port {src_port[edge]} of {view.names[src_node[edge]]!r}, which has {existing[edge]} output(s)"
        raise broken(dst_node[edge], what)
    found = np.bincount(dst_node, minlength=len(counts))
    for node in np.flatnonzero(found != inputs.counts[view.kinds]):
        signature = view.signatures[node]
        raise broken(node, f"{signature.op} expects {len(signature.inputs)} data input(s) and has {found[node]}")
    connected = view.connected(src_node, src_port, dst_node, (data - starts[dst_node]).astype(np.int32))
    edges = connected.edges
    types = np.asarray(view.dtypes, np.int32)
    for edge in np.flatnonzero(types[edges.src_unit] != types[edges.dst_unit]):
        given, wanted = (datatypes.type_name(int(types[units[edge]])) for units in (edges.src_unit, edges.dst_unit))
        what = f"input {edges.dst_position[edge]} expects {wanted} and gets {given} from {view.names[src_node[edge]]!r}"
        raise broken(dst_node[edge], what)
    return connected


def _boundary(arg: Any, op: str, function: str) -> Signature:
    """The signature of a function argument (one output) or result (one input); its type is the function's."""
    if arg.type_attr or arg.type_list_attr or arg.number_attr:
        raise GraphError(
            f"argument {arg.name!r} has a type that each call chooses",
            where=f"function {function!r}",
            fix="Instantiate the function for one set of types first",
        )
    is_argument = op == ARG_OP
    slot = fixed_slot(function, arg.type, where=f"function {function!r}")
    port = (0,)
    return Signature(
        op, (slot,), () if is_argument else port, port if is_argument else (), {}, False, arg.is_ref, False
    )


def _split_names(found: WireNodes, nodes: NodeTable) -> list[str]:
    text = found.names
    try:
        names = text.decode().split("\0")[:-1]
    except UnicodeDecodeError as error:
        name = text[text.rfind(b"\0", 0, error.start) + 1 :].partition(b"\0")[0]
        raise GraphError("its name is not UTF-8 text", where=f"node {name!r}", fix=BROKEN) from None
    if len(names) != len(found.kinds):
        name = next(node.name for node in nodes if "\0" in node.name)
        raise GraphError("its name has a NUL in it", where=f"node {name!r}", fix=BROKEN)
    return names


def _duplicate(name: str, function: str = "") -> GraphError:
    return GraphError("two nodes have this name", where=place_of(function, name), fix=BROKEN)
