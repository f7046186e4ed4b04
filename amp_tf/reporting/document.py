"""Makes the document, which is a report as plain data.

``report-1.schema.json`` beside this file describes it, and a test compares.

Page, notebook and command line are made from it. Unknown values are ``null``; figures of a node
that equal :data:`_UNREMARKABLE` are absent. Operations and times are those of one run of each
graph, loops of unknown length counted as ten iterations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from amp_tf.graph.names import layer_of, path_of
from amp_tf.reporting import figures
from amp_tf.reporting.blockers import Row, find_blockers
from amp_tf.reporting.figures import GraphFigures, GraphReport, InsertedCast
from amp_tf.reporting.text import why_no_node

_NS_PER_MS = 1e6
_CAST_BYTES = 4 + 2  # bytes that a cast reads and writes for each element
_UNREMARKABLE = {"operations": 0.0, "bytes": 0.0, "runs": 1.0}


def describe(graphs: Iterable[GraphReport], *, seconds: float = math.inf) -> Row:
    """Describes graphs as plain data.

    Args:
        graphs: the reports of graphs and functions.
        seconds: the time in which blockers may be tried.
    """
    end = time.monotonic() + seconds
    found = [GraphFigures(graph) for graph in graphs]
    known = [graph for graph in found if graph.report.basis is not None]
    rows = [_graph(graph) for graph in found]
    totals = _figures(known)
    ops = _ops(found)
    blockers, together = find_blockers(known, seconds=end - time.monotonic())
    return {
        "figures": totals,
        "ops": ops,
        "blockers": blockers,
        "together": together,
        "graphs": rows,
    }


def _figures(graphs: Sequence[GraphFigures]) -> Row | None:
    """Sums the figures of graphs that have a basis; ``None`` without graphs."""
    if not graphs:
        return None
    operations = {"f16": 0.0, "float32": 0.0}
    products = {"f16": 0.0, "float32": 0.0}
    own = 0.0
    unknown = 0
    for graph in graphs:
        found = graph.figures
        for kind, mask in (("f16", graph.is_narrow), ("float32", ~graph.is_narrow)):
            operations[kind] += float(found.work[mask].sum())
            products[kind] += float(found.work[mask & found.is_product].sum())
        own += float(found.work[found.is_product & found.is_own].sum())
        unknown += int(np.isnan(found.operations[found.is_product]).sum())
    share = None
    if any(products.values()):
        share = products["f16"] / sum(products.values())
    return {
        "graphs": len(graphs),
        "products_share_f16": share,
        "products": products,
        "operations": operations,
        "products_own": own,
        "products_unknown": unknown,
        "estimated_ms": _milliseconds(graphs),
        "estimated_peak": _peak(graphs),
    }


def _peak(graphs: Sequence[GraphFigures]) -> dict[str, float] | None:
    """The estimated peak of the graph that takes the most in float32, in bytes."""
    peaks = [graph.basis.peaks for graph in graphs if graph.basis.peaks]
    before, now = max(peaks, default=(0.0, 0.0))
    if not before:
        return None
    return {"float32": before, "now": now}


def _milliseconds(graphs: Sequence[GraphFigures]) -> dict[str, float] | None:
    """Estimates the time of one run of all graphs, in ms; ``None`` where one has no costs."""
    if not all(map(_has_costs, graphs)):
        return None
    before = 0.0
    after = 0.0
    casts = 0.0
    for graph in graphs:
        of_nodes = figures.times_before_and_now(graph.basis, graph.figures, graph.is_f16)
        before += float(of_nodes[0].sum())
        after += float(of_nodes[1].sum())
        for cast in graph.basis.casts:
            casts += _cast_time(graph, cast) or 0.0
    if not before:
        return None
    return {
        "float32": before / _NS_PER_MS,
        "now": (after + casts) / _NS_PER_MS,
        "casts": casts / _NS_PER_MS,
    }


def _has_costs(graph: GraphFigures) -> bool:
    """Returns True if the cost model applies: XLA fuses ops that it prices one by one."""
    return graph.report.way != "xla" and figures.has_costs(graph.basis)


def _cast_time(graph: GraphFigures, cast: InsertedCast) -> float | None:
    """Estimates the time of all runs of a cast, in ns."""
    elements = figures.elements_of(graph.basis, cast.node, cast.port)
    if elements is None or not _has_costs(graph):
        return None
    of_one = graph.basis.resolution.costs.of_casts(elements)[cast.to_f16]
    return of_one * float(graph.figures.runs[cast.node])


def _ops(graphs: Iterable[GraphFigures]) -> list[Row]:
    """Counts nodes and operations of each op, those with most operations first."""
    rows: dict[str, Row] = {}
    for graph in graphs:
        work = np.zeros(graph.view.node_count)
        is_narrow = graph.is_f16
        if graph.report.basis is not None:
            work = graph.figures.work
            is_narrow = graph.is_narrow
        columns = zip(graph.view.ops, is_narrow.tolist(), work.tolist(), strict=True)
        for op, is_f16, operations in columns:
            if op not in rows:
                nodes = {"f16": 0, "float32": 0}
                rows[op] = {"op": op, "nodes": nodes, "operations": {"f16": 0.0, "float32": 0.0}}
            kind = "f16" if is_f16 else "float32"
            rows[op]["nodes"][kind] += 1
            rows[op]["operations"][kind] += operations

    def order(row: Row) -> tuple[float, int]:
        return -sum(row["operations"].values()), -sum(row["nodes"].values())

    return sorted(rows.values(), key=order)


def _graph(graph: GraphFigures) -> Row:
    report = graph.report
    row: Row = {
        "function": report.function,
        "way": report.way,
        "precision": None,
        "converted": report.converted,
        "total": report.total,
        "casts": report.casts,
        "folded": report.folded,
        "hoisted": None,
        "why_nothing": None,
        "nodes": list(_nodes(graph)),
        "inserted_casts": [],
    }
    if report.precision is not None:
        row["precision"] = report.precision.value
    if report.why_nothing is not None:
        row["why_nothing"] = why_no_node(report.why_nothing)
    if report.basis is not None:
        row["hoisted"] = report.basis.hoisted
        row["inserted_casts"] = [_cast(graph, cast) for cast in report.basis.casts]
    return row


def _nodes(graph: GraphFigures) -> Iterator[Row]:
    """Describes each node, without figures that are unremarkable."""
    view = graph.view
    columns: dict[str, list[float]] = {}
    if graph.report.basis is not None:
        found = graph.figures
        size = np.where(graph.is_f16, 2, 4)
        columns["operations"] = found.operations.tolist()
        columns["bytes"] = (found.elements * size).tolist()
        columns["runs"] = found.runs.tolist()
    for node, is_f16 in enumerate(graph.is_f16.tolist()):
        name = view.names[node]
        reason = graph.reasons[node]
        row: Row = {
            "name": name,
            "op": view.ops[node],
            "precision": graph.report.precision_of(is_f16).value,
            "rule": reason.rule.name,
            "reason": str(reason),
        }
        if reason.cause:
            row["cause"] = reason.cause
        if layer := path_of(name):
            row["layer"] = layer
        if view.devices[node]:
            row["device"] = view.devices[node]
        if columns and (shapes := graph.basis.shapes.output_shapes(name)):
            row["shapes"] = [None if shape is None else list(shape) for shape in shapes]
        for figure, values in columns.items():
            value = values[node]
            if math.isnan(value):
                row[figure] = None
            elif value != _UNREMARKABLE[figure]:
                row[figure] = value
        yield row


def _cast(graph: GraphFigures, cast: InsertedCast) -> Row:
    name = graph.view.names[cast.node]
    row = {
        "node": name,
        "port": cast.port,
        "layer": layer_of(name),
        "from": graph.report.precision_of(not cast.to_f16).value,
        "to": graph.report.precision_of(cast.to_f16).value,
        "readers": cast.readers,
        "runs": float(graph.figures.runs[cast.node]),
        "bytes": None,
        "estimated_ms": None,
    }
    elements = figures.elements_of(graph.basis, cast.node, cast.port)
    if elements is not None:
        row["bytes"] = elements * _CAST_BYTES
    taken = _cast_time(graph, cast)
    if taken is not None:
        row["estimated_ms"] = taken / _NS_PER_MS
    return row
