"""The report of the whole process: the hooks record each graph here, the user and the summary read it.

The counts cover everything. The reasons for every node are kept for the last graphs only: a program that retraces
without end must not fill the memory with reports.
"""

from __future__ import annotations

import collections
import dataclasses
import threading

from amp_tf.precision import Precision
from amp_tf.reporting.schema import GraphReport, RewriteReport

MAX_CONVERTED = 256  # graphs in which something was converted
MAX_UNTOUCHED = 64  # graphs in which nothing was


@dataclasses.dataclass(frozen=True)
class Totals:
    """Counts since the process began.

    Attributes:
        graphs: graphs and function bodies by the way they came, ``"grappler"`` or ``"xla"``.
        total: nodes seen.
        converted: nodes converted.
        casts: casts inserted.
        precisions: the 16-bit types in use.
    """

    graphs: dict[str, int] = dataclasses.field(default_factory=dict)
    total: int = 0
    converted: int = 0
    casts: int = 0
    precisions: tuple[Precision, ...] = ()

    def plus(self, graph: GraphReport) -> Totals:
        """The totals with one graph more."""
        used = (*self.precisions, graph.precision) if graph.converted and graph.precision else self.precisions
        return Totals(
            graphs={**self.graphs, graph.way: self.graphs.get(graph.way, 0) + 1},
            total=self.total + graph.total,
            converted=self.converted + graph.converted,
            casts=self.casts + graph.casts,
            precisions=tuple(dict.fromkeys(used)),
        )


class Ledger:
    """Holds the reports of a process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._converted: collections.deque[tuple[int, GraphReport]] = collections.deque(maxlen=MAX_CONVERTED)
        self._untouched: collections.deque[tuple[int, GraphReport]] = collections.deque(maxlen=MAX_UNTOUCHED)
        self._count = 0
        self._totals = Totals()

    def record(self, new: RewriteReport, *, way: str) -> None:
        """Adds the report of one rewrite.

        TensorFlow hands a graph to its optimizers more than once. A second visit is kept only if it converted more.

        Args:
            new: the report.
            way: how its graphs came: ``"grappler"`` or ``"xla"``.
        """
        kept = [dataclasses.replace(graph, way=way) for graph in new.graphs if graph.converted or not graph.is_revisit]
        with self._lock:
            for graph in kept:
                self._count += 1
                self._totals = self._totals.plus(graph)
                (self._converted if graph.converted else self._untouched).append((self._count, graph))

    def report(self) -> RewriteReport:
        """The graphs that are kept, in the order in which they came."""
        with self._lock:
            numbered = [*self._converted, *self._untouched]
        return RewriteReport(tuple(graph for _, graph in sorted(numbered, key=lambda entry: entry[0])))

    def totals(self) -> Totals:
        """The counts of all graphs, those included whose reports are not kept any more."""
        with self._lock:
            return self._totals


_ledger = Ledger()


def record(new: RewriteReport, *, way: str) -> None:
    """Adds the report of one rewrite to this process' report; see :meth:`Ledger.record`."""
    _ledger.record(new, way=way)


def report() -> RewriteReport:
    """Everything that this process rewrote so far, with the reason for every node.

    Of programs with very many graphs, the last 256 in which something was converted and the last 64 others.
    """
    return _ledger.report()


def totals() -> Totals:
    """The counts of everything that this process rewrote so far."""
    return _ledger.totals()


def reset() -> None:
    """Forgets everything, for notebooks that measure one model after the other."""
    global _ledger
    _ledger = Ledger()
