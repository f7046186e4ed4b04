"""The report of a rewrite, and that of the whole process.

It has counts at once, and a typed reason for every node on request. As plain data it is the
document of :mod:`amp_tf.reporting.document`, of which text, page and notebook view are made.

Hooks record each graph of a process here; the user and the summary line read it. Counts cover all
graphs. Reasons for every node are kept only for the last graphs, limited by their number of nodes:
a program that retraces without end must not fill the memory with reports.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from amp_tf.errors import ConfigError
from amp_tf.graph.names import closest, closest_layers, matcher
from amp_tf.painting.reasons import Code, Reason
from amp_tf.precision import Precision
from amp_tf.reporting import document, files
from amp_tf.reporting.figures import NO_PRODUCTS, Products
from amp_tf.reporting.files import AnyPath, Document, Row
from amp_tf.reporting.graphs import GraphReport, NodeReport
from amp_tf.reporting.text import Layers, plural, render, report_by_layer, why_no_node
from amp_tf.reporting.weights import Weights
from amp_tf.values import LAYER, check_pattern, dtype_name

_Test = Callable[[NodeReport], bool]


class Nodes(list[NodeReport]):
    """A list of nodes that can be filtered."""

    _whole: Nodes | None = None  # the list that it was filtered from

    def where(
        self,
        *,
        op: str | None = None,
        precision: Precision | str | None = None,
        reason: Code | str | None = None,
        function: str | None = None,
        layer: str | None = None,
    ) -> Nodes:
        """Returns the nodes that match all given arguments.

        Args:
            op: the op, such as ``"MatMul"``.
            precision: such as ``"bfloat16"``.
            reason: a :class:`~amp_tf.painting.reasons.Code` or its name, or words that the reason
                holds.
            function: the function that holds the node, empty for graphs themselves.
            layer: the path of a layer, such as ``"encoder/block_3"``, for all nodes inside; each
                name of it may be a regular expression.

        Raises:
            ConfigError: there is no such op, precision or reason, or no node of the whole list is
                in such a layer.
        """
        whole = self._whole or self
        nodes = Nodes(self)
        for value, test_of in (
            (op, _has_op),
            (precision, _has_precision),
            (reason, _has_reason),
            (function, _is_in_function),
            (layer, _is_in_layer),
        ):
            if value is not None:
                nodes = Nodes(filter(test_of(value, whole), nodes))
        nodes._whole = whole
        return nodes


def _has_op(op: Any, whole: Nodes) -> _Test:
    from tensorflow.python.framework import op_def_registry

    ops = {node.op for node in whole}
    if whole and op not in ops and op_def_registry.get(op) is None:
        raise _unknown("op", op, sorted(ops))
    return lambda node: node.op == op


def _has_precision(precision: Any, _: Nodes) -> _Test:
    name = dtype_name(precision)
    formats = [each.value for each in Precision]
    if name not in formats:
        raise _unknown("precision", str(precision), formats)
    return lambda node: node.precision.value == name


def _has_reason(reason: Any, whole: Nodes) -> _Test:
    if reason in Code.__members__:
        reason = Code[reason]
    if isinstance(reason, Code):
        return lambda node: node.reason.code is reason
    said = [rule.words for rule in Code]
    said += [str(node.reason) for node in whole]
    if not any(reason in words for words in said):
        raise _unknown("reason", reason, [*Code.__members__])
    return lambda node: reason in str(node.reason)


def _is_in_function(function: Any, _: Nodes) -> _Test:
    return lambda node: node.function == function


def _is_in_layer(layer: Any, whole: Nodes) -> _Test:
    matches = matcher(check_pattern(f"{LAYER}{layer}", where="Nodes.where(layer)"))
    if whole and not any(matches(node.name) for node in whole):
        layers = sorted({node.layer for node in whole} - {""})
        raise _unknown("layer", layer, layers, closest_layers(layer, layers))
    return lambda node: matches(node.name)


def _unknown(
    argument: str, asked: str, known: Sequence[str], close: Sequence[str] = ()
) -> ConfigError:
    close = close or closest(asked, known) or known[:3]
    return ConfigError(
        f"there is no {argument} {asked!r}",
        where=f"Nodes.where({argument})",
        fix=f"Write one that there is, such as {', '.join(map(repr, close))}",
    )


@dataclasses.dataclass(frozen=True)
class Totals:
    """Counts over several graphs.

    Attributes:
        graphs: the number of graphs and function bodies, by the way by which amp_tf got them:
            ``"offline"``, ``"grappler"`` or ``"xla"``.
        total: nodes seen.
        converted: nodes converted.
        casts: casts inserted.
        products: how much of them is 16 bit. Not compared, because it may have NaN.
        precisions: the 16-bit types in use.
        patterns: name rules, and the patterns of scopes, each with whether it matched a node of
            any graph.
        fused: products that stay in float32 because TensorFlow fused them.
    """

    graphs: dict[str, int] = dataclasses.field(default_factory=dict)
    total: int = 0
    converted: int = 0
    casts: int = 0
    products: Products = dataclasses.field(default=NO_PRODUCTS, compare=False)
    precisions: tuple[Precision, ...] = ()
    patterns: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    fused: int = 0

    def __str__(self) -> str:
        """Says ``4 graphs, 120 of 560 nodes converted to bfloat16 (97.2 % of …), 9 casts``."""
        graphs = plural(sum(self.graphs.values()), "graph")
        text = f"{graphs}, {self.converted:,} of {plural(self.total, 'node')} converted"
        if self.precisions:
            text += f" to {' and '.join(_values(self.precisions))}"
        if share := str(self.products):
            text += f" ({share})"
        return f"{text}, {plural(self.casts, 'cast')}"

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Name rules, and patterns of scopes, that matched no node of any graph, sorted."""
        return tuple(sorted(name for name, is_matched in self.patterns.items() if not is_matched))

    def plus(self, graph: GraphReport) -> Totals:
        """Returns the totals with one more graph."""
        graphs = {**self.graphs, graph.way: self.graphs.get(graph.way, 0) + 1}
        precisions = self.precisions
        if graph.converted and graph.precision and graph.precision not in precisions:
            precisions = (*precisions, graph.precision)
        patterns = dict(self.patterns)
        for pattern, is_matched in graph.painting.obstacles.patterns.items():
            patterns[pattern] = is_matched or patterns.get(pattern, False)
        return Totals(
            graphs=graphs,
            total=self.total + graph.total,
            converted=self.converted + graph.converted,
            casts=self.casts + graph.casts,
            products=self.products.plus(graph.products),
            precisions=precisions,
            fused=self.fused + graph.painting.count(Code.NO_FUSED_KERNEL),
            patterns=patterns,
        )


@dataclasses.dataclass(frozen=True, repr=False)
class RewriteReport:
    """The decisions of one rewrite, or of one process.

    Attributes:
        graphs: the graphs and function bodies, in the order in which they were rewritten.
        summary: the line that a process prints at exit, else empty. It also tells facts that no
            graph shows, such as failed rewrites.
        facts: the document's facts of the process that made it, by their keys there.
        weights: the variables of a SavedModel that was converted with 16-bit weights.
    """

    graphs: tuple[GraphReport, ...] = ()
    summary: str = dataclasses.field(default="", compare=False)
    facts: Document = dataclasses.field(default_factory=dict, repr=False, compare=False)
    weights: Weights | None = dataclasses.field(default=None, repr=False)

    @property
    def nodes(self) -> Nodes:
        """Every node of every graph, with its precision and the reason for it."""
        nodes = Nodes()
        for graph in self.graphs:
            nodes += graph.nodes
        return nodes

    @functools.cached_property
    def _totals(self) -> Totals:
        return functools.reduce(Totals.plus, self.graphs, Totals())

    @property
    def total(self) -> int:
        """Nodes seen."""
        return self._totals.total

    @property
    def converted(self) -> int:
        """Nodes converted."""
        return self._totals.converted

    @property
    def casts(self) -> int:
        """Casts inserted."""
        return self._totals.casts

    @property
    def products(self) -> Products:
        """How much of the matrix products and convolutions is 16 bit."""
        return self._totals.products

    @property
    def folded(self) -> int:
        """Normalizations multiplied into filters."""
        return sum(graph.folded for graph in self.graphs)

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The 16-bit types in use, each once."""
        return self._totals.precisions

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Name rules, and patterns of scopes, that matched no node of any graph."""
        return self._totals.unmatched

    @property
    def why_nothing(self) -> Reason | None:
        """The commonest reason among the graphs; ``None`` if something was converted."""
        if self.converted:
            return None
        reasons = [graph.why_nothing for graph in self.graphs if graph.why_nothing]
        telling = [reason for reason in reasons if reason.code is not Code.NOTHING_TO_CONVERT]
        counted = collections.Counter(telling or reasons)
        return max(counted, key=counted.__getitem__, default=None)

    @property
    def left_out(self) -> str:
        """Says of how many graphs of the process it has nodes and figures; empty if of all."""
        seen = sum(self.facts.get("totals", {}).get("graphs", {}).values())
        kept = len(self.graphs)
        with_figures = sum(graph.basis is not None for graph in self.graphs)
        parts = []
        if kept < seen:
            parts.append(f"nodes are those of {kept:,} of {plural(seen, 'graph')}")
        if 0 < with_figures < kept:
            parts.append(f"figures are those of {with_figures:,}")
        return ", and ".join(parts)

    def by_layer(self) -> Layers:
        """Reports each layer: a list of ``LayerReport`` that prints as a table.

        Layers have their paths in Keras where graphs were traced while amp_tf was on. A product
        that TensorFlow fused with a sum of the layer around it counts there.
        """
        return report_by_layer(self.graphs)

    def __repr__(self) -> str:
        """Lists the nodes that were converted, by op, and those left in float32, by reason."""
        summary = self.summary
        if not summary:
            summary = str(self._totals)
            if self.why_nothing:
                summary += f": {why_no_node(self.why_nothing)}"
        if self.left_out:
            summary += f"\n({self.left_out})"
        text = render(summary, self.nodes)
        if self.weights is not None:
            text += f"\n{self.weights}"
        return text

    def to_dict(self, *, seconds: float = math.inf) -> Row:
        """Returns the report as plain data, for JSON; ``schema_version`` is that of its form.

        Args:
            seconds: the time in which blockers may be tried.
        """
        plain: Row = {
            "schema": files.KIND,
            "schema_version": files.SCHEMA_VERSION,
            "converted": self.converted,
            "total": self.total,
            "casts": self.casts,
            "precisions": _values(self.precisions),
            "why_nothing": self.why_nothing and why_no_node(self.why_nothing),
            "summary": self.summary,
            "left_out": self.left_out,
            **_FACTS,
            **self.facts,
            **document.describe(self.graphs, seconds=seconds),
        }
        if self.weights is not None:
            plain["weights"] = [variable.to_row() for variable in self.weights.variables]
        return plain

    def to_json(self) -> str:
        """Returns the report as JSON; ``amp_tf/reporting/report-1.schema.json`` describes it."""
        return json.dumps(self.to_dict())

    def save(self, path: AnyPath) -> None:
        """Writes the report: a page if the name ends in ``.html``, JSON if it ends in ``.json``.

        Raises:
            FileError: the name ends in neither.
            OSError: the file cannot be written.
        """
        files.save(self.to_dict(), path)

    def _repr_html_(self) -> str:
        """Renders the view of a notebook: the page's figures, and the blockers."""
        return files.fragment(self.to_dict())


def _values(precisions: Iterable[Precision]) -> list[str]:
    return [precision.value for precision in precisions]


#: The facts of the process in a document that was made without one.
_FACTS: Document = {
    "process": {},
    "totals": {},
    "hooks": {},
    "settings": (),
    "devices": (),
    "loss_scales": (),
    "steps": (),
}
# Limits of the nodes in the reports that are kept; a node takes about 200 bytes.
MAX_CONVERTED = 250_000  # in graphs in which something was converted
MAX_UNTOUCHED = 50_000  # in the others
GRAPH_WEIGHT = 16  # the memory of a graph's report beside its nodes, in nodes
# The basis of figures takes four times the memory of a node, so it is kept for a fifth of them.
FIGURES_PART = 5


class Ledger:
    """Holds the reports of a process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forgets everything, for notebooks that measure one model after the other."""
        with self._lock:
            self._graphs: list[GraphReport] = []  # the last ones
            self._totals = Totals()

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Records anew in the block, after which everything is as it was before."""
        with self._lock:
            graphs = self._graphs
            totals = self._totals
        self.reset()
        try:
            yield
        finally:
            with self._lock:
                self._graphs = graphs
                self._totals = totals

    def record(self, new: RewriteReport, *, way: str) -> None:
        """Adds the report of one rewrite, whose graphs came by ``"grappler"`` or ``"xla"``.

        TensorFlow passes a graph to its optimizers more than once. A second visit is kept only if
        it converted more.
        """
        with self._lock:
            for graph in new.graphs:
                if graph.converted or not graph.is_revisit:
                    self._add(dataclasses.replace(graph, way=way))

    def _add(self, graph: GraphReport) -> None:
        """Keeps a graph, and drops the oldest of its kind where there are too many nodes.

        The oldest graphs lose first the basis of their figures, and then their place.
        """
        self._totals = self._totals.plus(graph)
        self._graphs.append(graph)
        most = MAX_UNTOUCHED
        if graph.converted:
            most = MAX_CONVERTED
        kept = []
        later = 0  # the nodes of later graphs of its kind
        for other in reversed(self._graphs):
            if bool(other.converted) is bool(graph.converted):
                if later >= most:
                    continue
                if later >= most // FIGURES_PART and other.basis is not None:
                    other = dataclasses.replace(other, basis=None)
                later += other.total + GRAPH_WEIGHT
            kept.append(other)
        self._graphs = kept[::-1]

    def of_process(self) -> RewriteReport:
        """Returns the graphs that are kept, in the order in which they came."""
        with self._lock:
            return RewriteReport(tuple(self._graphs))

    def totals(self) -> Totals:
        """Returns the counts of all graphs, including those whose reports were dropped."""
        with self._lock:
            return self._totals


_ledger = Ledger()
record = _ledger.record
of_process = _ledger.of_process
totals = _ledger.totals
reset = _ledger.reset
apart = _ledger.apart
