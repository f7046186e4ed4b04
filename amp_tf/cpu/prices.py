"""The times of nodes on a CPU, in float32 and in 16 bit, by a table of costs."""

from __future__ import annotations

import functools
import math

from amp_tf.graph.attributes import value_of
from amp_tf.graph.datatypes import Node
from amp_tf.graph.sizes import Shapes, element_count, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.cost_tables import (
    BROADCAST,
    CHANNELS_FIRST,
    CHANNELS_FIRST_LAYOUTS,
    FREE_OP,
    POINTWISE_FIRST,
    SLOW,
    SLOW_IF_LARGE,
    SLOW_IF_STRIDED,
    TRANSPOSED,
    TRANSPOSING,
    VECTOR_TAPS,
    CostTable,
    Pair,
    padding_factor,
)
from amp_tf.oplists.fusions import SWISH
from amp_tf.oplists.table import BROADCASTING
from amp_tf.painting.remapper import find_swishes
from amp_tf.painting.work import count_runs, filter_shape, input_shapes, operations_of

_SMALL = 8  #: an input with so many times fewer elements takes no time to read


class Prices:
    """The times of a graph's nodes on a CPU, as (in float32, in 16 bit), in ns.

    Attributes:
        runs: how many times each node is taken to run.
    """

    def __init__(self, view: GraphView, shapes: Shapes, table: CostTable) -> None:
        self.runs = count_runs(view)
        self._table = table
        self._view = view
        self._shapes = shapes
        # The second node of a swish has the time of both.
        self._op_of: dict[Node, str] = {}
        for gate, product in find_swishes(view):
            self._op_of[gate] = FREE_OP
            self._op_of[product] = SWISH
        self.product = functools.cache(self._find_product)
        self._row = functools.cache(self._find_row)

    def op(self, node: Node, elements: float) -> Pair:
        """Returns the time of one run of a node that is no product.

        Args:
            node: the node; products have :meth:`product`.
            elements: the number of elements of its largest tensor.
        """
        op, variant = self._row(node)
        return self._table.of_op(op, elements, variant)

    def product_of(self, node: Node, operations: float, elements: float) -> Pair:
        """Returns the time of one run of a product, by the elements of what it reads and writes."""
        op = self._view.ops[node]
        variant = self.variant(node)
        kernel = filter_shape(self._view, node, self._shapes)
        computed = operations * padding_factor(op, kernel, variant)
        results = element_count(shape_of(self._shapes, self._view.names[node])) or 0
        return self._table.of_product(op, computed, elements, variant, results)

    def variant(self, node: Node) -> str:
        """Returns the suffix of a product's row in the table of costs."""
        op = self._view.ops[node]
        proto = self._view.protos[node]
        kernel = filter_shape(self._view, node, self._shapes)
        if op in SLOW_IF_STRIDED and max(proto.attr["strides"].list.i, default=1) > 1:
            return SLOW
        if op in SLOW_IF_LARGE and kernel is not None and math.prod(kernel[:2]) > VECTOR_TAPS:
            return SLOW
        if any(value_of(proto, name).b for name in TRANSPOSING):
            return TRANSPOSED
        if value_of(proto, "data_format").s not in CHANNELS_FIRST_LAYOUTS:
            return ""
        if kernel is not None and math.prod(kernel[:-2]) == 1:
            return POINTWISE_FIRST
        return CHANNELS_FIRST

    def _find_product(self, node: Node) -> Pair | None:
        """Returns the time of one run of a product, ``None`` if its shapes are unknown."""
        operations = operations_of(self._view, node, self._shapes)
        if operations is None:
            return None
        results = self._shapes.output_shapes(self._view.names[node])
        tensors = (*input_shapes(self._view, node, self._shapes), *results)
        elements = sum(element_count(shape) or 0 for shape in tensors)
        return self.product_of(node, operations, elements)

    def _find_row(self, node: Node) -> tuple[str, str]:
        """Returns the op and the suffix of the row of a node that is no product."""
        op = self._op_of.get(node, self._view.ops[node])
        if op in BROADCASTING:
            result = element_count(shape_of(self._shapes, self._view.names[node]))
            for shape in input_shapes(self._view, node, self._shapes):
                count = element_count(shape)
                if count is not None and result is not None and count * _SMALL <= result:
                    return op, BROADCAST
        return op, ""
