"""The report of one graph, and of each of its nodes: what was decided, with the figures."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from amp_tf.graph.datatypes import mask_of
from amp_tf.graph.layers import layer_of
from amp_tf.graph.view import GraphView
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import Change
from amp_tf.painting.reasons import Reason
from amp_tf.precision import Precision
from amp_tf.reporting.figures import NO_PRODUCTS, Basis, Figures, Products


def _converted(painting: Painting) -> Any:
    """Tells for each node whether at least one of its types becomes 16 bit."""
    return mask_of(painting.converted_nodes(), painting.view.node_count)


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """The precision of one node, and why.

    Attributes:
        name: the node's name.
        op: such as ``"MatMul"``.
        function: the function that holds it; empty for the graph itself.
        precision: the precision of its result.
        reason: why.
    """

    name: str
    op: str
    function: str
    precision: Precision
    reason: Reason

    @property
    def layer(self) -> str:
        """The path of its layer in Keras if that was recorded, else its outermost scopes."""
        return layer_of(self.name)


@dataclasses.dataclass(frozen=True)
class GraphReport:
    """The rewrite of one graph or function body.

    Attributes:
        function: its name; empty for a graph.
        way: the way by which amp_tf got it: ``"offline"``, ``"grappler"`` or ``"xla"``.
        precision: the 16-bit type; ``None`` where nothing can be converted on this machine.
        total: nodes seen.
        converted: nodes converted.
        casts: casts inserted.
        why_nothing: where nothing was converted, why.
        is_revisit: whether it had been rewritten before; TensorFlow runs its optimizers twice.
        painting: the decisions.
        folded: normalizations that were multiplied into the filter of a convolution.
        products: how much of them is 16 bit. Not compared, because it may have NaN.
        basis: the source of its figures; ``None`` if no report was asked for before the rewrite.
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
    products: Products = dataclasses.field(default=NO_PRODUCTS, compare=False)
    basis: Basis | None = dataclasses.field(default=None, repr=False, compare=False)

    def precision_of(self, is_f16: bool) -> Precision:
        """Returns the precision of a node, by whether it was converted."""
        if is_f16 and self.precision is not None:
            return self.precision
        return Precision.FLOAT32

    @property
    def nodes(self) -> Iterator[NodeReport]:
        """Every node, in the order of the graph."""
        for node, is_f16 in enumerate(_converted(self.painting).tolist()):
            yield NodeReport(
                self.view.names[node],
                self.view.ops[node],
                self.function,
                self.precision_of(is_f16),
                self.painting.reason(node),
            )

    @property
    def view(self) -> GraphView:
        """The graph."""
        return self.painting.view

    @property
    def known_basis(self) -> Basis:
        """The source of its figures; only for graphs that have one."""
        assert self.basis is not None
        return self.basis

    @functools.cached_property
    def reasons(self) -> list[Reason]:
        """The reason of each node."""
        return list(map(self.painting.reason, range(self.view.node_count)))

    @functools.cached_property
    def is_f16(self) -> Any:
        """For each node, whether amp_tf has it compute in 16 bit."""
        return _converted(self.painting)

    @functools.cached_property
    def is_narrow(self) -> Any:
        """For each node, whether it computes in 16 bit, by amp_tf or by the program itself."""
        return self.is_f16 | self.figures.is_own

    @functools.cached_property
    def figures(self) -> Figures:
        """Operations, elements and runs of each node; only for graphs that have a basis."""
        return Figures.of(self.known_basis.view, self.known_basis.shapes)

    def gain(self, change: Change) -> tuple[float, float, int]:
        """Counts what a change turns to 16 bit.

        Returns:
            Operations of all nodes, operations of products, and the number of nodes.
        """
        figures = self.figures
        if change.shapes:
            figures = Figures.of(self.known_basis.view, self.known_basis.shapes.filled())
        turned = _converted(self.known_basis.paint(change)).astype(int) - self.is_f16
        gained = figures.work * turned
        of_products = gained[figures.is_product]
        return float(gained.sum()), float(of_products.sum()), int(turned.sum())


Graphs = Sequence[GraphReport]
