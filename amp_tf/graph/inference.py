"""Shapes of a graph for batches of a given size, as TensorFlow infers them once the size is known.

A graph for any batch size has -1 in its place, and a Reshape to rows multiplies the batch with the
length of the sequence. So the graph is imported with the size filled in, and TensorFlow infers the
other shapes.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from amp_tf.graph import datatypes
from amp_tf.graph.names import node_of
from amp_tf.graph.protos import new_graph
from amp_tf.graph.sizes import SHAPES_ATTR, KnownShapes, Shape, Shapes, read_shape
from amp_tf.oplists.table import CONSTANTS, GIVEN, TENSOR_LIST_ELEMENTS


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
        """Infers the shapes in a function, or in the graph itself (``""``), for each batch size.

        There are none where the graph leaves no batch size open, or TensorFlow cannot import it.
        """
        body = self._bodies.get(function)
        if body is None:
            return {}
        try:
            nodes = self._nodes_of(body)
            if not any(map(_is_open, _given_shapes(nodes))):
                return {}
            return {size: KnownShapes(self._infer(nodes, size)) for size in self.sizes}
        except Exception:  # an op that is not registered here, or another error of the import
            return {}

    @functools.cached_property
    def _bodies(self) -> Mapping[str, Any]:
        """The graph, named ``""``, and all functions by name."""
        found = {"": self.graph}
        for function in self.library.function if self.library else ():
            found[function.signature.name] = function
        if hasattr(self.graph, "node_def"):
            found[self.graph.signature.name] = self.graph
        return found

    @functools.cached_property
    def _called(self) -> Any:
        """A ``tf.Graph`` that knows the functions of the library; bodies are imported into it."""
        import tensorflow as tf

        graph = tf.Graph()
        with graph.as_default():
            functions = new_graph(library=self.library)
            functions.versions.producer = tf.version.GRAPH_DEF_VERSION
            tf.graph_util.import_graph_def(functions, name="")
        return graph

    def _nodes_of(self, body: Any) -> Any:
        """Returns the nodes of a graph or function as a GraphDef; arguments are placeholders."""
        from tensorflow.python.framework import function_def_to_graph

        if not hasattr(body, "node_def"):
            return type(body)(node=body.node, versions=body.versions)
        with self._called.as_default():
            nodes, _ = function_def_to_graph.function_def_to_graph_def(body, _input_shapes(body))
        return nodes

    def _infer(self, nodes: Any, size: int) -> dict[str, Sequence[Shape | None]]:
        """Infers the shapes of all nodes of a GraphDef, by name, for one batch size."""
        from tensorflow.python.framework import importer

        filled = copy.deepcopy(nodes)
        for shape in filter(_is_open, _given_shapes(filled)):
            shape.dim[0].size = size
        _size_elements(filled, size)
        with self._called.as_default():
            scope = self._called.unique_name("of_batch")
            importer.import_graph_def_for_function(filled, name=f"{scope}/")
            shapes: dict[str, Sequence[Shape | None]] = {}
            for node in filled.node:
                operation = self._called.get_operation_by_name(f"{scope}/{node.name}")
                shapes[node.name] = [read_shape(out.shape.as_proto()) for out in operation.outputs]
            return shapes


def _is_open(shape: Any) -> bool:
    """Tells whether a TensorShapeProto has no size for its first dimension."""
    return bool(shape.dim) and shape.dim[0].size < 0


def _input_shapes(function: Any) -> list[Any] | None:
    """Returns the shapes of a function's arguments as its tracing left them.

    A handle has none here, because TensorFlow would take it for the shape of a value.
    """
    arguments = function.signature.input_arg
    shapes = function.attr["_input_shapes"].list.shape if "_input_shapes" in function.attr else ()
    if len(shapes) != len(arguments):
        return None
    found = list(shapes)
    for number, argument in enumerate(arguments):
        if argument.type == datatypes.RESOURCE:
            found[number] = None
    return found


def _given_shapes(graph: Any) -> Iterator[Any]:
    """Yields the shapes of a graph's inputs, as TensorShapeProtos."""
    for node in graph.node:
        if node.op not in GIVEN:
            continue
        if "shape" in node.attr:
            yield node.attr["shape"].shape
        if SHAPES_ATTR in node.attr:
            yield from node.attr[SHAPES_ATTR].list.shape


def _size_elements(graph: Any, size: int) -> None:
    """Sets the batch size in the constants that give the shapes of TensorLists' elements.

    The body of a recurrent layer's loop reads its inputs from a list that its caller made, and that
    constant is all that is known of their shapes.
    """
    import tensorflow as tf

    constants = {node.name: node for node in graph.node if node.op in CONSTANTS}
    for node in graph.node:
        if node.op not in TENSOR_LIST_ELEMENTS:
            continue
        inputs = [name for name in node.input if not name.startswith("^")]
        element_shape = constants.get(node_of(inputs[-1]))
        if element_shape is None:
            continue
        value = element_shape.attr["value"].tensor
        sizes = tf.make_ndarray(value)
        if sizes.ndim == 1 and sizes.size and sizes[0] < 0:
            value.CopyFrom(tf.make_tensor_proto([size, *sizes[1:]], sizes.dtype))
