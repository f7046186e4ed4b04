"""The report of the whole process: hooks record each graph here; the user and the line at exit read it.

Counts cover all graphs. Reasons for every node are kept only for the last graphs, limited by their number of nodes: a
program that retraces without end must not fill the memory with reports.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Mapping

from amp_tf.painting.locked import Match, surest
from amp_tf.painting.reasons import Rule
from amp_tf.precision import Precision
from amp_tf.reporting.figures import NO_PRODUCTS, GraphReport, Products
from amp_tf.reporting.schema import RewriteReport

MAX_CONVERTED = 250_000  # nodes of the graphs in which something was converted; a node takes about 200 bytes
MAX_UNTOUCHED = 50_000  # nodes of the others
BASIS_WEIGHT = 4  # factor for a node whose graph is kept for figures
GRAPH_WEIGHT = 16  # the memory of a graph's report beside its nodes, in nodes


@dataclasses.dataclass(frozen=True)
class Totals:
    """Counts since the process began."""

    #: graphs and function bodies by the way they came, ``"grappler"`` or ``"xla"``
    graphs: dict[str, int] = dataclasses.field(default_factory=dict)
    total: int = 0  #: nodes seen
    converted: int = 0  #: nodes converted
    casts: int = 0  #: casts inserted
    products: Products = dataclasses.field(default=NO_PRODUCTS, compare=False)  # it may have NaN
    precisions: tuple[Precision, ...] = ()  #: the 16-bit types in use
    unmatched: tuple[str, ...] = ()  #: name rules that matched no node of any graph
    locked: tuple[Match, ...] = ()  #: what was found for each decision of the lock file, the surest of all graphs
    fused: int = 0  #: products that stay in float32 because TensorFlow fused them
    #: the patterns of scopes, each with whether it matched a node of any graph
    of_scopes: Mapping[str, bool] = dataclasses.field(default_factory=dict)

    @property
    def idle_patterns(self) -> list[str]:
        """Name rules, and patterns of scopes, that matched no node of any graph, sorted."""
        return sorted({*self.unmatched, *(pattern for pattern, is_matched in self.of_scopes.items() if not is_matched)})

    def plus(self, graph: GraphReport) -> Totals:
        """The totals with one more graph."""
        obstacles = graph.painting.obstacles
        used = (*self.precisions, graph.precision) if graph.converted and graph.precision else self.precisions
        return Totals(
            graphs={**self.graphs, graph.way: self.graphs.get(graph.way, 0) + 1},
            total=self.total + graph.total,
            converted=self.converted + graph.converted,
            casts=self.casts + graph.casts,
            products=self.products.plus(graph.products),
            precisions=tuple(dict.fromkeys(used)),
            locked=tuple(surest((*self.locked, *obstacles.locked.matches)).values()),
            fused=self.fused + graph.painting.count(Rule.NO_FUSED_KERNEL),
            of_scopes={
                pattern: self.of_scopes.get(pattern, False) or obstacles.of_scopes.get(pattern, False)
                for pattern in {**self.of_scopes, **obstacles.of_scopes}
            },
            unmatched=tuple(rule for rule in obstacles.unmatched if rule in self.unmatched or not self.graphs),
        )


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
            self._converted: collections.deque[tuple[int, GraphReport]] = collections.deque()  # the last, by number
            self._untouched: collections.deque[tuple[int, GraphReport]] = collections.deque()
            self._count = 0
            self._totals = Totals()

    def record(self, new: RewriteReport, *, way: str) -> None:
        """Adds the report of one rewrite, whose graphs came by ``"grappler"`` or ``"xla"``.

        TensorFlow passes a graph to its optimizers more than once. A second visit is kept only if it converted more.
        """
        kept = [dataclasses.replace(graph, way=way) for graph in new.graphs if graph.converted or not graph.is_revisit]
        with self._lock:
            for graph in kept:
                self._count += 1
                self._totals = self._totals.plus(graph)
                shelf, most = (self._converted, MAX_CONVERTED) if graph.converted else (self._untouched, MAX_UNTOUCHED)
                shelf.append((self._count, graph))
                while len(shelf) > 1 and sum(_weight(kept) for _, kept in shelf) > most:
                    shelf.popleft()

    def report(self) -> RewriteReport:
        """The graphs that are kept, in the order in which they came."""
        with self._lock:
            numbered = [*self._converted, *self._untouched]
        return RewriteReport(tuple(graph for _, graph in sorted(numbered, key=lambda entry: entry[0])))

    def totals(self) -> Totals:
        """The counts of all graphs, including those whose reports were dropped."""
        with self._lock:
            return self._totals


_ledger = Ledger()
record, report, totals, reset = _ledger.record, _ledger.report, _ledger.totals, _ledger.reset
