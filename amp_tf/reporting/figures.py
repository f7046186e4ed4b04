"""The cost of each node of a graph: operations, bytes, runs, and the estimated time.

Operations are floating-point operations of one run of the node. The operations of a product follow
from its shapes, with two for a multiplication and an addition. Any other op that computes counts
one operation for each element of the largest tensor that it reads or writes, and an op that only
moves values none. An unknown size counts as a batch of 64 if it is the first, and otherwise makes
the figure unknown: NaN.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.graph import datatypes
from amp_tf.graph.sizes import KnownShapes, Shapes, element_count, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import CASTS, CLEAR, CPU, DENY, INFER, PRODUCTS, ROWS
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.eligibility import NOTHING_FOLDED, Folded
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import Change
from amp_tf.painting.remapper import computed_with_products, costs_nothing
from amp_tf.painting.work import count_runs, operations_of


@dataclasses.dataclass(frozen=True)
class InsertedCast:
    """One cast that a rewrite inserted.

    Attributes:
        node: the number, in the view, of the node whose value is cast.
        port: its output.
        to_f16: whether it casts to 16 bit; else it casts to float32.
        readers: the number of inputs that read its result.
    """

    node: int
    port: int
    to_f16: bool
    readers: int


@dataclasses.dataclass(frozen=True, eq=False)
class Basis:
    """A graph as it was painted, with what is needed to paint it again.

    Attributes:
        view: the graph, with normalization folded and reads moved.
        shapes: the shapes of its tensors.
        config: the settings.
        resolution: the target and its lists.
        casts: those that the rewrite inserted.
        hoisted: the number of reads of variables that were moved out of loops.
        paint: paints the graph again under a change; the graph that runs stays as it is.
        folded: the nodes whose meaning changed when normalization was folded.
        peaks: bytes of tensors at the estimated peak of one run, in float32 and now; ``None`` for
            functions.
    """

    view: GraphView
    shapes: KnownShapes
    config: AmpConfig
    resolution: Resolution
    casts: tuple[InsertedCast, ...]
    hoisted: int
    paint: Callable[[Change], Painting]
    folded: Folded = NOTHING_FOLDED
    peaks: tuple[float, float] | None = None


_COMPUTES = frozenset(row.op for row in ROWS if row.op_list in (INFER, DENY))
_MOVES = CASTS.union(row.op for row in ROWS if row.op_list == CLEAR)


@dataclasses.dataclass(frozen=True, eq=False)
class Figures:
    """Figures of each node, as arrays.

    Attributes:
        is_product: whether its op is a product: a matmul, a convolution, a recurrent kernel.
        is_own: whether its result is 16 bit in the program itself.
        operations: floating-point operations of one run; NaN if unknown.
        elements: the number of elements of its float32 tensors, read and written; NaN if unknown.
        largest: the number of elements of the largest of these.
        runs: how often it runs in one run of the graph; in a loop of unknown length ten times.
    """

    is_product: Any
    is_own: Any
    operations: Any
    elements: Any
    largest: Any
    runs: Any

    @classmethod
    def of(cls, view: GraphView, shapes: Shapes) -> Figures:
        """Computes the figures of a graph."""
        is_product = view.mask_with(PRODUCTS)
        elements, largest, is_float32 = _tensors(view, shapes)
        # One operation per element: by the lists, or because a node maps float32 to float32.
        by_list = []
        for kind in view.of_kind:
            is_move = kind.op in _MOVES or kind.holds_functions
            by_list.append(kind.op in _COMPUTES or not is_move)
        computes = view.of_kinds(by_list, np.bool_) & is_float32
        per_element = np.where(np.isnan(elements), np.nan, largest)
        operations = np.where(computes, per_element, 0.0)
        for node in np.flatnonzero(is_product).tolist():
            known = operations_of(view, node, shapes)
            operations[node] = np.nan if known is None else round(known)
        is_own = np.array([_is_own(view, node) for node in range(view.node_count)], np.bool_)
        runs = np.array(count_runs(view).of_nodes, np.float64)
        return cls(is_product, is_own, operations, elements, largest, runs)

    @functools.cached_property
    def work(self) -> Any:
        """Operations of all runs of each node; zero where they are unknown."""
        return np.nan_to_num(self.operations) * self.runs


def _tensors(view: GraphView, shapes: Shapes) -> tuple[Any, Any, Any]:
    """Measures the float32 tensors of each node.

    Returns:
        Three arrays by node: elements of all its float32 tensors, elements of the largest, and
        whether it both reads and writes float32.
    """
    elements = np.zeros(view.node_count)
    largest = np.full(view.node_count, np.nan)
    reads = np.zeros(view.node_count, np.bool_)
    writes = np.zeros(view.node_count, np.bool_)
    is_float32 = (np.asarray(view.dtypes) == datatypes.FLOAT).tolist()
    # The element count of each output; a port beyond the known shapes is unknown.
    counts: list[list[float]] = []
    for name in view.names:
        sizes = map(element_count, shapes.output_shapes(name))
        counts.append([math.nan if size is None else size for size in sizes])

    def count(node: int, source: int, port: int) -> None:
        size = math.nan
        if port < len(counts[source]):
            size = counts[source][port]
        elements[node] += size
        largest[node] = np.fmax(largest[node], size)

    for node, signature in enumerate(view.signatures):
        for port, slot in enumerate(signature.outputs):
            if is_float32[view.base[node] + slot]:
                writes[node] = True
                count(node, node, port)
    for source, port, node, unit in view.edges.rows("src_node", "src_port", "dst_node", "dst_unit"):
        if is_float32[unit]:
            reads[node] = True
            count(node, source, port)
    return elements, largest, reads & writes


def has_costs(basis: Basis) -> bool:
    """Returns True if the cost model knows the device: it was measured on CPUs, in bfloat16."""
    target = basis.resolution.target
    return target is not None and target.lists.table == CPU


def percent(part: float | None) -> str:
    """Writes a share in percent; only all is 100 %, and only nothing is 0 %."""
    if part is None:
        return "unknown"
    if part >= 1:
        return "100 %"
    if part >= 0.9999:
        return ">99.9 %"
    if part >= 0.999:
        return "99.9 %"
    if 0 < part < 0.001:
        return "<0.1 %"
    return f"{100 * part:.3g} %"


@dataclasses.dataclass(frozen=True)
class Products:
    """Counts a graph's products.

    There are three counts: those that amp_tf converted, the program's own in 16 bit, and all.

    Attributes:
        work: the floating-point operations of these three; NaN if a size is unknown.
        nodes: the number of nodes of each.
    """

    work: tuple[float, ...] = (0.0, 0.0, 0.0)
    nodes: tuple[int, ...] = (0, 0, 0)

    @classmethod
    def of(cls, painting: Painting, shapes: KnownShapes) -> Products:
        """Counts the products of one run of a graph."""
        view = painting.view
        products = view.nodes_with(PRODUCTS)
        converted = set(painting.converted_nodes())
        counts: list[float | None] = [None] * len(products)
        if shapes:
            counts = [operations_of(view, node, shapes) for node in products]
        runs: Sequence[float] = ()
        if any(count is not None for count in counts):
            runs = count_runs(view).of_nodes
        work = [0.0, 0.0, 0.0]
        nodes = [0, 0, 0]
        for node, count in zip(products, counts, strict=True):
            operations = math.nan if count is None else count * runs[node]
            for place, is_one in enumerate((node in converted, _is_own(view, node), True)):
                nodes[place] += is_one
                # An unknown size makes all three unknown.
                work[place] += operations * is_one
        return cls(tuple(work), tuple(nodes))

    def plus(self, other: Products) -> Products:
        """Adds other counts."""
        work = map(operator.add, self.work, other.work)
        nodes = map(operator.add, self.nodes, other.nodes)
        return Products(tuple(work), tuple(nodes))

    @property
    def share(self) -> float | None:
        """The share of the operations that amp_tf converted; ``None`` if unknown or undefined."""
        converted, _, total = self.work
        if total > 0:
            return converted / total
        return None

    def __str__(self) -> str:
        """Says ``97.2 % of matmul and convolution work``, or node counts if sizes are unknown."""
        converted, own, total = self.nodes
        if not converted and not own:
            return ""
        if self.share is None:
            text = f"matmuls and convolutions: {converted:,} of {total:,}"
            in_program = f"{own:,}"
        else:
            text = f"{percent(self.share)} of matmul and convolution work"
            in_program = percent(self.work[1] / self.work[2])
        if not own:
            return text
        return f"{text}; {in_program} in 16 bit by the program itself"


NO_PRODUCTS = Products()


def times_before_and_now(basis: Basis, figures: Figures, is_f16: Any) -> tuple[Any, Any]:
    """Estimates the time of all runs of each node in float32 and now, without casts.

    Ops that TensorFlow computes with a product take no time of their own, but for a bias behind a
    product of matrices (:func:`amp_tf.painting.remapper.costs_nothing`). If normalization was
    folded, its multiplication ran over the convolution's result before. Now its sum and the ops
    behind it are one kernel with the convolution, as lifted ops are with their product.

    Args:
        basis: the graph.
        figures: of its nodes.
        is_f16: for each node, whether it computes in 16 bit now.

    Returns:
        Two arrays by node, in ns; zero if unknown.
    """
    from amp_tf.cpu.prices import Prices  # where costs are asked for: a GPU's are not known

    view = basis.view
    costs = basis.resolution.costs
    before = np.zeros(view.node_count)
    in_f16 = np.zeros(view.node_count)
    # Time of each node by itself; ops that only move values take time, too.
    is_measured = view.mask_with(costs.elements) & (np.nan_to_num(figures.elements) > 0)
    computes = np.nan_to_num(figures.work) > 0
    prices = Prices(view, basis.shapes, costs)
    for node in np.flatnonzero(is_measured | computes).tolist():
        if figures.is_product[node]:
            operations = float(figures.operations[node])
            elements = float(np.nan_to_num(figures.elements[node]))
            before[node], in_f16[node] = prices.product_of(node, operations, elements)
        else:
            before[node], in_f16[node] = prices.op(node, float(figures.largest[node]))
    # Now: without what is computed with a product.
    now = np.where(is_f16, in_f16, before)
    for node, product in computed_with_products(view, is_f16, basis.shapes).items():
        if costs_nothing(view, node, product):
            now[node] = 0.0
    # Before: without what was computed with a product, and with the folded multiplications.
    scale_of = {}
    for scale, product in view.edges.rows("src_node", "dst_node"):
        if scale in basis.folded.scales:
            scale_of[product] = scale
    fused = computed_with_products(view, np.zeros_like(is_f16), basis.shapes)
    for node, product in fused.items():
        is_free = costs_nothing(view, node, product)
        if is_free and product not in scale_of and node not in basis.folded.lifted:
            before[node] = 0.0
    for product, scale in scale_of.items():
        elements_scaled = float(elements_of(basis, product, 0) or 0)
        before[scale], _ = costs.of_op(view.ops[scale], elements_scaled)
    return before * figures.runs, now * figures.runs


def elements_of(basis: Basis, node: int, port: int) -> int | None:
    """Returns how many elements a result has; ``None`` if unknown."""
    return element_count(shape_of(basis.shapes, basis.view.names[node], port))


def _is_own(view: GraphView, node: int) -> bool:
    """Returns True if the first output of a node is 16 bit in the program itself."""
    outputs = view.signatures[node].outputs
    if not outputs:
        return False
    return view.dtypes[view.base[node] + outputs[0]] in (datatypes.HALF, datatypes.BFLOAT16)
