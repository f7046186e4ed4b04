"""Reads a graph that was made from another by editing: only what differs from the original is read again.

Which nodes differ is found by comparing the protos themselves, all of them, in C. So nothing is taken on trust from
the plan or the editor: an edit at a place that nobody planned shows like any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import ne
from typing import Any

import numpy as np

from amp_tf.graph.reader import GraphTensors, NodeReader, check_edge_types, pieces, read_graph
from amp_tf.graph.templates import Signature, Templates
from amp_tf.graph.view import GraphView


def reread_graph(result: Any, graph: Any, view: GraphView, templates: Templates) -> GraphView:
    """The view of an edited GraphDef; equal to what :func:`~amp_tf.graph.reader.read_graph` makes of it.

    Args:
        result: the edited GraphDef. Its first nodes are those of the original, in the same order.
        graph: the original.
        view: the original's view; its protos are not needed.
        templates: the known ops.

    Raises:
        GraphError: the edited graph is broken; the message names node and port.
    """
    count = view.node_count
    if len(result.node) < count:
        return read_graph(result, templates)
    changed = _find_changed(graph.node, result.node)
    added = range(count, len(result.node))
    names = [*view.names, *(result.node[node].name for node in added)]
    nodes = NodeReader(GraphTensors(names), templates, [*changed, *added])
    for numbers in pieces([*changed, *added]):
        protos = [result.node[node] for node in numbers]
        if any(proto.name != names[node] for proto, node in zip(protos, numbers, strict=True)):
            return read_graph(result, templates)  # nodes are missing, which shows when the views are compared
        nodes.read(protos)
    rows = zip(changed, nodes.signatures, strict=False)
    if not all(_has_same_outputs(view.signatures[node], signature) for node, signature in rows):
        return read_graph(result, templates)  # edges from the node to others, which did not change, must be read too
    return _merge(view, nodes, names, changed, result.node)


def _find_changed(before: Sequence[Any], after: Sequence[Any]) -> list[int]:
    """The numbers of the nodes that are not equal in all their fields."""
    pairs = zip(pieces(before), pieces(after), strict=False)
    differs = itertools.chain.from_iterable(map(ne, old, new) for old, new in pairs)
    return list(itertools.compress(itertools.count(), differs))


def _has_same_outputs(old: Signature, new: Signature) -> bool:
    """Whether a node's units and the ports that they type are where they were."""
    return len(old.slots) == len(new.slots) and old.outputs == new.outputs


def _merge(
    view: GraphView, nodes: NodeReader, names: list[str], changed: Sequence[int], protos: Sequence[Any]
) -> GraphView:
    """The original's view with the changed nodes in their places and the new ones at the end."""
    split = len(changed)
    signatures, devices, dtypes = view.signatures.copy(), view.devices.copy(), view.dtypes.copy()
    ends = list(itertools.accumulate((len(signature.slots) for signature in nodes.signatures), initial=0))
    for row, node in enumerate(changed):
        signatures[node], devices[node] = nodes.signatures[row], nodes.devices[row]
        dtypes[view.base[node] : view.base[node + 1]] = nodes.dtypes[ends[row] : ends[row + 1]]
    signatures += nodes.signatures[split:]
    devices += nodes.devices[split:]
    dtypes += nodes.dtypes[ends[split] :]
    base = [*view.base, *(view.unit_count + end - ends[split] for end in ends[split + 1 :])]
    is_kept = np.ones(view.node_count, np.bool_)
    is_kept[changed] = False
    edges = view.edges.at(is_kept[view.edges.dst_node]).followed_by(nodes.wires.edges(signatures, base))
    merged = GraphView(
        function=view.function,
        names=names,
        ops=[signature.op for signature in signatures],
        devices=devices,
        protos=protos,
        signatures=signatures,
        base=base,
        dtypes=dtypes,
        edges=edges.at(np.argsort(edges.dst_node, kind="stable")),
    )
    check_edge_types(merged)
    return merged
