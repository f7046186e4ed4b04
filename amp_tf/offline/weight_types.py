"""Gives the weights of a converted SavedModel 16-bit types, where :mod:`amp_tf.offline.weights` found that they can.

All places of a variable, and all between it and the casts that read it, get the type; what initializes it is cast::

    before  w = VarHandleOp() float32 | v = ReadVariableOp(w) float32  | c = Cast(v)            | MatMul(x, c)
    after   w = VarHandleOp() f16     | v = ReadVariableOp(w) f16      | c = PreventGradient(v) | MatMul(x, c)

The same numbers arrive at the product: what each call rounded has been rounded once. A cast becomes PreventGradient,
which gives a value as it came, ends in an error where somebody differentiates it, and is taken out by TensorFlow's
optimizers where nobody does. So the model says that it is for inference, in any TensorFlow.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from amp_tf.errors import GraphError, RewriteError
from amp_tf.graph import datatypes
from amp_tf.graph.attributes import read_signatures
from amp_tf.graph.editor import apply_to_function, apply_to_graph
from amp_tf.graph.edits import Edits, NewNode, Reop, Retype, Rewire, attribute
from amp_tf.graph.names import FreshNames
from amp_tf.graph.reader import read_function, read_graph
from amp_tf.graph.templates import Templates
from amp_tf.graph.view import GraphView
from amp_tf.graph.wire import SerializedGraph, parse_graph
from amp_tf.offline.checkpoint import Checkpoint
from amp_tf.offline.weights import Body, Change, find_weights
from amp_tf.oplists.table import GRADIENT_GATE
from amp_tf.reporting.weights import Weights

_SUFFIX = "AmpTfWeights"
_FOR_INFERENCE = (
    "amp_tf stored these weights in {}, for inference. To train, take the model that was converted, or convert it "
    "without 16-bit weights. Where this model is a part of one that is trained, call it outside of the GradientTape, "
    "or in tape.stop_recording()"
)
_CAST_ATTRIBUTES = ("SrcT", "DstT", "Truncate")
_Changes = Sequence[tuple[Change, int]]


def store_weights(model: Any, checkpoint: Checkpoint, preserved: Sequence[frozenset[str]]) -> Weights:
    """Gives variables of a model 16-bit types where its graphs read them in 16 bit.

    Args:
        model: a ``SavedModel`` proto of which the graphs are converted; it is changed.
        checkpoint: its variables; the copy needs those that are ``stored`` of the result in 16 bit.
        preserved: of each MetaGraph, the nodes of its graph whose results somebody fetches.

    Raises:
        GraphError: a graph is broken.
        RewriteError: the result did not pass verification; this is a bug of amp_tf.
    """
    plan = find_weights(model, checkpoint, preserved)
    changes: dict[Body, list[tuple[Change, int]]] = collections.defaultdict(list)
    for change, data_type in plan.changes:
        changes[change.body].append((change, data_type))
    for number, meta in enumerate(model.meta_graphs):
        of_name = {body.view.function: body for body in changes if body.meta == number}
        _apply(meta.graph_def, of_name, changes)
    for variable, data_type in plan.objects:
        variable.dtype = data_type
    return Weights(tuple(sorted(plan.variables, key=lambda each: (-each.size, each.key))))


def _apply(graph: Any, bodies: dict[str, Body], changes: dict[Body, list[tuple[Change, int]]]) -> None:
    for function in graph.library.function:
        if body := bodies.get(function.signature.name):
            function.CopyFrom(_function_after(function, body, changes[body]))
    if body := bodies.get(""):
        nodes = SerializedGraph(graph.SerializeToString(deterministic=True)).node
        edits = _edits(body.view, changes[body])
        after = parse_graph(apply_to_graph(nodes, body.view.names, edits))
        del graph.node[:]
        graph.node.extend(after.node)
    templates = Templates(graph.library)
    try:  # types agree on every edge of what can be read
        for name in bodies:
            function = next((each for each in graph.library.function if each.signature.name == name), None)
            read_function(function, templates) if function else read_graph(graph, templates)
    except GraphError as error:
        raise RewriteError(
            f"the graph with 16-bit weights did not pass verification: {error.where}: {error.what}",
            fix='This is a bug of amp_tf; please report it with the model. Without weights="f16" it is converted',
        ) from error


def _function_after(function: Any, body: Body, changes: _Changes) -> Any:
    view = body.view
    edits = _edits(view, changes)
    gates = read_signatures([_gate_proto()], Templates(), str)
    gated = {reop.node for reop in edits.reops}
    # Results of functions are read by their names, and a gate's has another one than a cast's.
    rewires = [Rewire(reader, position, node, 0) for node in sorted(gated) for reader, position in view.readers(node)]
    signatures = [gates[0] if node in gated else signature for node, signature in enumerate(view.signatures)]
    after = apply_to_function(function, view.names, signatures, Edits(edits.reops, edits.retypes, tuple(rewires)))
    for change, data_type in changes:
        if change.kind == "argument":
            after.signature.input_arg[change.number].type = data_type
        elif change.kind == "result":
            after.signature.output_arg[change.number].type = data_type
    return after


def _gate_proto() -> Any:
    from tensorflow.core.framework import node_def_pb2

    return node_def_pb2.NodeDef(op=GRADIENT_GATE)


def _edits(view: GraphView, changes: _Changes) -> Edits:
    fresh = FreshNames(view.names, _SUFFIX)
    units: dict[int, set[int]] = collections.defaultdict(set)
    reops, rewires = [], []
    new: list[NewNode] = []
    for change, data_type in changes:
        node = change.number
        if change.kind == "unit":
            units[data_type].add(node)
        elif change.kind == "cast":
            message = _FOR_INFERENCE.format(datatypes.type_name(data_type)).encode()
            gone = dict.fromkeys(_CAST_ATTRIBUTES)
            attributes = {**gone, "T": attribute(type=data_type), "message": attribute(s=message)}
            reops.append(Reop(node, GRADIENT_GATE, attributes))
        elif change.kind == "initial":
            source = view.inputs(node)[1]
            name = fresh.make(view.names[node])
            rewires.append(Rewire(node, 1, view.node_count + len(new), 0))
            new.append(NewNode.cast(name, source, view.devices[node], of=datatypes.FLOAT, to=data_type))
    retypes = tuple(Retype.of_units(view, sorted(found), data_type) for data_type, found in units.items())
    return Edits(reops=tuple(reops), retypes=retypes, rewires=tuple(rewires), new=tuple(new))
