"""The report of the whole process: the hooks record each graph here, the user and the summary read it."""

from __future__ import annotations

import collections
import dataclasses
import threading

from amp_tf.reporting.schema import GraphReport, RewriteReport

MAX_GRAPHS = 256  # a program that retraces without end must not fill the memory with reports

_lock = threading.Lock()
_graphs: collections.deque[GraphReport] = collections.deque(maxlen=MAX_GRAPHS)


def record(new: RewriteReport, *, way: str) -> None:
    """Adds the report of one rewrite; thread-safe.

    TensorFlow hands a graph to its optimizers more than once. A second visit is kept only if it converted more.

    Args:
        new: the report.
        way: how its graphs came: ``"grappler"`` or ``"xla"``.
    """
    kept = [dataclasses.replace(graph, way=way) for graph in new.graphs if graph.converted or not graph.is_revisit]
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
