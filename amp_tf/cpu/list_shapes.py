"""Infers the shapes of the tensors that loops keep in TensorLists, for the cost model.

TensorFlow knows no shape for an element of a list in a loop. All elements of a list mostly have the
same shape, and other shapes follow from it through the ops of a recurrent layer's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import reach
from amp_tf.graph.attributes import value_of, whole_number
from amp_tf.graph.datatypes import Node, Port
from amp_tf.graph.edges import Adjacency
from amp_tf.graph.sizes import KnownShapes, Shape, Shapes, element_count
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table


def follow_lists(view: GraphView, shapes: Shapes) -> Shapes:
    """Returns the shapes together with those that follow from the elements of TensorLists."""
    readers = view.nodes_with(table.TENSOR_LIST_ELEMENTS)
    if not readers:
        return shapes
    search = _Search(view, shapes)
    entered: list[Node] = []
    for entry in view.nodes_with(table.LOOP_ENTRIES):
        for source, _ in view.inputs(entry):
            entered.append(source)
    while entered:
        search.follow(entered)
        # A shape that follows from an element may be pushed to another list.
        entered = list(filter(search.find_element, readers))
    return KnownShapes({view.names[node]: found for node, found in search.found.items()}, shapes)


class _Search:
    """Follows shapes from node to node.

    Attributes:
        found: the shapes of the results of nodes with an unknown shape so far.
    """

    def __init__(self, view: GraphView, shapes: Shapes) -> None:
        self.view = view
        self.found: dict[Node, list[Shape | None]] = {}
        self._shapes = shapes
        handles = view.edges.at(np.asarray(view.dtypes)[view.edges.src_unit] == datatypes.VARIANT)
        self._handles = Adjacency(handles.src_node, handles.dst_node, view.node_count)

    def find_element(self, reader: Node) -> bool:
        """Finds the shape that a node reads from a list, and returns whether that is news."""
        port = table.TENSOR_LIST_ELEMENTS[self.view.ops[reader]]
        if not _is_open(self.shape(reader, port)):
            return False
        pushed: set[Shape | None] = set()  # the shapes of all elements of the list
        anywhere = np.ones(self.view.node_count, np.bool_)
        for source in reach([reader], anywhere, self._handles.inward):
            position = table.TENSOR_LIST_PUSHES.get(self.view.ops[source])
            if position is not None:
                pushed.add(self.inputs(source)[position])
        if len(pushed) != 1 or any(map(_is_open, pushed)):
            return False
        others = [self.shape(reader, other) for other in range(port)]
        self.found[reader] = [*others, *pushed]
        return True

    def follow(self, nodes: Sequence[Node]) -> None:
        """Finds the shapes that follow from the results of some nodes."""
        waiting = list(nodes)
        while waiting:
            for reader, _ in self.view.readers(waiting.pop()):
                rule = _RULES.get(self.view.ops[reader])
                if rule is None or not _is_open(self.shape(reader, 0)):
                    continue
                shapes = rule(self, reader)
                if shapes and not any(map(_is_open, shapes)):
                    self.found[reader] = shapes
                    waiting.append(reader)

    def shape(self, node: Node, port: Port) -> Shape | None:
        """Returns the shape of one result of a node."""
        shapes = self.found.get(node) or self._shapes.output_shapes(self.view.names[node])
        if port >= len(shapes):
            return None
        return shapes[port]

    def inputs(self, node: Node) -> list[Shape | None]:
        """Returns the shapes of the tensors that a node reads."""
        return [self.shape(source, port) for source, port in self.view.inputs(node)]

    def axis(self, node: Node, position: int, shape: Shape | None) -> int | None:
        """Returns the dimension of a shape that an input of a node names; it must be a constant."""
        source, _ = self.view.inputs(node)[position]
        if shape is None or self.view.ops[source] not in table.CONSTANTS:
            return None
        axis = whole_number(self.view.protos[source])
        if axis is None or not -len(shape) <= axis < len(shape):
            return None
        return axis % len(shape)


def _is_open(shape: Shape | None) -> bool:
    return element_count(shape) is None


def _as_any_input(search: _Search, node: Node) -> list[Shape | None]:
    known: Shape | None = None
    for shape in search.inputs(node):
        if not _is_open(shape):
            known = shape
            break
    return [known] * len(search.view.signatures[node].outputs)


def _merged(search: _Search, node: Node) -> list[Shape | None]:
    """Returns the shapes of a Merge: of the value, and of the number of the input taken."""
    return [_as_any_input(search, node)[0], ()]


def _broadcast(search: _Search, node: Node) -> list[Shape | None]:
    rows: list[Shape] = []
    for shape in search.inputs(node):
        if shape is None:
            return []
        rows.append(shape)
    rank = max(map(len, rows))
    aligned = [(1,) * (rank - len(row)) + row for row in rows]
    result = []
    for sizes in zip(*aligned, strict=True):
        result.append(max(sizes) if min(sizes) >= 0 else -1)
    return [tuple(result)]


def _joined(search: _Search, node: Node) -> list[Shape | None]:
    *parts, _ = search.inputs(node)
    first = parts[0]
    axis = search.axis(node, -1, first)
    if first is None or axis is None:
        return []
    size = 0
    for part in parts:
        if part is None or len(part) != len(first):
            return []
        if part[axis] < 0 or size < 0:
            size = -1
        else:
            size += part[axis]
    return [_with_size(first, axis, size)]


def _parted(search: _Search, node: Node) -> list[Shape | None]:
    whole = search.inputs(node)[-1]
    axis = search.axis(node, 0, whole)
    count = len(search.view.signatures[node].outputs)
    if whole is None or axis is None or not count:
        return []
    size = -1
    if whole[axis] > 0:
        size = whole[axis] // count
    return [_with_size(whole, axis, size)] * count


def _with_size(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _product(search: _Search, node: Node) -> list[Shape | None]:
    first, second = search.inputs(node)
    if first is None or second is None or not len(first) == len(second) == 2:
        return []
    proto = search.view.protos[node]
    rows = first[value_of(proto, "transpose_a").b]
    columns = second[not value_of(proto, "transpose_b").b]
    return [(rows, columns)]


_RULES: Mapping[str, Callable[[_Search, Node], list[Shape | None]]] = {
    **dict.fromkeys(table.ALIKE, _as_any_input),
    **dict.fromkeys(table.LOOP_MERGES, _merged),
    **dict.fromkeys(table.BROADCASTING, _broadcast),
    **dict.fromkeys(table.JOINING, _joined),
    **dict.fromkeys(table.PARTING, _parted),
    **dict.fromkeys(table.MATRIX_PRODUCT, _product),
}
