"""The report of a rewrite: counts at once, and on request a typed reason for every node."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

from amp_tf.painting.outcome import Painting
from amp_tf.painting.reasons import Reason, Rule
from amp_tf.precision import Precision
from amp_tf.reporting.text import headline, render

SCHEMA_VERSION = 1


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """One node.

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
        unmatched: name rules that matched no node.
        is_revisit: the graph had been rewritten before (TensorFlow runs its optimizers twice).
        painting: what was decided, for :attr:`nodes`.
        folded: normalizations that were multiplied into the filter of the convolution before them.
    """

    function: str
    way: str
    precision: Precision | None
    total: int
    converted: int
    casts: int
    why_nothing: Reason | None
    unmatched: tuple[str, ...]
    is_revisit: bool
    painting: Painting = dataclasses.field(repr=False, compare=False)
    folded: int = 0

    @property
    def nodes(self) -> Iterator[NodeReport]:
        """Every node, in the order of the graph."""
        converted = set(self.painting.converted_nodes())
        view = self.painting.view
        for node, (name, op) in enumerate(zip(view.names, view.ops, strict=True)):
            is_converted = node in converted and self.precision is not None
            precision = self.precision if is_converted and self.precision else Precision.FLOAT32
            yield NodeReport(name, op, self.function, precision, self.painting.reason(node))


@dataclasses.dataclass(frozen=True)
class RewriteReport:
    """Everything that one rewrite, or one process, converted and left alone.

    Attributes:
        graphs: the graphs and function bodies, in the order in which they were rewritten.
        summary: of a process, the line that it prints at exit; else empty. It also tells what no graph shows: rewrites
            that failed, and why amp_tf is off.
    """

    graphs: tuple[GraphReport, ...] = ()
    summary: str = dataclasses.field(default="", compare=False)

    @property
    def nodes(self) -> list[NodeReport]:
        """Every node of every graph, with its precision and the reason for it."""
        return [node for graph in self.graphs for node in graph.nodes]

    @property
    def total(self) -> int:
        """Nodes seen."""
        return sum(graph.total for graph in self.graphs)

    @property
    def converted(self) -> int:
        """Nodes converted."""
        return sum(graph.converted for graph in self.graphs)

    @property
    def casts(self) -> int:
        """Casts inserted."""
        return sum(graph.casts for graph in self.graphs)

    @property
    def folded(self) -> int:
        """Normalizations multiplied into filters."""
        return sum(graph.folded for graph in self.graphs)

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The 16-bit types in use, each once."""
        used = (graph.precision for graph in self.graphs if graph.converted and graph.precision)
        return tuple(dict.fromkeys(used))

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Name rules that matched no node of any graph."""
        sets = [set(graph.unmatched) for graph in self.graphs]
        return tuple(sorted(set.intersection(*sets))) if sets else ()

    @property
    def why_nothing(self) -> Reason | None:
        """Where nothing was converted, the commonest reason among the graphs; ``None`` if something was."""
        if self.converted or not self.graphs:
            return None
        reasons = [graph.why_nothing for graph in self.graphs if graph.why_nothing is not None]
        informative = [reason for reason in reasons if reason.rule is not Rule.NOTHING_TO_CONVERT]
        counted = collections.Counter(informative or reasons)
        return counted.most_common(1)[0][0] if counted else None

    def counts_by_op(self) -> dict[str, tuple[int, int]]:
        """For each op: (nodes converted, nodes seen)."""
        counts: dict[str, list[int]] = {}
        for node in self.nodes:
            entry = counts.setdefault(node.op, [0, 0])
            entry[0] += node.precision.is_f16
            entry[1] += 1
        return {op: (converted, total) for op, (converted, total) in sorted(counts.items())}

    def __str__(self) -> str:
        """What was converted, by op, and what was left in float32, by reason."""
        summary = headline(len(self.graphs), self.converted, self.total, self.precisions, self.casts)
        summary += f": {self.why_nothing}" if self.why_nothing else ""
        return render(self.summary or summary, self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON; ``schema_version`` says which form this is."""
        return {
            "schema_version": SCHEMA_VERSION,
            "converted": self.converted,
            "total": self.total,
            "casts": self.casts,
            "precisions": [precision.value for precision in self.precisions],
            "why_nothing": str(self.why_nothing) if self.why_nothing else None,
            "summary": self.summary,
            "graphs": [_graph_to_dict(graph) for graph in self.graphs],
        }


def _graph_to_dict(graph: GraphReport) -> dict[str, Any]:
    return {
        "function": graph.function,
        "way": graph.way,
        "precision": graph.precision.value if graph.precision else None,
        "converted": graph.converted,
        "total": graph.total,
        "casts": graph.casts,
        "folded": graph.folded,
        "nodes": [
            {
                "name": node.name,
                "op": node.op,
                "precision": node.precision.value,
                "rule": node.reason.rule.name,
                "reason": str(node.reason),
            }
            for node in graph.nodes
        ],
    }
