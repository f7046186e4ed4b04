"""Reads a graph that was made from another by editing: only what differs from the original is read again.

Which nodes differ is found by comparing the bytes that will be handed out, all of them, with those that came in. So
nothing is taken on trust from the plan or the editor: an edit at a place that nobody planned shows like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amp_tf.graph.reader import GraphTensors, NodeReader, check_edge_types, read_nodes
from amp_tf.graph.serialized import NodeTable, join_fields, split_pieces
from amp_tf.graph.templates import Signature, Templates
from amp_tf.graph.view import GraphView
from amp_tf.graph.wiring import Ports


def reread_graph(result: Sequence[bytes], original: NodeTable, view: GraphView, templates: Templates) -> GraphView:
    """The view of an edited graph; equal to what :func:`~amp_tf.graph.reader.read_graph` makes of it.

    Args:
        result: the edited nodes as bytes, in pieces. The first are those of the original, in the same order.
        original: the original's nodes.
        view: the original's view.
        templates: the known ops.

    Returns:
        The view, without protos.

    Raises:
        GraphError: the edited graph is broken; the message names node and port.
    """
    numbers, different = original.differences(result)
    if len(different) < len(numbers):
        return _read_all(result, templates)  # nodes are missing, which shows when the views are compared
    changed = [number for number in numbers if number < view.node_count]
    names, are_kept = _names_after(view, changed, different)
    if not are_kept:
        return _read_all(result, templates)  # likewise
    nodes = NodeReader(GraphTensors(names), templates, numbers)
    nodes.read(different)
    del different
    rows = zip(changed, nodes.signatures, strict=False)
    if not all(_has_same_outputs(view.signatures[node], signature) for node, signature in rows):
        return _read_all(result, templates)  # edges from the node to others, which did not change, must be read too
    return _merge(view, nodes, names, changed)


def _names_after(view: GraphView, changed: Sequence[int], different: NodeTable) -> tuple[list[str], bool]:
    """The names of all nodes; and whether those of the old ones are what they were, and those of new ones new."""
    names = [node.name for node in different]
    are_kept = names[: len(changed)] == [view.names[number] for number in changed]
    added = names[len(changed) :]
    unique = frozenset(added)
    return [*view.names, *added], are_kept and len(unique) == len(added) and unique.isdisjoint(view.names)


def _read_all(result: Sequence[bytes], templates: Templates) -> GraphView:
    return read_nodes(join_fields(list(split_pieces(result))), templates)


def _has_same_outputs(old: Signature, new: Signature) -> bool:
    """Whether a node's units and the ports that they type are where they were."""
    return len(old.slots) == len(new.slots) and old.outputs == new.outputs


def _merge(view: GraphView, nodes: NodeReader, names: list[str], changed: Sequence[int]) -> GraphView:
    """The original's view with the changed nodes in their places and the new ones at the end."""
    split = len(changed)
    signatures, devices, dtypes = view.signatures.copy(), view.devices.copy(), view.dtypes[:]
    ends = Ports(nodes.signatures).base
    for row, node in enumerate(changed):
        signatures[node], devices[node] = nodes.signatures[row], nodes.devices[row]
        dtypes[view.base[node] : view.base[node + 1]] = nodes.dtypes[ends[row] : ends[row + 1]]
    signatures += nodes.signatures[split:]
    devices += nodes.devices[split:]
    dtypes += nodes.dtypes[ends[split] :]
    ports = Ports(signatures)
    is_kept = np.ones(view.node_count, np.bool_)
    is_kept[changed] = False
    edges = view.edges.at(is_kept[view.edges.dst_node]).followed_by(nodes.wires.edges(ports))
    merged = GraphView(
        function=view.function,
        names=names,
        ops=[signature.op for signature in signatures],
        devices=devices,
        protos=[],
        signatures=signatures,
        base=ports.base,
        dtypes=dtypes,
        edges=edges.at(np.argsort(edges.dst_node, kind="stable")),
    )
    check_edge_types(merged)
    return merged
