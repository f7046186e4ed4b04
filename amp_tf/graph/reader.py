"""Reads a GraphDef or a FunctionDef into a :class:`~amp_tf.graph.view.GraphView`.

Broken graphs are refused here, with the node and port: unknown ops, duplicate names, dangling
inputs, a wrong number of inputs, a data input after a control input, edges whose types disagree.

In a graph, one node of each kind is read (:mod:`amp_tf.graph.protos`), and in a rewritten graph
only what changed. In a function, every node is read: its body is small, and it names tensors in its
own way.
"""

from __future__ import annotations

import collections
import itertools
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes
from amp_tf.graph.attributes import (
    ARG_OP,
    BROKEN,
    place_of,
    read_marks,
    read_signatures,
    read_types,
)
from amp_tf.graph.datatypes import Indices
from amp_tf.graph.edits import attribute
from amp_tf.graph.protos import (
    CONTROL,
    NO_TENSOR,
    UNKNOWN,
    TensorNames,
    find_inputs,
    new_graph,
    pack,
    read_facts,
)
from amp_tf.graph.templates import Signature, Templates, fixed_slot
from amp_tf.graph.view import GraphView

RETVAL_OP = "_Retval"
_NO_GRAPH = GraphView.of(
    [], np.zeros(0, np.int32), [], function="", names=[], devices=[], marks=[], protos=[]
)


def read_graph(graph: Any, templates: Templates, before: GraphView | None = None) -> GraphView:
    """Reads the nodes of a GraphDef, but not its function library.

    Args:
        before: the graph of which this one is a rewrite; only what changed is read.

    Raises:
        GraphError: the graph is broken; the message names node and port.
    """
    nodes = graph.node
    if before is None:
        before = _NO_GRAPH
        changed = list(range(len(nodes)))
        facts = read_facts(graph)
    else:
        is_changed = map(operator.ne, before.protos, nodes)
        changed = list(itertools.compress(range(before.node_count), is_changed))
        changed += range(before.node_count, len(nodes))
        facts = read_facts(new_graph(node=map(nodes.__getitem__, changed)))
    added = [""] * (len(nodes) - before.node_count)
    names = [*before.names[: len(nodes)], *added]
    devices = [*before.devices[: len(nodes)], *added]
    for number, name, device in zip(changed, facts.names, facts.devices, strict=True):
        names[number] = name
        devices[number] = device
    if names[: before.node_count] != before.names:  # others may read the node by its old name
        return read_graph(graph, templates)
    _check_unique(names)
    firsts = [nodes[changed[first]] for first in facts.firsts]
    signatures = read_signatures(firsts, templates)
    types = read_types(firsts, signatures)
    numbers = np.array(changed, np.int32)
    view = before.remade(
        numbers,
        facts.kinds,
        signatures,
        types,
        read_marks(firsts),
        names=names,
        devices=devices,
        protos=nodes,
    )
    inputs = find_inputs(facts.texts, TensorNames(names), numbers)
    return _connected(view, inputs, before, numbers)


def read_function(function: Any, templates: Templates) -> GraphView:
    """Reads a FunctionDef: the nodes are its arguments, its results, and then those of its body.

    Arguments and results get NodeDefs of their own, as they have in a function's graph.

    Raises:
        GraphError: the function is broken, or its types are parameters of the call.
    """
    title = function.signature.name
    arguments = function.signature.input_arg
    results = function.signature.output_arg
    body = function.node_def
    ends = _ends_of(function)
    protos = [*ends, *body]
    names = [proto.name for proto in protos]
    _check_unique(names[: len(arguments)] + names[len(ends) :], title)
    signatures = []
    types = []
    for op, args in ((ARG_OP, arguments), (RETVAL_OP, results)):
        for arg in args:
            signature = _boundary(arg, op, title)
            signatures.append(signature)
            types.append(signature.slots[0].fixed)
    inner = read_signatures(body, templates, title)
    signatures += inner
    types += read_types(body, inner, title)
    view = GraphView.of(
        signatures,
        np.arange(len(protos), dtype=np.int32),
        types,
        function=title,
        names=names,
        devices=[sys.intern(proto.device) for proto in protos],
        marks=read_marks(protos),
        protos=protos,
    )
    numbers = np.arange(len(protos), dtype=np.int32)
    texts = [proto.input[:] for proto in protos]
    return _connected(view, find_inputs(texts, _tensors_of(view), numbers), _NO_GRAPH, numbers)


def _ends_of(function: Any) -> Any:
    """Makes NodeDefs of a function's arguments and results.

    A result is a node that reads the tensor. Its name has the function's in it, because a node of
    the body may have the result's own name.
    """
    title = function.signature.name
    ends = new_graph().node
    for number, arg in enumerate(function.signature.input_arg):
        argument = ends.add(name=arg.name, op=ARG_OP)
        if number in function.arg_attr:  # indexing would add the key
            argument.attr.MergeFrom(function.arg_attr[number].attr)
        argument.attr["index"].CopyFrom(attribute(i=number))
    for arg in function.signature.output_arg:
        if arg.name not in function.ret:
            what = f"result {arg.name!r} has no tensor"
            raise GraphError(what, where=f"function {title!r}", fix=BROKEN)
        ends.add(name=f"{title}/{arg.name}", op=RETVAL_OP, input=[function.ret[arg.name]])
    return ends


def _tensors_of(view: GraphView) -> Mapping[str, int]:
    """Returns what each text names that may name an input in a function, packed.

    The texts are ``argument``, ``argument:0``, ``node:output argument``, ``node:output
    argument:number`` and ``^node``.
    """
    found = collections.defaultdict(lambda: NO_TENSOR)
    for node, name in enumerate(view.names):
        signature = view.signatures[node]
        found[f"^{name}"] = pack(CONTROL, node)
        if signature.op == ARG_OP:
            found[name] = pack(node, 0)
            found[f"{name}:0"] = pack(node, 0)
        ends = [*signature.output_starts.values(), len(signature.outputs)]
        for number, (output, start) in enumerate(signature.output_starts.items(), 1):
            for port in range(start, ends[number]):
                found.setdefault(f"{name}:{output}", pack(node, port))
                found[f"{name}:{output}:{port - start}"] = pack(node, port)
    return found


def _check_unique(names: Sequence[str], function: str = "") -> None:
    """Refuses two nodes of one name."""
    if len(set(names)) == len(names):
        return
    (name, _), *_ = collections.Counter(names).most_common(1)
    raise GraphError("two nodes have this name", where=place_of(function, name), fix=BROKEN)


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


def _connected(view: GraphView, inputs: Indices, before: GraphView, changed: Indices) -> GraphView:
    """Returns the view with its edges.

    Args:
        inputs: the inputs of the nodes that changed, as of :func:`find_inputs`.
        before: the graph before; the other nodes read what they read there.
        changed: the nodes that changed, or are new.

    Raises:
        GraphError: a name holds control characters, an input names nothing, a port does not exist,
            a data input comes after a control input, a node has not as many inputs as its op
            expects, or the types at the ends of an edge differ.
    """
    _check_names(view)
    _check_texts(view, inputs)
    is_kept = ~np.isin(before.controls[:, 1], changed)
    _, *waits, _ = inputs[:, inputs[0] == CONTROL]
    controls = np.concatenate([before.controls[is_kept], np.transpose(waits)])
    ends = before.ends_with_others(changed, inputs[:, inputs[0] >= 0])
    src_node, src_port, dst_node, dst_position = ends
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
    connected = view.connected(ends, controls)
    edges = connected.edges
    types = np.asarray(view.dtypes, np.int32)
    for edge in np.flatnonzero(types[edges.src_unit] != types[edges.dst_unit]):
        given = datatypes.type_name(int(types[edges.src_unit[edge]]))
        wanted = datatypes.type_name(int(types[edges.dst_unit[edge]]))
        source = view.names[src_node[edge]]
        raise _broken(
            view,
            dst_node[edge],
            f"input {dst_position[edge]} expects {wanted} and gets {given} from {source!r}",
        )
    return connected


def _check_texts(view: GraphView, inputs: Indices) -> None:
    """Refuses an input that names nothing, and a data input after a control input."""
    sources, _, readers, positions = inputs
    is_behind_control = (sources[:-1] < 0) & (readers[:-1] == readers[1:])
    late = 1 + np.flatnonzero(is_behind_control & (sources[1:] >= 0))
    for place in (*np.flatnonzero(sources == UNKNOWN), *late):
        reader = int(readers[place])
        position = int(positions[place])
        text = view.protos[reader].input[position]
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
