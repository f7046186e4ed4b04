"""Stores variables of a converted SavedModel in 16 bit: half the file, and no casts of weights.

:mod:`amp_tf.offline.variables` decides which variables, and what changes in the graphs.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from amp_tf.errors import GraphError, RewriteError
from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Unit
from amp_tf.graph.editor import apply_to_function, apply_to_graph
from amp_tf.graph.edits import Edits, NewNode, Reop, Rewire, attribute
from amp_tf.graph.names import FreshNames
from amp_tf.graph.reader import read_function, read_graph
from amp_tf.graph.templates import Templates
from amp_tf.graph.view import GraphView
from amp_tf.offline.bodies import Body
from amp_tf.offline.reading import Checkpoint
from amp_tf.offline.variables import BeyondRange, Changes, search_variables
from amp_tf.oplists import table
from amp_tf.reporting.weights import Weights

_SUFFIX = "AmpTfWeights"
_FOR_INFERENCE = (
    "amp_tf stored these weights in {}, for inference. To train, take the model that was "
    "converted, or convert it without 16-bit weights. Where this model is a part of one that is "
    "trained, call it outside of the GradientTape, or in tape.stop_recording()"
)


def store_weights(
    model: Any,
    checkpoint: Checkpoint,
    preserved: Sequence[frozenset[str]],
    beyond: Sequence[BeyondRange],
) -> Weights:
    """Gives variables 16-bit types where the graphs of a converted model read them so.

    Args:
        model: the ``SavedModel`` proto, which is changed. Its checkpoint then needs the variables
            in 16 bit that the result lists as ``stored``.
        checkpoint: its checkpoint.
        preserved: for each MetaGraph, the nodes of its graph whose results somebody fetches.
        beyond: the result of :func:`amp_tf.offline.variables.find_beyond_range`, from before the
            graphs were converted.

    Raises:
        GraphError: a graph is broken.
        FileError: the checkpoint cannot be read.
        RewriteError: the result did not pass verification; this is a bug of amp_tf.
    """
    search = search_variables(model, checkpoint, preserved)
    variables, decided = search.judge(checkpoint, beyond)
    for number, meta in enumerate(model.meta_graphs):
        changed = [body for body in decided if body.meta == number]
        try:
            _apply(meta.graph_def, {body.view.function: (body, decided[body]) for body in changed})
        except GraphError as error:
            raise RewriteError(
                (
                    f"the graph with 16-bit weights did not pass verification: {error.where}: "
                    f"{error.what}"
                ),
                fix=(
                    "This is a bug of amp_tf; please report it with the model. Without "
                    'weights="f16" it is converted'
                ),
            ) from error
    return Weights(tuple(sorted(variables, key=lambda each: (-each.size, each.key))))


def _apply(graph: Any, bodies: Mapping[str, tuple[Body, Changes]]) -> None:
    """Makes the changes of a graph and its functions, which are given by name.

    Raises:
        GraphError: the result is broken: types do not agree on an edge.
    """
    for function in graph.library.function:
        if function.signature.name in bodies:
            function.CopyFrom(_function_after(function, *bodies[function.signature.name]))
    if "" in bodies:
        body, changes = bodies[""]
        after = apply_to_graph(graph, body.view.names, _edits(body.view, changes))
        del graph.node[:]
        graph.node.extend(after.node)
    templates = Templates(graph.library)
    if "" in bodies:
        read_graph(graph, templates)
    for function in graph.library.function:
        if function.signature.name in bodies:
            read_function(function, templates)


def _function_after(function: Any, body: Body, changes: Changes) -> Any:
    """Returns a FunctionDef with its changes."""
    view = body.view
    edits = _edits(view, changes)
    gate = Templates().find(table.GRADIENT_GATE).signature(None)
    signatures = list(view.signatures)
    for reop in edits.reops:
        signatures[reop.node] = gate
    after = apply_to_function(function, view, edits, signatures)
    for change, data_type in changes:
        if change.kind == "argument":
            after.signature.input_arg[change.number].type = data_type
        elif change.kind == "result":
            after.signature.output_arg[change.number].type = data_type
    return after


def _edits(view: GraphView, changes: Changes) -> Edits:
    """Returns the edits for some changes, except those of arguments and results."""
    fresh = FreshNames(view.names, _SUFFIX)
    units: dict[int, set[Unit]] = collections.defaultdict(set)
    reops = []
    rewires = []
    new: list[NewNode] = []
    for change, data_type in changes:
        node = change.number
        if change.kind == "unit":
            units[data_type].add(node)
        elif change.kind == "cast":
            message = _FOR_INFERENCE.format(datatypes.type_name(data_type)).encode()
            attributes: dict[str, Any] = dict.fromkeys(("SrcT", "DstT", "Truncate"))
            attributes["T"] = attribute(type=data_type)
            attributes["message"] = attribute(s=message)
            reops.append(Reop(node, table.GRADIENT_GATE, attributes))
        elif change.kind == "initial":
            source = view.inputs(node)[1]
            name = fresh.make(view.names[node])
            rewires.append(Rewire(node, 1, view.node_count + len(new), 0))
            new.append(
                NewNode.cast(name, source, view.devices[node], of=datatypes.FLOAT, to=data_type)
            )
    retypes = tuple(view.retyped(sorted(found), data_type) for data_type, found in units.items())
    return Edits(reops=tuple(reops), retypes=retypes, rewires=tuple(rewires), new=tuple(new))
