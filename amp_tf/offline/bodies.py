"""The graph and the functions of a SavedModel, in which variables are followed."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Container, Hashable
from typing import Any

from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import Node, Port
from amp_tf.graph.reader import RETVAL_OP, read_function, read_graph
from amp_tf.graph.templates import Templates, find_loop_bodies, referenced
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table

#: A place of a variable: its kind, and what tells it from others of that kind.
Place = tuple[Hashable, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """A graph or a function of a model.

    Attributes:
        meta: the number of its MetaGraph.
        view: the graph or function.
        preserved: the nodes whose results somebody fetches.
        is_loop_body: whether it is the body of a loop, and nothing else.
        is_called_once: whether a single node calls it, and no object does.
    """

    meta: int
    view: GraphView
    preserved: Container[str] = ()
    is_loop_body: bool = False
    is_called_once: bool = False

    def place(self, node: Node) -> Place:
        """Returns the place of a variable that a node is."""
        return ("node", self.meta, self.view.function, node)

    def handle(self, node: Node, port: Port) -> Place | None:
        """Returns the place from which a handle comes; ``None`` for other tensors."""
        view = self.view
        while view.ops[node] not in table.VARIABLE_HANDLES:
            if view.ops[node] == ARG_OP:
                if view.dtypes[view.base[node]] != datatypes.RESOURCE:
                    return None
                break
            if view.ops[node] in table.UNCHANGED:
                port = 0
            elif not table.is_loop(view.ops[node]):
                return None
            node, port = view.inputs(node)[port]
        return self.place(node)

    def gives_back(self, source: Node, node: Node) -> bool:
        """Tells whether a node is the result of a loop's body that gives back an argument."""
        result = node - len(self.view.nodes_with((ARG_OP,)))
        return self.is_loop_body and self.view.ops[node] == RETVAL_OP and source == result


def read_bodies(number: int, meta: Any, preserved: Container[str]) -> list[Body]:
    """Reads the graph and the functions of a MetaGraph."""
    graph = meta.graph_def
    functions = graph.library.function
    calls = collections.Counter(meta.object_graph_def.concrete_functions.keys())
    for nodes in (graph.node, *(function.node_def for function in functions)):
        for node in nodes:
            calls.update(referenced(node))
    loop_bodies = find_loop_bodies(functions)
    templates = Templates(graph.library)
    found = [Body(number, read_graph(graph, templates), preserved)]
    for function in functions:
        if function.signature.attr:  # each call chooses its types
            continue
        name = function.signature.name
        view = read_function(function, templates)
        is_loop_body = name in loop_bodies
        found.append(Body(number, view, is_loop_body=is_loop_body, is_called_once=calls[name] == 1))
    return found
