"""The report of a rewrite, and that of the whole process: counts at once, a typed reason for every
node on request.

As plain data it is the document of :mod:`amp_tf.reporting.document`; text, page and notebook view
are made of that.

Hooks record each graph of a process here; the user and the line at exit read it. Counts cover all
graphs. Reasons for every node are kept only for the last graphs, limited by their number of nodes:
a program that retraces without end must not fill the memory with reports.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import enum
import functools
import json
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_tf.errors import ConfigError
from amp_tf.graph.names import closest_layers, matcher
from amp_tf.painting.reasons import Reason, Rule
from amp_tf.precision import Precision
from amp_tf.reporting import document, files
from amp_tf.reporting.figures import NO_PRODUCTS, GraphReport, NodeReport, Products
from amp_tf.reporting.text import Layers, plural, render, report_by_layer, why_no_node
from amp_tf.values import LAYER, check_pattern, dtype_name


class Nodes(list[NodeReport]):
    """A list of nodes that can be filtered."""

    _whole: Nodes | None = None  # what it was filtered from, if it was

    def where(
        self,
        *,
        op: str | None = None,
        precision: Precision | str | None = None,
        reason: Rule | str | None = None,
        function: str | None = None,
        layer: str | None = None,
    ) -> Nodes:
        """The nodes that match all given arguments.

        Args:
            op: the op, such as ``"MatMul"``.
            precision: such as ``"bfloat16"``.
            reason: a :class:`~amp_tf.painting.reasons.Rule` or its name, or words that the reason
                holds.
            function: the function that holds the node, empty for graphs themselves.
            layer: the path of a layer, such as ``"encoder/block_3"``, for all nodes inside; each
                name of it may be a regular expression.

        Raises:
            ConfigError: there is no such op, precision or reason, or no node of the whole list is
                in such a layer.
        """
        from tensorflow.python.framework import op_def_registry as registry

        whole = self if self._whole is None else self._whole
        is_in_layer = (
            None
            if layer is None
            else matcher(check_pattern(f"{LAYER}{layer}", where="Nodes.where(layer)"))
        )
        wanted, formats = dtype_name(precision), [each.value for each in Precision]
        if precision is not None and wanted not in formats:
            raise _unknown("precision", str(precision), formats)
        if (
            op is not None
            and whole
            and op not in (ops := {node.op for node in whole})
            and registry.get(op) is None
        ):
            raise _unknown("op", op, sorted(ops))
        rule = Rule.__members__.get(reason) if isinstance(reason, str) else reason
        if isinstance(reason, str) and rule is None:
            said = (*(each.words for each in Rule), *(str(node.reason) for node in whole))
            if not any(reason in words for words in said):
                raise _unknown("reason", reason, [each.name for each in Rule])
        if is_in_layer is not None and whole and not any(is_in_layer(node.name) for node in whole):
            layers = sorted({node.layer for node in whole} - {""})
            raise _unknown("layer", str(layer), layers, closest_layers(str(layer), layers))
        found = Nodes(
            node
            for node in self
            if (op is None or node.op == op)
            and (wanted is None or node.precision.value == wanted)
            and (
                reason is None
                or (node.reason.rule is rule if rule else str(reason) in str(node.reason))
            )
            and (function is None or node.function == function)
            and (is_in_layer is None or is_in_layer(node.name))
        )
        found._whole = whole
        return found


def _unknown(
    argument: str, asked: str, known: Sequence[str], close: Sequence[str] = ()
) -> ConfigError:
    close = close or difflib.get_close_matches(asked, known, n=3, cutoff=0.5) or known[:3]
    what, fix = (
        f"there is no {argument} {asked!r}",
        f"Write one that there is, such as {', '.join(map(repr, close))}",
    )
    return ConfigError(what, where=f"Nodes.where({argument})", fix=fix)


@dataclasses.dataclass(frozen=True)
class Totals:
    """Counts over several graphs."""

    #: graphs and function bodies by the way they came: ``"offline"``, ``"grappler"`` or ``"xla"``
    graphs: dict[str, int] = dataclasses.field(default_factory=dict)
    total: int = 0  #: nodes seen
    converted: int = 0  #: nodes converted
    casts: int = 0  #: casts inserted
    products: Products = dataclasses.field(default=NO_PRODUCTS, compare=False)  # it may have NaN
    precisions: tuple[Precision, ...] = ()  #: the 16-bit types in use
    #: name rules, and the patterns of scopes, each with whether it matched a node of any graph
    patterns: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    fused: int = 0  #: products that stay in float32 because TensorFlow fused them

    def __str__(self) -> str:
        """Such as ``4 graphs, 120 of 560 nodes converted to bfloat16 (97.2 % of matmul and
        convolution work)``.
        """
        kinds = " and ".join(precision.value for precision in self.precisions)
        counts = (
            f"{plural(sum(self.graphs.values()), 'graph')}, {self.converted:,} of "
            f"{plural(self.total, 'node')}"
        )
        share = f" ({products})" if (products := str(self.products)) else ""
        return (
            f"{counts} converted{f' to {kinds}' if kinds else ''}{share}, "
            f"{plural(self.casts, 'cast')}"
        )

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Name rules, and patterns of scopes, that matched no node of any graph, sorted."""
        return tuple(
            sorted(pattern for pattern, is_matched in self.patterns.items() if not is_matched)
        )

    def plus(self, graph: GraphReport) -> Totals:
        """The totals with one more graph."""
        obstacles = graph.painting.obstacles
        used = (
            (*self.precisions, graph.precision)
            if graph.converted and graph.precision
            else self.precisions
        )
        return Totals(
            graphs={**self.graphs, graph.way: self.graphs.get(graph.way, 0) + 1},
            total=self.total + graph.total,
            converted=self.converted + graph.converted,
            casts=self.casts + graph.casts,
            products=self.products.plus(graph.products),
            precisions=tuple(dict.fromkeys(used)),
            fused=self.fused + graph.painting.count(Rule.NO_FUSED_KERNEL),
            patterns={
                pattern: self.patterns.get(pattern, False) or obstacles.patterns.get(pattern, False)
                for pattern in {**self.patterns, **obstacles.patterns}
            },
        )


@dataclasses.dataclass(frozen=True)
class RewriteReport:
    """Everything that one rewrite, or one process, converted and left alone.

    Attributes:
        graphs: the graphs and function bodies, in the order in which they were rewritten.
        summary: of a process, the line that it prints at exit; else empty. It also says what no
            graph shows: rewrites that failed, and why amp_tf is off.
        facts: what the document says of the process in which it was made, by its keys there.
        weights: of a SavedModel that was converted with 16-bit weights, which variables those are.
    """

    graphs: tuple[GraphReport, ...] = ()
    summary: str = dataclasses.field(default="", compare=False)
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    weights: Weights | None = dataclasses.field(default=None, repr=False)

    @property
    def nodes(self) -> Nodes:
        """Every node of every graph, with its precision and the reason for it."""
        return Nodes(node for graph in self.graphs for node in graph.nodes)

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
        """Where nothing was converted, the commonest reason among the graphs; ``None`` if something
        was.
        """
        if self.converted or not self.graphs:
            return None
        reasons = [graph.why_nothing for graph in self.graphs if graph.why_nothing is not None]
        informative = [reason for reason in reasons if reason.rule is not Rule.NOTHING_TO_CONVERT]
        counted = collections.Counter(informative or reasons)
        return counted.most_common(1)[0][0] if counted else None

    def counts_by_op(self) -> dict[str, tuple[int, int]]:
        """For each op: (nodes converted, nodes seen)."""
        nodes = self.nodes
        converted = collections.Counter(node.op for node in nodes if node.precision.is_f16)
        return {
            op: (converted[op], total)
            for op, total in sorted(collections.Counter(n.op for n in nodes).items())
        }

    def by_layer(self) -> Layers:
        """What became of each layer: a list of :class:`~amp_tf.reporting.text.LayerReport` that
        prints as a table.

        Layers have their paths in Keras where graphs were traced while amp_tf was on. A product
        that TensorFlow fused with a sum of the layer around it counts there.
        """
        return report_by_layer(self.graphs)

    def __str__(self) -> str:
        """What was converted, by op, and what was left in float32, by reason."""
        summary = (
            f"{self._totals}: {why_no_node(self.why_nothing)}"
            if self.why_nothing
            else str(self._totals)
        )
        text = render(self.summary or summary, self.nodes)
        return text if self.weights is None else f"{text}\n{self.weights}"

    def to_dict(self, *, seconds: float = math.inf) -> dict[str, Any]:
        """The report as plain data, for JSON; ``schema_version`` is that of its form.

        As many blockers are tried as fit in some seconds.
        """
        return {
            "schema": files.KIND,
            "schema_version": files.SCHEMA_VERSION,
            "converted": self.converted,
            "total": self.total,
            "casts": self.casts,
            "precisions": [precision.value for precision in self.precisions],
            "why_nothing": why_no_node(self.why_nothing) if self.why_nothing else None,
            "summary": self.summary,
            **{name: {} for name in ("process", "totals", "hooks")},
            **dict.fromkeys(("settings", "devices", "loss_scales", "steps"), ()),
            **self.facts,
            **document.describe(self.graphs, seconds=seconds),
            **(
                {}
                if self.weights is None
                else {"weights": [one.to_row() for one in self.weights.variables]}
            ),
        }

    def to_json(self) -> str:
        """The report as JSON; ``amp_tf/reporting/report-1.schema.json`` describes it."""
        return json.dumps(self.to_dict())

    def save(self, path: str | Path) -> None:
        """Writes the report: a page for people where the name ends in ``.html``, JSON where it ends
        in ``.json``.

        Raises:
            FileError: it ends in neither.
            OSError: the file cannot be written.
        """
        files.save([self.to_dict()], path)

    def _repr_html_(self) -> str:
        """What a notebook shows: the figures on top of the page, and what keeps work in float32."""
        return files.fragment(self.to_dict())


_MEGABYTE = 1e6


class Kept(enum.Enum):
    """Why a variable stays float32; each completes "'name': …"."""

    UNREAD = "no converted node reads it"
    READ = "is read in float32 by {where}"
    WRITTEN = "is written by {where}"
    HANDED_ON = "is passed to {where}, whose use of it is not known"
    PARTITIONED = "is saved in parts"
    REFERENCE = "is a reference variable of TensorFlow 1, whose type all its readers share"
    RANGE = "holds values that 16 bit makes infinite"
    DISTRIBUTED = "has copies on several devices"


@dataclasses.dataclass(frozen=True)
class StoredVariable:
    """A float32 variable of a model, as the checkpoint has it."""

    name: str  #: where it is not known, its key
    key: str  #: of its values in the checkpoint
    shape: tuple[int, ...]
    precision: Precision  #: in which it is stored now
    kept: Kept | None = None  #: why that is float32; ``None`` where it is not
    where: str = ""  #: the node that kept it, if one did

    @property
    def size(self) -> int:
        """Its bytes now."""
        return math.prod(self.shape) * (2 if self.precision.is_f16 else 4)

    @property
    def why(self) -> str:
        """Why it stays float32, in words."""
        return "" if self.kept is None else self.kept.value.format(where=repr(self.where))

    def to_row(self) -> dict[str, Any]:
        """As a document has it."""
        precision = self.precision.value
        return {
            "name": self.name,
            "key": self.key,
            "shape": [*self.shape],
            "precision": precision,
            "why": self.why,
        }


@dataclasses.dataclass(frozen=True)
class Weights:
    """The float32 variables of a model once it was converted with 16-bit weights, the largest
    first.
    """

    variables: tuple[StoredVariable, ...]

    @property
    def stored(self) -> tuple[StoredVariable, ...]:
        """Those in 16 bit."""
        return tuple(variable for variable in self.variables if variable.precision.is_f16)

    def __str__(self) -> str:
        """Such as ``weights: 4 of 6 variables stored in bfloat16, 12.6 MB become 6.3``, and why the
        others are not.
        """
        before = sum(math.prod(variable.shape) * 4 for variable in self.variables) / _MEGABYTE
        after = sum(variable.size for variable in self.variables) / _MEGABYTE
        kind = f" in {self.stored[0].precision.value}" if self.stored else " in 16 bit"
        lines = [
            f"weights: {len(self.stored):,} of {len(self.variables):,} variables stored{kind}, "
            f"{before:,.1f} MB become {after:,.1f}"
        ]
        for kept in dict.fromkeys(variable.kept for variable in self.variables if variable.kept):
            group = [variable for variable in self.variables if variable.kept is kept]
            size = sum(variable.size for variable in group) / _MEGABYTE
            example = f"such as {group[0].name!r}: {group[0].why}"
            lines.append(
                f"  {plural(len(group), 'variable')} ({size:,.1f} MB) in float32, {example}"
            )
        return "\n".join(lines)


MAX_CONVERTED = (
    250_000  # nodes of the graphs in which something was converted; a node takes about 200 bytes
)
MAX_UNTOUCHED = 50_000  # nodes of the others
BASIS_WEIGHT = 4  # factor for a node whose graph is kept for figures
GRAPH_WEIGHT = 16  # the memory of a graph's report beside its nodes, in nodes


def _weight(graph: GraphReport) -> int:
    return graph.total * (1 if graph.basis is None else 1 + BASIS_WEIGHT) + GRAPH_WEIGHT


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

    def record(self, new: RewriteReport, *, way: str) -> None:
        """Adds the report of one rewrite, whose graphs came by ``"grappler"`` or ``"xla"``.

        TensorFlow passes a graph to its optimizers more than once. A second visit is kept only if
        it converted more.
        """
        kept = [
            dataclasses.replace(graph, way=way)
            for graph in new.graphs
            if graph.converted or not graph.is_revisit
        ]
        with self._lock:
            for graph in kept:
                self._totals = self._totals.plus(graph)
                self._graphs.append(graph)
                most = MAX_CONVERTED if graph.converted else MAX_UNTOUCHED
                alike = [
                    other
                    for other in self._graphs
                    if bool(other.converted) is bool(graph.converted)
                ]
                while len(alike) > 1 and sum(map(_weight, alike)) > most:
                    oldest = alike.pop(0)
                    self._graphs = [other for other in self._graphs if other is not oldest]

    def of_process(self) -> RewriteReport:
        """The graphs that are kept, in the order in which they came."""
        with self._lock:
            return RewriteReport(tuple(self._graphs))

    def totals(self) -> Totals:
        """The counts of all graphs, including those whose reports were dropped."""
        with self._lock:
            return self._totals


_ledger = Ledger()
record, of_process, totals, reset = (
    _ledger.record,
    _ledger.of_process,
    _ledger.totals,
    _ledger.reset,
)
