"""How many elements tensors have, as far as it is known before the graph runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from amp_tf.graph.attributes import nodes_with

NOMINAL_BATCH = 64  #: stands for a first dimension that is not known, which most often is the batch
SHAPES_ATTR = "_output_shapes"

Shape = tuple[int, ...]


class Shapes(Protocol):
    """Tells the static shapes of tensors."""

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shape of each output port of a node, -1 for an unknown dimension, ``None`` for an unknown rank.

        Empty if nothing is known of the node.
        """


def shape_of(shapes: Shapes, node: str, port: int = 0) -> Shape | None:
    """The shape of one output port of a node; ``None`` where not even its rank is known."""
    found = shapes.output_shapes(node)
    return found[port] if port < len(found) else None


class KnownShapes:
    """Shapes that were asked for once, and are kept."""

    def __init__(self, shapes: Mapping[str, Sequence[Shape | None]]) -> None:
        self._shapes = shapes

    @classmethod
    def of(cls, shapes: Shapes, names: Iterable[str]) -> KnownShapes:
        """What is known of some nodes."""
        return cls({name: found for name in names if (found := shapes.output_shapes(name))})

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shapes that were given."""
        return self._shapes.get(node, ())

    def and_also(self, shapes: Mapping[str, Sequence[Shape | None]]) -> KnownShapes:
        """These, and the shapes of other nodes."""
        return KnownShapes({**shapes, **self._shapes})

    def filled(self) -> KnownShapes:
        """The same, with :data:`NOMINAL_BATCH` for each dimension that is not known."""

        def fill(shape: Shape | None) -> Shape | None:
            return shape and tuple(NOMINAL_BATCH if size < 0 else size for size in shape)

        return KnownShapes({name: [fill(shape) for shape in shapes] for name, shapes in self._shapes.items()})


NO_SHAPES = KnownShapes({})


class AttributeShapes:
    """The shapes that nodes carry in the attribute ``_output_shapes``, which TensorFlow's exporters write."""

    def __init__(self, protos: Sequence[Any]) -> None:
        self._protos = protos

    @functools.cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {node.name: number for number, node in nodes_with(self._protos, SHAPES_ATTR)}

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shapes in the node's attribute."""
        number = self._numbers.get(node)
        if number is None:
            return ()
        return [read_shape(shape) for shape in self._protos[number].attr[SHAPES_ATTR].list.shape]


def read_shape(shape: Any) -> Shape | None:
    """The dimensions of a TensorShapeProto; the symbols below -1 by which Grappler tells unknown ones apart are -1."""
    return None if shape.unknown_rank else tuple(max(dim.size, -1) for dim in shape.dim)


def element_count(shape: Shape | None) -> int | None:
    """The number of elements, an unknown first dimension counted as :data:`NOMINAL_BATCH`.

    ``None`` where the rank or another dimension is unknown.
    """
    if shape is None or any(size < 0 for size in shape[1:]):
        return None
    return math.prod(NOMINAL_BATCH if size < 0 else size for size in shape)
