"""Verification: what must hold after a rewrite, as rows of checks.

Reading a graph already proves that its names are unique, that no input dangles, that every op has the inputs it
expects, that control inputs come last and that types agree on every edge (:mod:`amp_tf.graph.reader`). The rows here
compare the graph before and after.

All rows look at arrays or lists as a whole. That there is no new cycle follows from the inputs: where each node reads
what it read before, apart from casts in between, a cycle would have been there before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from amp_tf.graph.serialized import NodeTable, table_of
from amp_tf.graph.view import GraphView

LOOP_ENTRIES = frozenset({"Enter", "RefEnter"})
LOOP_CLOSERS = frozenset({"NextIteration", "RefNextIteration"})
_CONVERTERS = frozenset({"Cast"})  # new nodes that hand on what they read


@dataclasses.dataclass(frozen=True)
class Check:
    """One row.

    Attributes:
        name: what is checked.
        find: returns a sentence on the first violation, or an empty string.
    """

    name: str
    find: Callable[[GraphView, GraphView], str]


def find_ring(ops: Sequence[str], links: Iterable[tuple[int, int]], node_count: int) -> int | None:
    """A node that waits for itself, by a ring that no NextIteration closes, or for one that does; ``None`` for none.

    Args:
        ops: of the nodes; further ones close no ring.
        links: (source, reader) of each edge.
        node_count: how many nodes there are.
    """
    closing = {node for node, op in enumerate(ops) if op in LOOP_CLOSERS}
    waiting = [0] * node_count
    readers: list[list[int]] = [[] for _ in range(node_count)]
    for source, reader in links:
        if source not in closing:
            waiting[reader] += 1
            readers[source].append(reader)
    ready = [node for node in range(node_count) if not waiting[node]]
    while ready:
        for reader in readers[ready.pop()]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return next((node for node in range(node_count) if waiting[node]), None)


def find_cycle(view: GraphView) -> str:
    """The name of a node on a cycle that no NextIteration closes, or an empty string."""
    links = zip(view.edges.src_node.tolist(), view.edges.dst_node.tolist(), strict=True)
    node = find_ring(view.ops, links, view.node_count)
    return "" if node is None else view.names[node]


def find_new_cycle(before: GraphView, after: GraphView) -> str:
    """A sentence on a cycle that an edit made, or an empty string; a graph that had one before proves nothing."""
    node = find_cycle(after)
    return f"{node!r} is on a cycle" if node and not find_cycle(before) else ""


def _nodes_kept(before: GraphView, after: GraphView) -> str:
    kept = _without_new(before, after, after.names) == list(before.names)
    return "" if kept else "a node of the original graph is missing"


def _ops_kept(before: GraphView, after: GraphView) -> str:
    return _first_change(before, "op", before.ops, _without_new(before, after, after.ops))


def _devices_kept(before: GraphView, after: GraphView) -> str:
    return _first_change(before, "device", before.devices, _without_new(before, after, after.devices))


def _no_new_cycle(before: GraphView, after: GraphView) -> str:
    if not _inputs_kept(before, after):
        return ""
    return find_new_cycle(before, after)


def _inputs_kept(before: GraphView, after: GraphView) -> str:
    """Each node must read the tensors that it read before, or casts of them."""
    edges = before.edges
    old_number = _old_numbers(before, after)
    found_reader, found_node, found_port = _without_casts(after, old_number)
    if not np.array_equal(found_reader, edges.dst_node):
        return "a node has not as many inputs as before"
    wrong = np.flatnonzero((found_node != edges.src_node) | (found_port != edges.src_port))
    if not len(wrong):
        return ""
    edge = wrong[0]
    new_number = np.flatnonzero(old_number >= 0)
    wanted = f"{before.names[edges.src_node[edge]]}:{edges.src_port[edge]}"
    found = f"{after.names[new_number[found_node[edge]]]}:{found_port[edge]}" if found_node[edge] >= 0 else "a new node"
    reader = before.names[edges.dst_node[edge]]
    return f"input {edges.dst_position[edge]} of {reader!r} comes from {found} instead of {wanted}"


def _rest_kept(before: GraphView, after: GraphView) -> str:
    """What is no type and no data input must be as it was: other attributes, control inputs."""
    old, new = _table(before), _table(after)
    node = old.find_change(new)
    while node >= 0 and _rest(old[node]) == _rest(new[node]):  # protobuf wrote the same in other bytes, or a default
        node = old.find_change(new, node + 1)
    if node < 0:
        return ""
    if before.function:  # its arguments come first
        node += next(number for number, proto in enumerate(before.protos) if proto is not None)
    return f"an attribute that is no type, or a control input, of {before.names[node]!r} changed"


def _rest(proto: Any) -> tuple[list[str], dict[str, bytes]]:
    """The control inputs, and the attributes that are no types."""
    attributes = {key: value for key, value in proto.attr.items() if not (value.type or value.list.type)}
    return (
        [text for text in proto.input if text[:1] == "^"],
        {key: value.SerializeToString(deterministic=True) for key, value in attributes.items()},
    )


def _table(view: GraphView) -> NodeTable:
    protos = view.protos
    return protos if isinstance(protos, NodeTable) else table_of(proto for proto in protos if proto is not None)


CHECKS: tuple[Check, ...] = (
    Check("nodes kept", _nodes_kept),
    Check("ops kept", _ops_kept),
    Check("devices kept", _devices_kept),
    Check("no new cycle", _no_new_cycle),
    Check("inputs kept", _inputs_kept),
    Check("rest kept", _rest_kept),
)


def find_violation(before: GraphView, after: GraphView) -> str:
    """A sentence on the first row that does not hold, or an empty string."""
    for check in CHECKS:
        found = check.find(before, after)
        if found:
            return f"{check.name}: {found}"
    return ""


def _result_count(view: GraphView) -> int:
    """The number of a function's results, which are its last nodes; 0 for a graph."""
    bodies = [node for node, proto in enumerate(view.protos) if proto is not None] if view.function else []
    return view.node_count - bodies[-1] - 1 if bodies else 0


def _without_new(before: GraphView, after: GraphView, values: Sequence[str]) -> list[str]:
    """Of one value a node, those of the nodes that were there before: new nodes follow the graph or function body."""
    results = _result_count(after)
    return [*values[: before.node_count - results], *values[len(values) - results :]]


def _old_numbers(before: GraphView, after: GraphView) -> Any:
    """For each node the number that it had before, -1 for new ones."""
    results = _result_count(after)
    numbers = np.full(after.node_count, -1, np.int32)
    numbers[: before.node_count - results] = np.arange(before.node_count - results)
    numbers[after.node_count - results :] = np.arange(before.node_count - results, before.node_count)
    return numbers


def _without_casts(after: GraphView, old_number: Any) -> tuple[Any, Any, Any]:
    """What the nodes that were there before read once new casts are skipped.

    Returns:
        Three arrays with one entry for each of their inputs, in order: the number that the reading node had before,
        likewise of the node that it reads (-1 for a new one that is no cast, or stands in a ring of casts), its port.
    """
    edges = after.edges
    into_old = old_number[edges.dst_node] >= 0
    node, port = edges.src_node[into_old], edges.src_port[into_old]
    feeds = np.flatnonzero(~into_old)
    feeds = feeds[[after.ops[reader] in _CONVERTERS for reader in edges.dst_node[feeds]]]
    behind_node, behind_port = np.arange(after.node_count), np.zeros(after.node_count, np.int32)
    behind_node[edges.dst_node[feeds]] = edges.src_node[feeds]
    behind_port[edges.dst_node[feeds]] = edges.src_port[feeds]
    for _ in feeds:  # casts of casts are followed to their end, rings as often as there are casts
        is_new = old_number[node] < 0
        if not is_new.any():
            break
        node, port = np.where(is_new, behind_node[node], node), np.where(is_new, behind_port[node], port)
    return old_number[edges.dst_node[into_old]], old_number[node], port


def _first_change(before: GraphView, what: str, old: Sequence[str], new: Sequence[str]) -> str:
    if old == new:
        return ""
    node = next(node for node, (one, other) in enumerate(zip(old, new, strict=True)) if one != other)
    return f"the {what} of {before.names[node]!r} changed from {old[node]!r} to {new[node]!r}"
