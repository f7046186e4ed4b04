"""Verification: what must hold after a rewrite, as rows of checks.

Reading a graph already proves that its names are unique, that no input dangles, that every op has the inputs it
expects, that control inputs come last and that types agree on every edge (:mod:`amp_tf.graph.reader`). The rows here
compare the graph before and after, and look for cycles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from amp_tf.graph.view import GraphView

LOOP_CLOSERS = frozenset({"NextIteration", "RefNextIteration"})


@dataclasses.dataclass(frozen=True)
class Check:
    """One row.

    Attributes:
        name: what is checked.
        find: returns a sentence on the first violation, or an empty string.
    """

    name: str
    find: Callable[[GraphView, GraphView], str]


def find_cycle(view: GraphView) -> str:
    """The name of a node on a cycle that no NextIteration closes, or an empty string."""
    node_count = view.node_count
    waiting = [0] * node_count
    readers: list[list[int]] = [[] for _ in range(node_count)]
    for source, node in zip(view.edges.src_node, view.edges.dst_node, strict=True):
        if view.ops[source] not in LOOP_CLOSERS:
            waiting[node] += 1
            readers[source].append(node)
    ready = [node for node in range(node_count) if not waiting[node]]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        for reader in readers[node]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if done == node_count:
        return ""
    return next(view.names[node] for node in range(node_count) if waiting[node])


def _nodes_kept(before: GraphView, after: GraphView) -> str:
    kept = after.names[: before.node_count] == before.names
    results = set(after.names) >= set(before.names)
    return "" if kept or results else "a node of the original graph is missing"


def _devices_kept(before: GraphView, after: GraphView) -> str:
    old, new = _devices(before), _devices(after)
    for name, device in old.items():
        if new.get(name) != device:
            return f"the device of {name!r} changed from {device!r} to {new.get(name)!r}"
    return ""


def _devices(view: GraphView) -> dict[str, str]:
    """By name, without a function's arguments and results: a result may share its name with a node of the body."""
    triples = zip(view.names, view.devices, view.protos, strict=True)
    return {name: device for name, device, proto in triples if proto is not None}


def _no_new_cycle(before: GraphView, after: GraphView) -> str:
    node = find_cycle(after)
    return f"{node!r} is on a cycle" if node and not find_cycle(before) else ""


CHECKS: tuple[Check, ...] = (
    Check("nodes kept", _nodes_kept),
    Check("devices kept", _devices_kept),
    Check("no new cycle", _no_new_cycle),
)


def find_violation(before: GraphView, after: GraphView) -> str:
    """A sentence on the first row that does not hold, or an empty string."""
    for check in CHECKS:
        found = check.find(before, after)
        if found:
            return f"{check.name}: {found}"
    return ""
