"""What nodes take on a CPU in either type, from the shapes of their tensors."""

from __future__ import annotations

import functools
import math

from amp_tf.graph.datatypes import Node
from amp_tf.graph.sizes import Shapes, element_count
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
from amp_tf.painting.kernels import find_swishes
from amp_tf.painting.work import count_runs, filter_shape, input_shapes, operations_of

_SMALL = 8  # times fewer elements: what reading them takes does not count


class Prices:
    """What the nodes of a graph take on a CPU, as (in float32, in 16 bit), in ns.

    Args:
        view: the graph.
        shapes: the static shapes of its tensors.
        table: what ops take.

    Attributes:
        runs: how many times each node is taken to run.
        swishes: the nodes that TensorFlow's remapper will compute as one, if both have one type.
    """

    def __init__(self, view: GraphView, shapes: Shapes, table: CostTable) -> None:
        self.runs = count_runs(view)
        self.swishes = find_swishes(view)
        self._table, self._view, self._shapes = table, view, shapes
        # Of two nodes that are computed as one, the second does the work of both.
        self._op_of = {node: op for pair in self.swishes for node, op in zip(pair, (FREE_OP, SWISH), strict=True)}
        self.product = functools.cache(self._find_product)
        self._row = functools.cache(self._find_row)

    def op(self, node: Node, elements: float) -> Pair:
        """What one run of a node takes that is no product, by the elements of its largest tensor."""
        op, variant = self._row(node)
        return self._table.of_op(op, elements, variant)

    def casts(self, elements: float) -> Pair:
        """What casts of so many elements take, to float32 and to 16 bit, in ns."""
        return self._table.of_cast_to_float32(elements), self._table.of_cast_to_f16(elements)

    def product_of(self, node: Node, operations: float, elements: float) -> Pair:
        """What one run of a product takes.

        Args:
            node: the product.
            operations: that it is asked for.
            elements: of what it reads and writes.
        """
        op, variant = self._view.ops[node], self.variant(node)
        computed = operations * padding_factor(op, filter_shape(self._view, node, self._shapes), variant)
        return self._table.of_product(op, computed, elements, variant)

    def variant(self, node: Node) -> str:
        """What stands after the op of a product in the row of the table that tells its costs."""
        op, attributes = self._view.ops[node], self._view.protos[node].attr
        kernel = filter_shape(self._view, node, self._shapes)
        if op in SLOW_IF_STRIDED and any(stride > 1 for stride in attributes["strides"].list.i):
            return SLOW
        if op in SLOW_IF_LARGE and kernel is not None and math.prod(kernel[:2]) > VECTOR_TAPS:
            return SLOW
        if any((value := attributes.get(name)) is not None and value.b for name in TRANSPOSING):
            return TRANSPOSED
        layout = attributes.get("data_format")
        if layout is None or layout.s not in CHANNELS_FIRST_LAYOUTS:
            return ""
        return POINTWISE_FIRST if kernel is not None and math.prod(kernel[:-2]) == 1 else CHANNELS_FIRST

    def _find_product(self, node: Node) -> Pair | None:
        """What one run of a product takes; ``None`` if its shapes are unknown."""
        operations = operations_of(self._view, node, self._shapes)
        if operations is None:
            return None
        results = self._shapes.output_shapes(self._view.names[node])
        tensors = (*input_shapes(self._view, node, self._shapes), *results)
        return self.product_of(node, operations, sum(element_count(shape) or 0 for shape in tensors))

    def _find_row(self, node: Node) -> tuple[str, str]:
        """The op and the variant of the row of the table that tells what a node takes that is no product."""
        op = self._op_of.get(node, self._view.ops[node])
        outputs = self._shapes.output_shapes(self._view.names[node]) if op in BROADCASTING else ()
        if (result := element_count(outputs[0]) if outputs else None) is None:
            return op, ""
        counts = map(element_count, input_shapes(self._view, node, self._shapes))
        is_broadcast = any(count is not None and count * _SMALL <= result for count in counts)
        return op, BROADCAST if is_broadcast else ""
