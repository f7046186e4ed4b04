"""A graph's report with its figures, each computed once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from amp_tf.graph.datatypes import Unit
from amp_tf.painting.changes import Change
from amp_tf.painting.reasons import Reason
from amp_tf.reporting.basis import Basis
from amp_tf.reporting.figures import Figures, converted_mask

if TYPE_CHECKING:
    from amp_tf.reporting.schema import GraphReport


class GraphFigures:
    """The report of one graph, and its figures where a basis was kept.

    Args:
        report: of the graph.
    """

    def __init__(self, report: GraphReport) -> None:
        self.report = report
        self.view = report.painting.view
        self.origins: dict[Unit, Unit] = {}  #: cache of where decisions came from

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
