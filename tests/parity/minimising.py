"""Makes a failing random graph small enough to read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from tensorflow.core.framework import graph_pb2

from tests.oracle import Knobs
from tests.parity.random_graphs import RandomGraph
from tests.parity.type_check import output_types

Fails = Callable[[RandomGraph], bool]


def smallest(graph: RandomGraph, fails: Fails) -> RandomGraph:
    """A part of the graph that still fails and that no single step makes smaller.

    The steps: default settings, one preserved node less, a node gone with its readers' inputs taken over by a new
    Placeholder, one control input or device less. A step at which ``fails`` raises counts as not failing.
    """
    changed = True
    while changed:
        changed = False
        for candidate in _steps(graph):
            if _fails(candidate, fails):
                graph, changed = candidate, True
                break
    return graph


def _fails(graph: RandomGraph, fails: Fails) -> bool:
    try:
        return fails(graph)
    except Exception:  # whatever a cut-up graph leads to, it is not the failure that is looked for
        return False


def _steps(graph: RandomGraph) -> Iterator[RandomGraph]:
    if graph.knobs != Knobs():
        yield dataclasses.replace(graph, knobs=Knobs())
    for name in graph.preserve if len(graph.preserve) > 1 else ():
        yield dataclasses.replace(graph, preserve=tuple(p for p in graph.preserve if p != name))
    for index in reversed(range(len(graph.graph_def.node))):
        cut = _without(graph, index)
        if cut is not None:
            yield cut
    for index, node in enumerate(graph.graph_def.node):
        if node.device or any(source.startswith("^") for source in node.input):
            plain = _copy(graph.graph_def)
            plain.node[index].device = ""
            del plain.node[index].input[:]
            plain.node[index].input.extend(source for source in node.input if not source.startswith("^"))
            yield dataclasses.replace(graph, graph_def=plain)


def _without(graph: RandomGraph, index: int) -> RandomGraph | None:
    gone = graph.graph_def.node[index]
    read = {source for node in graph.graph_def.node for source in node.input if _node(source) == gone.name}
    data = sorted(source for source in read if not source.startswith("^"))
    if gone.op == "Placeholder" and data:
        return None
    cut = _copy(graph.graph_def)
    del cut.node[index]
    types = output_types(gone)
    replaced = {}
    for source in data:
        port = int(source.partition(":")[2] or 0)
        placeholder = graph_pb2.GraphDef().node.add(name=f"p_{gone.name}_{port}", op="Placeholder")
        if types is None or port >= len(types):
            return None
        placeholder.attr["dtype"].type = types[port]
        placeholder.attr["shape"].shape.unknown_rank = True
        cut.node.insert(index, placeholder)
        replaced[source] = placeholder.name
    for node in cut.node:
        inputs = [replaced.get(source, source) for source in node.input if source != f"^{gone.name}"]
        del node.input[:]
        node.input.extend(inputs)
    fetchable = [node.name for node in cut.node if node.op != "NextIteration"]
    preserve = tuple(name for name in graph.preserve if name != gone.name) or tuple(fetchable[-1:])
    return dataclasses.replace(graph, graph_def=cut, preserve=preserve) if preserve else None


def _node(source: str) -> str:
    return source.removeprefix("^").partition(":")[0]


def _copy(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    copy = graph_pb2.GraphDef()
    copy.CopyFrom(graph_def)
    return copy
