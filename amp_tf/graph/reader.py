"""Reads a GraphDef or a FunctionDef into a :class:`~amp_tf.graph.view.GraphView`.

What cannot be a graph is refused here, with the node and port: unknown ops, duplicate names,
dangling inputs, a wrong number of inputs, a data input after a control input, edges whose types
disagree.

Of a graph's nodes one of each kind is read (:mod:`amp_tf.graph.protos`), of a function's body,
which is small and names tensors in its own way, every one.
"""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP, BROKEN, place_of, read_signatures, read_types
from amp_tf.graph.datatypes import Indices
from amp_tf.graph.protos import CONTROL, MAX_DIGITS, UNKNOWN, read_facts
from amp_tf.graph.templates import Signature, Templates, fixed_slot
from amp_tf.graph.view import GraphView

RETVAL_OP = "_Retval"


def read_graph(graph: Any, templates: Templates) -> GraphView:
    """The view of the nodes of a GraphDef (its function library is not read), which is not
    modified.

    Raises:
        GraphError: the graph is broken; the message names node and port.
    """
    nodes = graph.node
    facts = read_facts(nodes)
    if len(set(facts.names)) < len(facts.names):
        counts = collections.Counter(facts.names)
        raise _duplicate(next(name for name in facts.names if counts[name] > 1))
    firsts = [nodes[number] for number in facts.firsts]
    signatures = read_signatures(firsts, templates)
    view = GraphView.of(
        signatures,
        facts.kinds,
        read_types(firsts, signatures),
        function="",
        names=facts.names,
        devices=facts.devices,
        protos=nodes,
    )
    _check_names(view)
    return _connected(
        view, facts.input_counts, facts.sources, facts.ports, lambda node: nodes[node].input
    )


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
        raise _duplicate(
            next(name for number, name in enumerate(names) if number_of[name] != number), title
        )
    inner = read_signatures(body, templates, title)
    signatures = [*arguments, *inner, *results]

    def resolve(text: str) -> tuple[int, int]:
        """Reads ``argument``, ``argument:0``, ``node:output argument``, ``node:output
        argument:number``, ``^node``.
        """
        if text[:1] == "^":
            return (CONTROL if text[1:] in number_of else UNKNOWN - 1), 0
        name, _, rest = text.partition(":")
        argument, _, offset = rest.partition(":")
        node = number_of.get(name, UNKNOWN)
        if 0 <= node < len(arguments):
            return (node if rest in ("", "0") else UNKNOWN), 0
        start = None if node < 0 else signatures[node].output_starts.get(argument)
        if start is None or not (offset or "0").isdecimal() or len(offset) > MAX_DIGITS:
            return UNKNOWN, 0
        return node, start + int(offset or "0")

    returned = []
    for arg in function.signature.output_arg:
        if arg.name not in function.ret:
            raise GraphError(
                f"result {arg.name!r} has no tensor", where=f"function {title!r}", fix=BROKEN
            )
        returned.append([function.ret[arg.name]])
    texts = [*[[]] * len(arguments), *(node.input[:] for node in body), *returned]
    inputs = np.array(list(map(resolve, itertools.chain.from_iterable(texts))), np.int32).reshape(
        -1, 2
    )
    first, last = (
        [signature.slots[0].fixed for signature in ends] for ends in (arguments, results)
    )
    view = GraphView.of(
        signatures,
        np.arange(len(signatures), dtype=np.int32),
        [*first, *read_types(body, inner, title), *last],
        function=title,
        names=[*names, *(f"{title}/{arg.name}" for arg in function.signature.output_arg)],
        devices=[
            *[""] * len(arguments),
            *(sys.intern(node.device) for node in body),
            *[""] * len(results),
        ],
        protos=[*[None] * len(arguments), *body, *[None] * len(results)],
        argument_attributes=[
            function.arg_attr[number].attr if number in function.arg_attr else {}
            for number in range(len(arguments))
        ],
    )
    _check_names(view)
    counts = np.array(list(map(len, texts)), np.int32)
    return _connected(view, counts, inputs[:, 0], inputs[:, 1], texts.__getitem__)


def _check_names(view: GraphView) -> None:
    """Refuses control characters, as TensorFlow does."""
    if not "".join([view.function, *view.names, *set(view.devices)]).isprintable():
        named = zip(view.names, view.devices, strict=True)
        odd = next(
            (node for node, texts in enumerate(named) if not "".join(texts).isprintable()), None
        )
        what = "the name or device of a node or function holds control characters"
        raise GraphError(
            what, where=place_of(view.function, "" if odd is None else view.names[odd]), fix=BROKEN
        )


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
        sources: of all inputs, one after the other, the node that each names; ``CONTROL`` for a
            control input, ``UNKNOWN`` or less for a name that names nothing
            (:mod:`amp_tf.graph.protos`).
        source_ports: of all inputs, the output port.
        texts: gives the names of a node's inputs, for a message.

    Raises:
        GraphError: an input names nothing, a port does not exist, a data input comes after a
            control input, a node has not as many inputs as its op expects, or the types at the ends
            of an edge differ.
    """

    def broken(node: Any, what: str) -> GraphError:
        return GraphError(what, where=view.where(node), fix=BROKEN)

    readers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    starts = np.cumsum(counts, dtype=np.int32) - counts
    is_late = np.append(
        False, (sources[:-1] < 0) & (sources[1:] >= 0) & (readers[:-1] == readers[1:])
    )
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
        what = (
            f"reads port {src_port[edge]} of {view.names[src_node[edge]]!r}, which has "
            f"{existing[edge]} output(s)"
        )
        raise broken(dst_node[edge], what)
    found = np.bincount(dst_node, minlength=len(counts))
    for node in np.flatnonzero(found != inputs.counts[view.kinds]):
        signature = view.signatures[node]
        raise broken(
            node,
            f"{signature.op} expects {len(signature.inputs)} data input(s) and has {found[node]}",
        )
    connected = view.connected(
        src_node, src_port, dst_node, (data - starts[dst_node]).astype(np.int32)
    )
    edges = connected.edges
    types = np.asarray(view.dtypes, np.int32)
    for edge in np.flatnonzero(types[edges.src_unit] != types[edges.dst_unit]):
        given, wanted = (
            datatypes.type_name(int(types[units[edge]]))
            for units in (edges.src_unit, edges.dst_unit)
        )
        what = (
            f"input {edges.dst_position[edge]} expects {wanted} and gets {given} from "
            f"{view.names[src_node[edge]]!r}"
        )
        raise broken(dst_node[edge], what)
    return connected


def _boundary(arg: Any, op: str, function: str) -> Signature:
    """The signature of a function argument (one output) or result (one input); its type is the
    function's.
    """
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
        op,
        (slot,),
        () if is_argument else port,
        port if is_argument else (),
        {},
        False,
        arg.is_ref,
        False,
    )


def _duplicate(name: str, function: str = "") -> GraphError:
    return GraphError("two nodes have this name", where=place_of(function, name), fix=BROKEN)
