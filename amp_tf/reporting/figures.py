"""The cost of each node of a graph: operations, bytes, runs, and the time that the cost model expects.

Operations are floating-point operations of one run of the node. Those of a product follow from its shapes; a
multiplication and an addition count as two. Any other op that computes counts one operation for each element of the
largest tensor that it reads or writes, and an op that only moves values none. An unknown size counts as a batch of 64
if it is the first, and otherwise makes the figure unknown: NaN.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.names import layer_of
from amp_tf.graph.sizes import KnownShapes, Shapes, element_count, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import CASTS, CLEAR, CPU, DENY, INFER, PRODUCTS, ROWS
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.eligibility import NOTHING_FOLDED, Folded
from amp_tf.painting.kernels import computed_with_products
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import Change
from amp_tf.painting.reasons import Reason
from amp_tf.painting.work import count_runs, operations_of
from amp_tf.precision import Precision


@dataclasses.dataclass(frozen=True)
class InsertedCast:
    """One cast that a rewrite inserted.

    Attributes:
        node, port: the output port whose value is cast; the number of the node in the view.
        to_f16: whether it casts to 16 bit, and else to float32.
        readers: how many inputs read its result.
    """

    node: int
    port: int
    to_f16: bool
    readers: int


@dataclasses.dataclass(frozen=True, eq=False)
class Basis:
    """A graph as it was painted, with what is needed to paint it again.

    Attributes:
        view: the graph, with its edges and nodes, once normalization was folded and reads were moved.
        shapes: the static shapes of its tensors.
        resolution: what was converted here.
        casts: those that the rewrite inserted.
        hoisted: reads of variables that were moved out of loops.
        paint: paints it again under a change, which does not touch the graph that runs.
        patterns: those of ``keep_float32``.
        folded: the nodes that have another meaning since normalization was folded.
        peaks: bytes of tensors at the estimated peak of one run, in float32 and now (:mod:`amp_tf.graph.sizes`);
            ``None`` for functions.
    """

    view: GraphView
    shapes: KnownShapes
    resolution: Resolution
    casts: tuple[InsertedCast, ...]
    hoisted: int
    paint: Callable[[Change], Painting]
    patterns: tuple[str, ...] = ()
    folded: Folded = NOTHING_FOLDED
    peaks: tuple[float, float] | None = None


_LISTS = {name: frozenset(row.op for row in ROWS if row.op_list == name) for name in (INFER, DENY, CLEAR)}
_COMPUTES = _LISTS[INFER] | _LISTS[DENY]
_MOVES = _LISTS[CLEAR] | CASTS
_FLOAT_BYTES, _F16_BYTES = 4, 2
CAST_BYTES = _FLOAT_BYTES + _F16_BYTES  #: that a cast reads and writes for each element


@dataclasses.dataclass(frozen=True, eq=False)
class Figures:
    """Arrays with an entry for each node.

    Attributes:
        is_product: whether 16 bit is for its op: matrix products, convolutions, recurrent kernels.
        is_own: whether its result is 16 bit in the program itself, before amp_tf.
        operations: floating-point operations of one run; NaN if unknown.
        elements: of its float32 tensors, read and written; NaN if unknown.
        largest: elements of the largest of them.
        runs: how often it runs while the graph runs once; a loop whose number of iterations is unknown counts as ten.
    """

    is_product: Any
    is_own: Any
    operations: Any
    elements: Any
    largest: Any
    runs: Any

    @classmethod
    def of(cls, view: GraphView, shapes: Shapes) -> Figures:
        """The figures of a graph."""
        elements, largest = _count_elements(view, shapes)
        is_product = np.fromiter((op in PRODUCTS for op in view.ops), np.bool_, view.node_count)
        operations = np.where(_computes(view), np.where(np.isnan(elements), np.nan, largest), 0.0)
        for node in np.flatnonzero(is_product).tolist():
            count = operations_of(view, node, shapes)
            operations[node] = np.nan if count is None else round(count)
        runs = np.array(count_runs(view).of_nodes, np.float64)
        is_own = np.fromiter((_is_own(view, node) for node in range(view.node_count)), np.bool_, view.node_count)
        return cls(is_product, is_own, operations, elements, largest, runs)

    @functools.cached_property
    def work(self) -> Any:
        """Operations of all runs of each node; zero where they are unknown."""
        return np.nan_to_num(self.operations) * self.runs

    def bytes(self, is_f16: Any) -> Any:
        """Bytes that one run of each node reads and writes.

        Args:
            is_f16: for each node, whether it computes in 16 bit.
        """
        return self.elements * np.where(is_f16, _F16_BYTES, _FLOAT_BYTES)


def converted_mask(painting: Painting) -> Any:
    """For each node, whether at least one of its types becomes 16 bit."""
    mask = np.zeros(painting.view.node_count, np.bool_)
    mask[painting.converted_nodes()] = True
    return mask


def has_costs(basis: Basis) -> bool:
    """Whether the cost model knows the device type: it was measured on CPUs, in bfloat16."""
    target = basis.resolution.target
    return target is not None and target.lists.table == CPU


def percent(part: float | None) -> str:
    """A share in percent; one that is not all, or not nothing, is not rounded to it."""
    if part is None:
        return "unknown"
    if 0.999 <= part < 1:
        return "99.9 %" if part < 0.9999 else ">99.9 %"
    if 0 < part < 0.001:
        return "<0.1 %"
    return f"{100 * part:.3g} %" if part < 1 else "100 %"


@dataclasses.dataclass(frozen=True)
class Products:
    """How much of the matrix products, convolutions and recurrent kernels is 16 bit.

    Attributes:
        work: floating-point operations of those that amp_tf converted, of those that are 16 bit in the program itself,
            and of all; NaN where a size is unknown.
        nodes: how many these are.
    """

    work: tuple[float, ...] = (0.0, 0.0, 0.0)
    nodes: tuple[int, ...] = (0, 0, 0)

    @classmethod
    def of(cls, painting: Painting, shapes: Shapes) -> Products:
        """Those of one run of a graph."""
        view, runs = painting.view, count_runs(painting.view).of_nodes
        converted, found = set(painting.converted_nodes()), NO_PRODUCTS
        for node in view.nodes_with(PRODUCTS):
            count, kinds = operations_of(view, node, shapes), (node in converted, _is_own(view, node), True)
            work = math.nan if count is None else count * runs[node]
            found = found.plus(cls(tuple(work * kind for kind in kinds), kinds))
        return found

    def plus(self, other: Products) -> Products:
        """Both together."""
        work, nodes = zip(self.work, other.work, strict=True), zip(self.nodes, other.nodes, strict=True)
        return Products(tuple(map(sum, work)), tuple(map(sum, nodes)))

    @property
    def share(self) -> float | None:
        """The share of the operations that amp_tf converted; ``None`` where it is unknown or there are none."""
        converted, _, total = self.work
        return converted / total if total > 0 else None

    def __str__(self) -> str:
        """Such as ``97.2 % of matmul and convolution work``; numbers of nodes where sizes are unknown."""
        if not any(self.nodes[:-1]):
            return ""
        if self.share is None:
            found, own, total = (f"{count:,}" for count in self.nodes)
            text = f"matmuls and convolutions: {found} of {total}"
        else:
            found, own, _ = (percent(work / self.work[-1]) for work in self.work)
            text = f"{found} of matmul and convolution work"
        return f"{text}; {own} in 16 bit by the program itself" if self.nodes[1] else text


NO_PRODUCTS = Products()


def times_before_and_now(basis: Basis, figures: Figures, is_f16: Any) -> tuple[Any, Any]:
    """The time of all runs of each node in the original float32 graph and now, without casts, in ns; zero if unknown.

    What TensorFlow computes with a product takes no time of its own
    (:func:`amp_tf.painting.kernels.computed_with_products`). Where normalization was folded, its multiplication ran
    over the convolution's result before; now its sum and what follows are one kernel with the convolution, as lifted
    ops are with their product.

    Args:
        is_f16: for each node, whether it computes in 16 bit.
    """
    from amp_tf.cpu.economy import Prices  # where costs are asked for: a GPU's are not known

    before, in_f16 = np.zeros((2, basis.view.node_count))
    costs = basis.resolution.costs
    is_measured = basis.view.mask_with(costs.elements)  # ops that only move values take time, too
    is_timed = is_measured & (np.nan_to_num(figures.elements) > 0) | (np.nan_to_num(figures.work) > 0)
    prices = Prices(basis.view, basis.shapes, costs)
    for node in np.flatnonzero(is_timed).tolist():
        if figures.is_product[node]:
            operations, elements = figures.operations[node], np.nan_to_num(figures.elements[node])
            before[node], in_f16[node] = prices.product_of(node, float(operations), float(elements))
        else:
            before[node], in_f16[node] = prices.op(node, float(figures.largest[node]))
    now = np.where(is_f16, in_f16, before)
    now[[*basis.folded.fused, *computed_with_products(basis.view, is_f16)]] = 0.0
    moved = basis.folded.fused | basis.folded.lifted
    before[[node for node in computed_with_products(basis.view, np.zeros_like(is_f16)) if node not in moved]] = 0.0
    for scale, product in basis.view.edges.rows("src_node", "dst_node"):
        if scale in basis.folded.scales:
            before[scale], _ = costs.of_op(basis.view.ops[scale], float(elements_of(basis, product, 0) or 0))
    return before * figures.runs, now * figures.runs


def elements_of(basis: Basis, node: int, port: int) -> int | None:
    """How many elements a result has; ``None`` if unknown."""
    return element_count(shape_of(basis.shapes, basis.view.names[node], port))


def _is_own(view: GraphView, node: int) -> bool:
    outputs = view.signatures[node].outputs
    return bool(outputs) and view.dtypes[view.base[node] + outputs[0]] in (datatypes.HALF, datatypes.BFLOAT16)


def _computes(view: GraphView) -> Any:
    """The nodes that count one operation per element: by the lists, or because they map float32 to float32."""
    by_list = view.of_kinds(
        (kind.op in _COMPUTES or not (kind.op in _MOVES or kind.holds_functions) for kind in view.of_kind), np.bool_
    )
    is_float32 = np.asarray(view.dtypes) == datatypes.FLOAT
    edges = view.edges
    reads, writes = np.zeros((2, view.node_count), np.bool_)
    reads[edges.dst_node[is_float32[edges.dst_unit]]] = True
    for node in np.flatnonzero(by_list).tolist():
        signature, base = view.signatures[node], view.base[node]
        writes[node] = any(is_float32[base + slot] for slot in signature.outputs)
    return by_list & reads & writes


def _count_elements(view: GraphView, shapes: Shapes) -> tuple[Any, Any]:
    """For each node, the elements of all its float32 tensors, and of the largest one whose size is known."""
    total, largest = np.zeros(view.node_count), np.full(view.node_count, np.nan)
    counts = [
        [math.nan if (known := element_count(shape)) is None else known for shape in shapes.output_shapes(name)]
        for name in view.names
    ]
    is_float32 = (np.asarray(view.dtypes) == datatypes.FLOAT).tolist()
    written = (
        (node, port, node, view.base[node] + slot)
        for node, signature in enumerate(view.signatures)
        for port, slot in enumerate(signature.outputs)
    )
    for source, port, node, unit in (*written, *view.edges.rows("src_node", "src_port", "dst_node", "dst_unit")):
        if is_float32[unit]:
            count = counts[source][port] if port < len(counts[source]) else math.nan
            total[node] += count
            largest[node] = np.fmax(largest[node], count)
    return total, largest


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """The precision of one node, and why.

    Attributes:
        name, op: the node.
        function: the function that holds it, empty for the graph itself.
        precision: what its result is computed in.
        reason: why.
    """

    name: str
    op: str
    function: str
    precision: Precision
    reason: Reason

    @property
    def layer(self) -> str:
        """The path of its layer in Keras where it was recorded, else the outermost scopes of its name."""
        return layer_of(self.name)


@dataclasses.dataclass(frozen=True)
class GraphReport:
    """One graph or function body.

    Attributes:
        function: the function's name, empty for a graph.
        way: how it came: ``"offline"``, ``"grappler"`` or ``"xla"``.
        precision: the 16-bit type; ``None`` where nothing can be converted on this machine.
        total: nodes seen.
        converted: nodes converted.
        casts: casts inserted.
        why_nothing: where nothing was converted, why; else ``None``.
        is_revisit: the graph had been rewritten before (TensorFlow runs its optimizers twice).
        painting: what was decided, for :attr:`nodes`.
        folded: normalizations that were multiplied into the filter of the convolution before them.
        products: how much of the work of matrix products and convolutions is 16 bit.
        basis: what its figures are found from; ``None`` where no report was asked for before it was rewritten.
    """

    function: str
    way: str
    precision: Precision | None
    total: int
    converted: int
    casts: int
    why_nothing: Reason | None
    is_revisit: bool
    painting: Painting = dataclasses.field(repr=False, compare=False)
    folded: int = 0
    products: Products = dataclasses.field(default=NO_PRODUCTS, compare=False)  # it may have NaN
    basis: Basis | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def nodes(self) -> Iterator[NodeReport]:
        """Every node, in the order of the graph."""
        converted = set(self.painting.converted_nodes())
        view = self.painting.view
        for node, (name, op) in enumerate(zip(view.names, view.ops, strict=True)):
            is_converted = node in converted and self.precision is not None
            precision = self.precision if is_converted and self.precision else Precision.FLOAT32
            yield NodeReport(name, op, self.function, precision, self.painting.reason(node))


class GraphFigures:
    """The report of one graph, and its figures where a basis was kept.

    Args:
        report: of the graph.
    """

    def __init__(self, report: GraphReport) -> None:
        self.report = report
        self.view = report.painting.view

    @functools.cached_property
    def reasons(self) -> list[Reason]:
        """The reason of each node."""
        return [self.report.painting.reason(node) for node in range(self.view.node_count)]

    @functools.cached_property
    def is_f16(self) -> Any:
        """For each node, whether amp_tf has it compute in 16 bit."""
        return converted_mask(self.report.painting)

    @functools.cached_property
    def is_narrow(self) -> Any:
        """For each node, whether it computes in 16 bit, or the program itself has its result in 16 bit."""
        return self.is_f16 | self.figures.is_own

    @property
    def basis(self) -> Basis:
        """What the figures are computed from; only for graphs that have one."""
        assert self.report.basis is not None
        return self.report.basis

    @property
    def list_of(self) -> Mapping[str, str]:
        """The list of each op that is on a list."""
        target = self.basis.resolution.target
        return target.lists.list_of if target else {}

    @functools.cached_property
    def figures(self) -> Figures:
        """Operations, elements and runs of each node."""
        return Figures.of(self.basis.view, self.basis.shapes)

    def gain(self, change: Change) -> tuple[float, float, int]:
        """What becomes 16 bit under a change: operations of all nodes, those of products, and the number of nodes."""
        after = converted_mask(self.basis.paint(change))
        figures = Figures.of(self.basis.view, self.basis.shapes.filled()) if change.shapes else self.figures
        gained = figures.work * (after.astype(float) - self.is_f16)
        return float(gained.sum()), float(gained[figures.is_product].sum()), int(after.sum() - self.is_f16.sum())
