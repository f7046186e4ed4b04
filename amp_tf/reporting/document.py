"""Makes the document, which is a report as plain data.

``report-1.schema.json`` beside this file describes it, and a test compares.

Page, notebook and command line are made from it. Unknown values are ``null``; figures of a node
that equal :data:`_UNREMARKABLE` are absent. Operations and times are those of one run of each
graph, loops of unknown length counted as ten iterations.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from amp_tf.graph.layers import layer_of, path_of
from amp_tf.oplists.table import PRODUCTS
from amp_tf.reporting import figures
from amp_tf.reporting.blockers import find_blockers
from amp_tf.reporting.figures import InsertedCast
from amp_tf.reporting.files import Row
from amp_tf.reporting.graphs import GraphReport, Graphs
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
    # Copies, because a report that is kept shall not keep the figures, too.
    copies = [dataclasses.replace(graph) for graph in graphs]
    known = [graph for graph in copies if graph.basis is not None]
    rows = [_graph(graph) for graph in copies]
    ops = _ops(copies)
    totals = _figures(known, ops)
    blockers, together = find_blockers(known, seconds=end - time.monotonic())
    return {
        "figures": totals,
        "ops": ops,
        "blockers": blockers,
        "together": together,
        "graphs": rows,
    }


def _figures(graphs: Graphs, ops: Sequence[Row]) -> Row | None:
    """Sums the figures of graphs that have a basis, and of ops; ``None`` without graphs."""
    if not graphs:
        return None
    operations = {"f16": 0.0, "float32": 0.0}
    products = {"f16": 0.0, "float32": 0.0}
    for row in ops:
        for kind, count in row["operations"].items():
            operations[kind] += count
            if row["op"] in PRODUCTS:
                products[kind] += count
    own = 0.0
    unknown = 0
    for graph in graphs:
        of_nodes = graph.figures
        own += float(of_nodes.work[of_nodes.is_product & of_nodes.is_own].sum())
        unknown += int(np.isnan(of_nodes.operations[of_nodes.is_product]).sum())
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


def _peak(graphs: Graphs) -> dict[str, float] | None:
    """Returns the estimated peak of the graph that takes the most in float32, in bytes."""
    peaks = [graph.known_basis.peaks for graph in graphs if graph.known_basis.peaks]
    before, now = max(peaks, default=(0.0, 0.0))
    if not before:
        return None
    return {"float32": before, "now": now}


def _milliseconds(graphs: Graphs) -> dict[str, float] | None:
    """Estimates the time of one run of all graphs, in ms; ``None`` where one has no costs."""
    if not all(map(_has_costs, graphs)):
        return None
    before = 0.0
    after = 0.0
    casts = 0.0
    for graph in graphs:
        of_nodes = figures.times_before_and_now(graph.known_basis, graph.figures, graph.is_f16)
        before += float(of_nodes[0].sum())
        after += float(of_nodes[1].sum())
        for cast in graph.known_basis.casts:
            casts += _cast_time(graph, cast) or 0.0
    if not before:
        return None
    return {
        "float32": before / _NS_PER_MS,
        "now": (after + casts) / _NS_PER_MS,
        "casts": casts / _NS_PER_MS,
    }


def _has_costs(graph: GraphReport) -> bool:
    """Returns True if the cost model applies: XLA fuses ops that it prices one by one."""
    return graph.way != "xla" and figures.has_costs(graph.known_basis)


def _cast_time(graph: GraphReport, cast: InsertedCast) -> float | None:
    """Estimates the time of all runs of a cast, in ns."""
    elements = figures.elements_of(graph.known_basis, cast.node, cast.port)
    if elements is None or not _has_costs(graph):
        return None
    of_one = graph.known_basis.resolution.costs.of_casts(elements)[cast.to_f16]
    return of_one * float(graph.figures.runs[cast.node])


def _ops(graphs: Iterable[GraphReport]) -> list[Row]:
    """Counts nodes and operations of each op, those with most operations first."""
    rows: dict[str, Row] = {}
    for graph in graphs:
        work = np.zeros(graph.view.node_count)
        is_narrow = graph.is_f16
        if graph.basis is not None:
            work = graph.figures.work
            is_narrow = graph.is_narrow
        columns = zip(graph.view.ops, is_narrow.tolist(), work.tolist(), strict=True)
        for op, is_f16, operations in columns:
            if op not in rows:
                nodes = {"f16": 0, "float32": 0}
                rows[op] = {"op": op, "nodes": nodes, "operations": {"f16": 0.0, "float32": 0.0}}
            kind = "float32"
            if is_f16:
                kind = "f16"
            rows[op]["nodes"][kind] += 1
            rows[op]["operations"][kind] += operations

    def order(row: Row) -> tuple[float, int]:
        return -sum(row["operations"].values()), -sum(row["nodes"].values())

    return sorted(rows.values(), key=order)


def _graph(graph: GraphReport) -> Row:
    """Describes a graph, its nodes and its casts."""
    casts: Sequence[InsertedCast] = ()
    if graph.basis is not None:
        casts = graph.basis.casts
    return {
        "function": graph.function,
        "way": graph.way,
        "precision": graph.precision and graph.precision.value,
        "converted": graph.converted,
        "total": graph.total,
        "casts": graph.casts,
        "folded": graph.folded,
        "hoisted": graph.basis and graph.basis.hoisted,
        "why_nothing": graph.why_nothing and why_no_node(graph.why_nothing),
        "nodes": list(_nodes(graph)),
        "inserted_casts": [_cast(graph, cast) for cast in casts],
    }


def _nodes(graph: GraphReport) -> Iterator[Row]:
    """Describes each node, without figures that are unremarkable."""
    columns: dict[str, list[float]] = {}
    if graph.basis is not None:
        of_nodes = graph.figures
        size = np.where(graph.is_f16, 2, 4)
        columns["operations"] = of_nodes.operations.tolist()
        columns["bytes"] = (of_nodes.elements * size).tolist()
        columns["runs"] = of_nodes.runs.tolist()
    for number, node in enumerate(graph.nodes):
        row: Row = {
            "name": node.name,
            "op": node.op,
            "precision": node.precision.value,
            "rule": node.reason.rule.name,
            "reason": str(node.reason),
        }
        if node.reason.cause:
            row["cause"] = node.reason.cause
        if layer := path_of(node.name):
            row["layer"] = layer
        if graph.view.devices[number]:
            row["device"] = graph.view.devices[number]
        if columns and (shapes := graph.known_basis.shapes.output_shapes(node.name)):
            row["shapes"] = [None if shape is None else list(shape) for shape in shapes]
        for figure, values in columns.items():
            value = values[number]
            if math.isnan(value):
                row[figure] = None
            elif value != _UNREMARKABLE[figure]:
                row[figure] = value
        yield row


def _cast(graph: GraphReport, cast: InsertedCast) -> Row:
    """Describes a cast that the rewrite inserted."""
    name = graph.view.names[cast.node]
    elements = figures.elements_of(graph.known_basis, cast.node, cast.port)
    taken = _cast_time(graph, cast)
    return {
        "node": name,
        "port": cast.port,
        "layer": layer_of(name),
        "from": graph.precision_of(not cast.to_f16).value,
        "to": graph.precision_of(cast.to_f16).value,
        "readers": cast.readers,
        "runs": float(graph.figures.runs[cast.node]),
        "bytes": elements and elements * _CAST_BYTES,
        "estimated_ms": taken and taken / _NS_PER_MS,
    }
