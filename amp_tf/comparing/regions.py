"""Finds the nodes of a flat graph that run exactly once a step: those outside of loops and branches.

Values inside a loop belong to an iteration, and those of a branch may not exist, so neither can be passed to a
reduction outside.
"""

from __future__ import annotations

import graphlib
from typing import Any

_Taken = frozenset[tuple[str, str]]  # (the condition's tensor, the port of the Switch) of each branch around a node


def nodes_run_once(graph: Any) -> list[str]:
    """The nodes that run exactly once, sources before readers, by name."""
    nodes = {node.name: node for node in graph.node}
    sources = {name: [_node_of(text) for text in node.input] for name, node in nodes.items()}
    for name, node in nodes.items():
        if node.op.endswith("Merge"):  # the edge back into a loop would make a cycle
            sources[name] = [source for source in sources[name] if not nodes[source].op.endswith("NextIteration")]
    depth: dict[str, int] = {}
    taken: dict[str, _Taken] = {}
    order = list(graphlib.TopologicalSorter(sources).static_order())
    for name in order:
        node = nodes[name]
        around = max((depth[source] - nodes[source].op.endswith("Exit") for source in sources[name]), default=0)
        depth[name] = around + node.op.endswith("Enter")
        of_inputs = [_taken_by(text, nodes, depth, taken) for text in node.input if _node_of(text) in taken]
        is_merge = node.op.endswith("Merge")
        taken[name] = (
            (frozenset.intersection if is_merge else frozenset.union)(*of_inputs) if of_inputs else frozenset()
        )
    return [name for name in order if _is_outside(nodes[name].op, depth[name]) and not taken[name]]


def _is_outside(op: str, depth: int) -> bool:
    return depth - op.endswith("Exit") <= 0 and not op.endswith("Switch")  # one result of a Switch does not exist


def _taken_by(text: str, nodes: Any, depth: dict[str, int], taken: dict[str, _Taken]) -> _Taken:
    """The branches that an input of a node is in."""
    source = _node_of(text)
    node = nodes[source]
    if not node.op.endswith("Switch") or depth[source] > 0:
        return taken[source]
    return taken[source] | {(node.input[1], text.partition(":")[2] or "0")}


def _node_of(text: str) -> str:
    return text.removeprefix("^").partition(":")[0]
