"""Reads a GraphDef or a FunctionDef into a :class:`~amp_tf.graph.view.GraphView`.

Broken graphs are refused here, with the node and port: unknown ops, duplicate names, dangling
inputs, a wrong number of inputs, a data input after a control input, edges whose types disagree.

In a graph, one node of each kind is read (:mod:`amp_tf.graph.protos`). In a function, every node is
read: its body is small, and it names tensors in its own way.
"""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP, BROKEN, place_of, read_signatures, read_types
from amp_tf.graph.datatypes import Node, Port
from amp_tf.graph.protos import CONTROL, MAX_DIGITS, UNKNOWN, Inputs, read_facts
from amp_tf.graph.templates import Signature, Templates, fixed_slot
from amp_tf.graph.view import GraphView

RETVAL_OP = "_Retval"
_Texts: TypeAlias = Callable[[Node], Sequence[str]]


def read_graph(graph: Any, templates: Templates) -> GraphView:
    """Reads the nodes of a GraphDef, but not its function library.

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
    return _connected(view, facts.inputs, lambda node: nodes[node].input)


def read_function(function: Any, templates: Templates) -> GraphView:
    """Reads a FunctionDef: the nodes are its arguments, its results, and then those of its body.

    Raises:
        GraphError: the function is broken, or its types are parameters of the call.
    """
    title = function.signature.name
    body = list(function.node_def)
    argument_names = [arg.name for arg in function.signature.input_arg]
    result_names = [arg.name for arg in function.signature.output_arg]
    body_names = [node.name for node in body]
    ends = [_boundary(arg, ARG_OP, title) for arg in function.signature.input_arg]
    ends += [_boundary(arg, RETVAL_OP, title) for arg in function.signature.output_arg]
    number_of: dict[str, Node] = {}
    for number, name in (*enumerate(argument_names), *enumerate(body_names, len(ends))):
        if name in number_of:
            raise _duplicate(name, title)
        number_of[name] = number
    inner = read_signatures(body, templates, title)
    types = [signature.slots[0].fixed for signature in ends]
    types += read_types(body, inner, title)
    names = argument_names + [f"{title}/{name}" for name in result_names] + body_names
    devices = [sys.intern(node.device) for node in body]
    argument_attributes = []
    for number in range(len(argument_names)):
        is_there = number in function.arg_attr  # an index would add it
        argument_attributes.append(function.arg_attr[number].attr if is_there else {})
    view = GraphView.of(
        ends + inner,
        np.arange(len(names), dtype=np.int32),
        types,
        function=title,
        names=names,
        devices=[""] * len(ends) + devices,
        protos=[None] * len(ends) + body,
        argument_attributes=argument_attributes,
    )
    _check_names(view)
    texts: list[Sequence[str]] = [()] * len(argument_names)
    for name in result_names:
        if name not in function.ret:
            raise GraphError(
                f"result {name!r} has no tensor", where=f"function {title!r}", fix=BROKEN
            )
        texts.append([function.ret[name]])
    texts += [node.input[:] for node in body]
    all_texts = itertools.chain.from_iterable(texts)
    found = [_resolve(text, number_of, view.signatures) for text in all_texts]
    sources, ports = np.array(found, np.int32).reshape(-1, 2).T
    return _connected(view, Inputs.of(texts, sources, ports), texts.__getitem__)


def _resolve(
    text: str, number_of: Mapping[str, Node], signatures: Sequence[Signature]
) -> tuple[Node, Port]:
    """Reads the text of an input of a function's node: the node that it names, and the port.

    It is ``argument``, ``argument:0``, ``node:output argument``, ``node:output argument:number`` or
    ``^node``. The node is ``CONTROL`` or ``UNKNOWN`` as in :mod:`amp_tf.graph.protos`.
    """
    if text[:1] == "^":
        return (CONTROL if text[1:] in number_of else UNKNOWN - 1), 0
    name, _, rest = text.partition(":")
    output, _, offset = rest.partition(":")
    if name not in number_of:
        return UNKNOWN, 0
    node = number_of[name]
    signature = signatures[node]
    if signature.op == ARG_OP and rest in ("", "0"):
        return node, 0
    start = signature.output_starts.get(output)  # an argument has none
    if start is None or not (offset or "0").isdecimal() or len(offset) > MAX_DIGITS:
        return UNKNOWN, 0
    return node, start + int(offset or "0")


def _check_names(view: GraphView) -> None:
    """Refuses control characters, as TensorFlow does."""
    if "".join([view.function, *view.names, *set(view.devices)]).isprintable():
        return
    where = place_of(view.function, "")
    for name, device in zip(view.names, view.devices, strict=True):
        if not f"{name}{device}".isprintable():
            where = place_of(view.function, name)
            break
    what = "the name or device of a node or function holds control characters"
    raise GraphError(what, where=where, fix=BROKEN)


def _connected(view: GraphView, inputs: Inputs, texts: _Texts) -> GraphView:
    """Returns the view with its data edges.

    Args:
        view: the view.
        inputs: the inputs of its nodes.
        texts: gives the texts of a node's inputs, for a message.

    Raises:
        GraphError: an input names nothing, a port does not exist, a data input comes after a
            control input, a node has not as many inputs as its op expects, or the types at the ends
            of an edge differ.
    """
    _check_texts(view, inputs, texts)
    data = np.flatnonzero(inputs.sources >= 0)
    src_node = inputs.sources[data]
    src_port = inputs.ports[data]
    dst_node = inputs.readers[data]
    of_inputs, of_outputs = view.ports
    existing = of_outputs.counts[view.kinds[src_node]]
    for edge in np.flatnonzero(src_port >= existing):
        source = view.names[src_node[edge]]
        raise _broken(
            view,
            dst_node[edge],
            f"reads port {src_port[edge]} of {source!r}, which has {existing[edge]} output(s)",
        )
    counts = np.bincount(dst_node, minlength=view.node_count)
    for node in np.flatnonzero(counts != of_inputs.counts[view.kinds]):
        signature = view.signatures[node]
        raise _broken(
            view,
            node,
            f"{signature.op} expects {len(signature.inputs)} data input(s) and has {counts[node]}",
        )
    connected = view.connected(src_node, src_port, dst_node, inputs.positions[data])
    edges = connected.edges
    types = np.asarray(view.dtypes, np.int32)
    for edge in np.flatnonzero(types[edges.src_unit] != types[edges.dst_unit]):
        given = datatypes.type_name(int(types[edges.src_unit[edge]]))
        wanted = datatypes.type_name(int(types[edges.dst_unit[edge]]))
        source = view.names[src_node[edge]]
        position = edges.dst_position[edge]
        raise _broken(
            view,
            dst_node[edge],
            f"input {position} expects {wanted} and gets {given} from {source!r}",
        )
    return connected


def _check_texts(view: GraphView, inputs: Inputs, texts: _Texts) -> None:
    """Refuses an input that names nothing, and a data input after a control input."""
    sources = inputs.sources
    readers = inputs.readers
    is_behind_control = (sources[:-1] < 0) & (readers[:-1] == readers[1:])
    late = 1 + np.flatnonzero(is_behind_control & (sources[1:] >= 0))
    for place in (*np.flatnonzero(sources <= UNKNOWN), *late):
        reader = int(readers[place])
        position = int(inputs.positions[place])
        text = texts(reader)[position]
        if sources[place] >= 0:
            what = f"data input {text!r} comes after a control input"
        elif text[:1] == "^":
            what = f"control input {text!r} names no node of this graph"
        else:
            what = f"input {position} is {text!r}, which is not a tensor of this graph"
        raise _broken(view, reader, what)


def _broken(view: GraphView, node: Any, what: str) -> GraphError:
    return GraphError(what, where=view.where(node), fix=BROKEN)


def _boundary(arg: Any, op: str, function: str) -> Signature:
    """Makes the signature of a function's argument (one output) or result (one input)."""
    where = f"function {function!r}"
    if arg.type_attr or arg.type_list_attr or arg.number_attr:
        raise GraphError(
            f"argument {arg.name!r} has a type that each call chooses",
            where=where,
            fix="Instantiate the function for one set of types first",
        )
    slot = fixed_slot(function, arg.type, where=where)
    return Signature(
        op,
        slots=(slot,),
        inputs=() if op == ARG_OP else (0,),
        outputs=(0,) if op == ARG_OP else (),
        output_starts={},
        is_stateful=False,
        has_refs=arg.is_ref,
        holds_functions=False,
    )


def _duplicate(name: str, function: str = "") -> GraphError:
    return GraphError("two nodes have this name", where=place_of(function, name), fix=BROKEN)
