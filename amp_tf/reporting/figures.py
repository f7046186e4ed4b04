"""The cost of each node of a graph: operations, bytes, runs, and the time that the cost model
expects.

Operations are floating-point operations of one run of the node. Those of a product follow from its
shapes; a multiplication and an addition count as two. Any other op that computes counts one
operation for each element of the largest tensor that it reads or writes, and an op that only moves
values none. An unknown size counts as a batch of 64 if it is the first, and otherwise makes the
figure unknown: NaN.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.graph import datatypes
from amp_tf.graph.names import layer_of
from amp_tf.graph.sizes import KnownShapes, Shapes, element_count, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import CASTS, CLEAR, CPU, DENY, INFER, PRODUCTS, ROWS
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.eligibility import NOTHING_FOLDED, Folded
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import Change
from amp_tf.painting.reasons import Reason
from amp_tf.painting.remapper import computed_with_products
from amp_tf.painting.work import count_runs, operations_of
from amp_tf.precision import Precision


@dataclasses.dataclass(frozen=True)
class InsertedCast:
    """One cast that a rewrite inserted."""

    node: int  #: whose value is cast, by its number in the view
    port: int  #: the output
    to_f16: bool  #: whether it casts to 16 bit, and else to float32
    readers: int  #: how many inputs read its result


@dataclasses.dataclass(frozen=True, eq=False)
class Basis:
    """A graph as it was painted, with what is needed to paint it again."""

    view: GraphView  #: with its edges and nodes, once normalization was folded and reads were moved
    shapes: KnownShapes
    config: AmpConfig
    resolution: Resolution  #: what was converted here
    casts: tuple[InsertedCast, ...]
    hoisted: int  #: reads of variables that were moved out of loops
    paint: Callable[
        [Change], Painting
    ]  #: paints it again under a change; the graph that runs stays as it is
    folded: Folded = (
        NOTHING_FOLDED  #: the nodes that have another meaning since normalization was folded
    )
    #: bytes of tensors at the estimated peak of one run, in float32 and now; ``None`` for functions
    peaks: tuple[float, float] | None = None


_COMPUTES = frozenset(row.op for row in ROWS if row.op_list in (INFER, DENY))
_MOVES = CASTS.union(row.op for row in ROWS if row.op_list == CLEAR)


@dataclasses.dataclass(frozen=True, eq=False)
class Figures:
    """Arrays with an entry for each node."""

    is_product: (
        Any  #: whether 16 bit is for its op: matrix products, convolutions, recurrent kernels
    )
    is_own: Any  #: whether its result is 16 bit in the program itself, before amp_tf
    operations: Any  #: floating-point operations of one run; NaN if unknown
    elements: Any  #: of its float32 tensors, read and written; NaN if unknown
    largest: Any  #: elements of the largest of them
    runs: Any  #: how often it runs while the graph runs once; in a loop of unknown length ten times

    @classmethod
    def of(cls, view: GraphView, shapes: Shapes) -> Figures:
        """The figures of a graph."""
        elements, largest = np.zeros(view.node_count), np.full(view.node_count, np.nan)
        reads, writes = np.zeros((2, view.node_count), np.bool_)  # whether it does so with float32
        counts = [
            [
                math.nan if (size := element_count(shape)) is None else size
                for shape in shapes.output_shapes(name)
            ]
            for name in view.names
        ]
        is_float32 = (np.asarray(view.dtypes) == datatypes.FLOAT).tolist()
        outputs = (
            (node, port, node, view.base[node] + slot)
            for node, signature in enumerate(view.signatures)
            for port, slot in enumerate(signature.outputs)
        )
        inputs = view.edges.rows("src_node", "src_port", "dst_node", "dst_unit")
        for seen, rows in ((writes, outputs), (reads, inputs)):
            for source, port, node, unit in rows:
                if is_float32[unit]:
                    count = counts[source][port] if port < len(counts[source]) else math.nan
                    seen[node] = True
                    elements[node] += count
                    largest[node] = np.fmax(largest[node], count)
        # one operation per element: by the lists, or because a node maps float32 to float32
        by_list = (
            kind.op in _COMPUTES or not (kind.op in _MOVES or kind.holds_functions)
            for kind in view.of_kind
        )
        computes = view.of_kinds(by_list, np.bool_) & reads & writes
        is_product = np.fromiter((op in PRODUCTS for op in view.ops), np.bool_, view.node_count)
        operations = np.where(computes, np.where(np.isnan(elements), np.nan, largest), 0.0)
        for node in np.flatnonzero(is_product).tolist():
            known = operations_of(view, node, shapes)
            operations[node] = np.nan if known is None else round(known)
        runs = np.array(count_runs(view).of_nodes, np.float64)
        is_own = np.fromiter(
            (_is_own(view, node) for node in range(view.node_count)), np.bool_, view.node_count
        )
        return cls(is_product, is_own, operations, elements, largest, runs)

    @functools.cached_property
    def work(self) -> Any:
        """Operations of all runs of each node; zero where they are unknown."""
        return np.nan_to_num(self.operations) * self.runs


def converted_mask(painting: Painting) -> Any:
    """For each node, whether at least one of its types becomes 16 bit."""
    return np.isin(np.arange(painting.view.node_count), painting.converted_nodes())


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

    Of those that amp_tf converted, of those that are 16 bit in the program itself, and of all.
    """

    work: tuple[float, ...] = (
        0.0,
        0.0,
        0.0,
    )  #: floating-point operations; NaN where a size is unknown
    nodes: tuple[int, ...] = (0, 0, 0)

    @classmethod
    def of(cls, painting: Painting, shapes: Shapes) -> Products:
        """Those of one run of a graph."""
        view, products, converted = (
            painting.view,
            painting.view.nodes_with(PRODUCTS),
            {*painting.converted_nodes()},
        )
        counts = [operations_of(view, node, shapes) for node in products]
        runs = count_runs(view).of_nodes if any(count is not None for count in counts) else ()
        work, nodes = [0.0] * 3, [0] * 3
        for node, count in zip(products, counts, strict=True):
            for place, is_one in enumerate((node in converted, _is_own(view, node), True)):
                nodes[place] += is_one
                work[place] += math.nan if count is None else count * runs[node] * is_one
        return cls(tuple(work), tuple(nodes))

    def plus(self, other: Products) -> Products:
        """Both together."""
        work, nodes = (
            zip(self.work, other.work, strict=True),
            zip(self.nodes, other.nodes, strict=True),
        )
        return Products(tuple(map(sum, work)), tuple(map(sum, nodes)))

    @property
    def share(self) -> float | None:
        """The share of the operations that amp_tf converted; ``None`` where it is unknown or there
        are none.
        """
        converted, _, total = self.work
        return converted / total if total > 0 else None

    def __str__(self) -> str:
        """Such as ``97.2 % of matmul and convolution work``; numbers of nodes where sizes are
        unknown.
        """
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
    """The time of all runs of each node in the original float32 graph and now, without casts, in
    ns; zero if unknown.

    What TensorFlow computes with a product takes no time of its own
    (:func:`amp_tf.painting.remapper.computed_with_products`). Where normalization was folded, its
    multiplication ran over the convolution's result before; now its sum and what follows are one
    kernel with the convolution, as lifted ops are with their product.
    """
    from amp_tf.cpu.economy import Prices  # where costs are asked for: a GPU's are not known

    before, in_f16 = np.zeros((2, basis.view.node_count))
    costs = basis.resolution.costs
    is_measured = basis.view.mask_with(costs.elements)  # ops that only move values take time, too
    is_timed = is_measured & (np.nan_to_num(figures.elements) > 0) | (
        np.nan_to_num(figures.work) > 0
    )
    prices = Prices(basis.view, basis.shapes, costs)
    for node in np.flatnonzero(is_timed).tolist():
        if figures.is_product[node]:
            operations, elements = figures.operations[node], np.nan_to_num(figures.elements[node])
            before[node], in_f16[node] = prices.product_of(node, float(operations), float(elements))
        else:
            before[node], in_f16[node] = prices.op(node, float(figures.largest[node]))
    now = np.where(is_f16, in_f16, before)
    now[[*computed_with_products(basis.view, is_f16, basis.shapes)]] = 0.0
    ends = basis.view.edges.rows("src_node", "dst_node")
    scale_of = {product: scale for scale, product in ends if scale in basis.folded.scales}
    fused = computed_with_products(basis.view, np.zeros_like(is_f16), basis.shapes).items()
    before[
        [
            node
            for node, product in fused
            if not (product in scale_of or node in basis.folded.lifted)
        ]
    ] = 0.0
    for product, scale in scale_of.items():
        before[scale], _ = costs.of_op(
            basis.view.ops[scale], float(elements_of(basis, product, 0) or 0)
        )
    return before * figures.runs, now * figures.runs


def elements_of(basis: Basis, node: int, port: int) -> int | None:
    """How many elements a result has; ``None`` if unknown."""
    return element_count(shape_of(basis.shapes, basis.view.names[node], port))


def _is_own(view: GraphView, node: int) -> bool:
    outputs = view.signatures[node].outputs
    return bool(outputs) and view.dtypes[view.base[node] + outputs[0]] in (
        datatypes.HALF,
        datatypes.BFLOAT16,
    )


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """The precision of one node, and why."""

    name: str
    op: str
    function: str  #: that holds it, empty for the graph itself
    precision: Precision  #: what its result is computed in
    reason: Reason

    @property
    def layer(self) -> str:
        """The path of its layer in Keras where it was recorded, else the outermost scopes of its
        name.
        """
        return layer_of(self.name)


@dataclasses.dataclass(frozen=True)
class GraphReport:
    """One graph or function body."""

    function: str  #: its name, empty for a graph
    way: str  #: how it came: ``"offline"``, ``"grappler"`` or ``"xla"``
    precision: (
        Precision | None
    )  #: the 16-bit type; ``None`` where nothing can be converted on this machine
    total: int  #: nodes seen
    converted: int  #: nodes converted
    casts: int  #: casts inserted
    why_nothing: Reason | None  #: where nothing was converted, why
    is_revisit: bool  #: it had been rewritten before: TensorFlow runs its optimizers twice
    painting: Painting = dataclasses.field(repr=False, compare=False)
    folded: int = (
        0  #: normalizations that were multiplied into the filter of the convolution before them
    )
    products: Products = dataclasses.field(default=NO_PRODUCTS, compare=False)  # it may have NaN
    #: what its figures are found from; ``None`` where no report was asked for before it was
    #: rewritten
    basis: Basis | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def nodes(self) -> Iterator[NodeReport]:
        """Every node, in the order of the graph."""
        view, precision = self.painting.view, self.precision or Precision.FLOAT32
        for node, (name, op, is_f16) in enumerate(
            zip(view.names, view.ops, converted_mask(self.painting), strict=True)
        ):
            used = precision if is_f16 else Precision.FLOAT32
            yield NodeReport(name, op, self.function, used, self.painting.reason(node))


class GraphFigures:
    """The report of one graph, and its figures where a basis was kept."""

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
        """For each node, whether it computes in 16 bit, or the program itself has its result in 16
        bit.
        """
        return self.is_f16 | self.figures.is_own

    @property
    def basis(self) -> Basis:
        """What the figures are computed from; only for graphs that have one."""
        assert self.report.basis is not None
        return self.report.basis

    @functools.cached_property
    def figures(self) -> Figures:
        """Operations, elements and runs of each node."""
        return Figures.of(self.basis.view, self.basis.shapes)

    def gain(self, change: Change) -> tuple[float, float, int]:
        """What becomes 16 bit under a change: operations of all nodes, those of products, and the
        number of nodes.
        """
        after = converted_mask(self.basis.paint(change))
        figures = (
            Figures.of(self.basis.view, self.basis.shapes.filled())
            if change.shapes
            else self.figures
        )
        gained = figures.work * (after.astype(float) - self.is_f16)
        return (
            float(gained.sum()),
            float(gained[figures.is_product].sum()),
            int(after.sum() - self.is_f16.sum()),
        )
