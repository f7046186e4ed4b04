"""Shapes of a graph for batches of a given size, as TensorFlow infers them once the size is known.

A graph that is to take any batch has -1 for its size, and behind a Reshape to rows nothing tells
the batch from the sequence. So the graph is imported with the size filled in, and TensorFlow
computes what follows from it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from amp_tf.graph import datatypes
from amp_tf.graph.sizes import SHAPES_ATTR, KnownShapes, Shape, Shapes
from amp_tf.oplists.table import GIVEN


@dataclasses.dataclass(frozen=True)
class BatchShapes:
    """Infers shapes for batches of some sizes.

    Attributes:
        graph: a GraphDef, or a FunctionDef that calls functions of ``library``.
        library: a FunctionDefLibrary; the functions in it are inferred, too.
        sizes: the batch sizes, without repetition.
    """

    graph: Any
    library: Any
    sizes: tuple[int, ...]

    def of(self, function: str) -> Mapping[int, Shapes]:
        """The shapes for each batch size, in a function or in the graph itself (``""``).

        None where the graph leaves no batch size open, and where TensorFlow cannot import it.
        """
        body = self._functions.get(function) if function else self.graph
        if body is None:
            return {}
        try:
            nodes = self._nodes_of(body)
            if not any(_is_open(shape) for shape in _given_shapes(nodes)):
                return {}
            return {size: KnownShapes(self._infer(nodes, size)) for size in self.sizes}
        except Exception:  # an op that is not registered here, or whatever else an import raises
            return {}

    @functools.cached_property
    def _functions(self) -> Mapping[str, Any]:
        functions = [*self.library.function] if self.library else []
        if hasattr(self.graph, "node_def"):
            functions.append(self.graph)
        return {function.signature.name: function for function in functions}

    @functools.cached_property
    def _called(self) -> Any:
        """A ``tf.Graph`` that knows the functions of the library, into which all others are
        imported.
        """
        import tensorflow as tf

        graph = tf.Graph()
        with graph.as_default():
            functions = tf.compat.v1.GraphDef(library=self.library)
            functions.versions.producer = tf.version.GRAPH_DEF_VERSION
            tf.graph_util.import_graph_def(functions, name="")
        return graph

    def _nodes_of(self, body: Any) -> Any:
        """A GraphDef of the nodes of a graph or function, whose arguments are placeholders."""
        from tensorflow.python.framework import function_def_to_graph

        if not hasattr(body, "node_def"):
            return type(body)(node=body.node, versions=body.versions)
        with self._called.as_default():
            nodes, _ = function_def_to_graph.function_def_to_graph_def(body, _input_shapes(body))
        return nodes

    def _infer(self, nodes: Any, size: int) -> dict[str, Sequence[Shape | None]]:
        """The shapes of all nodes of a GraphDef by name, the batch size filled in."""
        from tensorflow.python.framework import importer

        filled = type(nodes)()
        filled.CopyFrom(nodes)
        for shape in filter(_is_open, _given_shapes(filled)):
            shape.dim[0].size = size
        with self._called.as_default():
            scope = self._called.unique_name("of_batch")
            importer.import_graph_def_for_function(filled, name=f"{scope}/")
            operations = ((node.name, f"{scope}/{node.name}") for node in filled.node)
            return {
                name: [*map(_shape, self._called.get_operation_by_name(full).outputs)]
                for name, full in operations
            }


def _is_open(shape: Any) -> bool:
    """Whether a TensorShapeProto has no size for its first dimension."""
    return bool(shape.dim) and shape.dim[0].size < 0


def _input_shapes(function: Any) -> list[Any] | None:
    """The shapes of a function's arguments as its tracing left them; those of handles would be
    taken for values'.
    """
    arguments = function.signature.input_arg
    shapes = function.attr["_input_shapes"].list.shape if "_input_shapes" in function.attr else ()
    if len(shapes) != len(arguments):
        return None
    pairs = zip(arguments, shapes, strict=True)
    return [None if argument.type == datatypes.RESOURCE else shape for argument, shape in pairs]


def _given_shapes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        if node.op in GIVEN:
            if "shape" in node.attr:
                yield node.attr["shape"].shape
            if SHAPES_ATTR in node.attr:
                yield from node.attr[SHAPES_ATTR].list.shape


def _shape(output: Any) -> Shape | None:
    shape = output.shape
    if shape.rank is None:
        return None
    return tuple(-1 if size is None else size for size in shape.as_list())
