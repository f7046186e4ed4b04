"""Graphs of a running program, as what the rewrite takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def graph_def_of(graph: Any, preserve: Iterable[str]) -> tuple[Any, Iterable[str]]:
    """The GraphDef of a ``tf.Graph`` or a concrete function, with its shapes, and the nodes to preserve.

    Args:
        graph: one of these, or anything else, which is given back.
        preserve: names of nodes; those of a concrete function's inputs and outputs come on top.
    """
    if hasattr(graph, "as_graph_def"):
        return graph.as_graph_def(add_shapes=True), preserve
    if all(hasattr(graph, name) for name in ("graph", "inputs", "outputs", "structured_outputs")):
        ends = [tensor.op.name for tensor in (*graph.inputs, *graph.outputs)]
        given = [preserve] if isinstance(preserve, str) else preserve
        return graph.graph.as_graph_def(add_shapes=True), [*given, *ends]
    return graph, preserve
