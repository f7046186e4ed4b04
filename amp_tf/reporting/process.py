"""The report of the whole process: the hooks record each graph here, the user and the summary read it."""

from __future__ import annotations

import collections
import threading

from amp_tf.reporting.schema import GraphReport, RewriteReport

MAX_GRAPHS = 256  # a program that retraces without end must not fill the memory with reports

_lock = threading.Lock()
_graphs: collections.deque[GraphReport] = collections.deque(maxlen=MAX_GRAPHS)


def record(graphs: tuple[GraphReport, ...]) -> None:
    """Adds the reports of one rewrite; thread-safe.

    TensorFlow hands a graph to its optimizers more than once. A second visit is recorded only if it converted more.
    """
    kept = [graph for graph in graphs if graph.converted or not graph.is_revisit]
    with _lock:
        _graphs.extend(kept)


def report() -> RewriteReport:
    """Everything that this process rewrote so far; of programs with very many graphs, the last 256."""
    with _lock:
        return RewriteReport(tuple(_graphs))


def reset() -> None:
    """Forgets all reports."""
    with _lock:
        _graphs.clear()
