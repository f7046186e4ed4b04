"""Shapes that follow from what loops keep in TensorLists, for what ops cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from amp_tf.graph import datatypes
from amp_tf.graph.attributes import value_of, whole_number
from amp_tf.graph.datatypes import Node
from amp_tf.graph.sizes import Shape, Shapes, element_count
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table


class ListShapes:
    """Shapes, and those that follow from what is kept in TensorLists."""

    def __init__(self, view: GraphView, shapes: Shapes) -> None:
        self.view = view
        self._shapes = shapes
        self._found: dict[Node, list[Shape | None]] = {}

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shape of each output port of a node."""
        found = self._followed.get(node)
        return self._shapes.output_shapes(node) if found is None else found

    @functools.cached_property
    def _followed(self) -> Mapping[str, Sequence[Shape | None]]:
        """The shapes of nodes of which not all were known."""
        view = self.view
        kept = view.nodes_with(table.TENSOR_LIST_ELEMENTS)
        entries = view.nodes_with(table.LOOP_ENTRIES) if kept else []
        new = [source for entry in entries for source, _ in self.view.inputs(entry)]
        while new:
            self._follow(new)
            new = []
            for node in kept:
                port = table.TENSOR_LIST_ELEMENTS[view.ops[node]]
                shape = self._element_shape(node) if _is_open(self._of(node, port)) else None
                if shape is not None:
                    self._found[node] = [*(self._of(node, before) for before in range(port)), shape]
                    new.append(node)
        return {view.names[node]: shapes for node, shapes in self._found.items()}

    def _follow(self, ready: list[int]) -> None:
        while ready:
            for reader, _ in self.view.readers(ready.pop()):
                rule = _RULES.get(self.view.ops[reader])
                if rule is None or not _is_open(self._of(reader, 0)):
                    continue
                shapes = rule(self, reader)
                if shapes and not any(map(_is_open, shapes)):
                    self._found[reader] = shapes
                    ready.append(reader)

    def inputs(self, node: int) -> list[Shape | None]:
        return [self._of(source, port) for source, port in self.view.inputs(node)]

    def number(self, node: int, position: int) -> int | None:
        """The whole number at one of a node's inputs, where it is a constant."""
        source, _ = self.view.inputs(node)[position]
        return (
            whole_number(self.view.protos[source])
            if self.view.ops[source] in table.CONSTANTS
            else None
        )

    def attribute(self, node: int, name: str) -> int:
        """A number or switch of a node, 0 where it has none."""
        value = value_of(self.view.protos[node], name)
        return int(value.i or value.b)

    def _of(self, node: int, port: int) -> Shape | None:
        found = self._found.get(node)
        shapes = self._shapes.output_shapes(self.view.names[node]) if found is None else found
        return shapes[port] if port < len(shapes) else None

    def _element_shape(self, node: int) -> Shape | None:
        """The shape that all have which are pushed to the list that a node reads."""
        view, pushed = self.view, set()
        ready, seen = [node], {node}
        while ready:
            for source, unit in view.edges.into(ready.pop()).rows("src_node", "src_unit"):
                if view.dtypes[unit] != datatypes.VARIANT or source in seen:
                    continue
                seen.add(source)
                ready.append(source)
                if view.ops[source] in table.TENSOR_LIST_PUSHES:
                    inputs, position = (
                        self.inputs(source),
                        table.TENSOR_LIST_PUSHES[view.ops[source]],
                    )
                    pushed.add(inputs[position] if position < len(inputs) else None)
        shape = pushed.pop() if len(pushed) == 1 else None
        return None if _is_open(shape) else shape


def _is_open(shape: Shape | None) -> bool:
    return element_count(shape) is None


def _as_any_input(search: ListShapes, node: int) -> list[Shape | None]:
    known = [shape for shape in search.inputs(node) if not _is_open(shape)]
    return [known[0] if known else None] * len(search.view.signatures[node].outputs)


def _merged(search: ListShapes, node: int) -> list[Shape | None]:
    """The value, and the number of the input that it came from."""
    return [_as_any_input(search, node)[0], ()]


def _broadcast(search: ListShapes, node: int) -> list[Shape | None]:
    shapes = search.inputs(node)
    if any(shape is None for shape in shapes):
        return [None]
    rank = max(len(shape or ()) for shape in shapes)
    rows = [(1,) * (rank - len(shape or ())) + (shape or ()) for shape in shapes]
    return [tuple(max(sizes) if -1 not in sizes else -1 for sizes in zip(*rows, strict=True))]


def _joined(search: ListShapes, node: int) -> list[Shape | None]:
    *shapes, _ = search.inputs(node)
    axis = search.number(node, -1)
    first = shapes[0] if shapes else None
    if first is None or axis is None or not -len(first) <= axis < len(first):
        return [None]
    if any(shape is None or len(shape) != len(first) for shape in shapes):
        return [None]
    sizes = [(shape or ())[axis] for shape in shapes]
    return [_with_size(first, axis, -1 if min(sizes) < 0 else sum(sizes))]


def _parted(search: ListShapes, node: int) -> list[Shape | None]:
    axis, count = search.number(node, 0), search.attribute(node, "num_split")
    *_, whole = search.inputs(node) or [None]
    if whole is None or axis is None or not -len(whole) <= axis < len(whole) or count < 1:
        return [None]
    return [_with_size(whole, axis, whole[axis] // count if whole[axis] > 0 else -1)] * count


def _with_size(shape: Shape, axis: int, size: int) -> Shape:
    axis %= len(shape)
    return (*shape[:axis], size, *shape[axis + 1 :])


def _product(search: ListShapes, node: int) -> list[Shape | None]:
    first, second = search.inputs(node)
    if first is None or second is None or not len(first) == len(second) == 2:
        return [None]
    return [
        (
            first[search.attribute(node, "transpose_a")],
            second[1 - search.attribute(node, "transpose_b")],
        )
    ]


_RULES: Mapping[str, Callable[[ListShapes, int], list[Shape | None]]] = {
    **dict.fromkeys(table.ALIKE, _as_any_input),
    **dict.fromkeys(table.LOOP_MERGES, _merged),
    **dict.fromkeys(table.BROADCASTING, _broadcast),
    **dict.fromkeys(table.JOINING, _joined),
    **dict.fromkeys(table.PARTING, _parted),
    **dict.fromkeys(table.MATRIX_PRODUCT, _product),
}
