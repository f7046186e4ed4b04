"""The document: a report as plain data. ``report-1.schema.json`` beside this file describes it, and
a test compares.

Page, notebook and command line are made of it. Unknown values are ``null``; a node's unremarkable
figures are absent. Operations and times are those of one run of each graph, loops of unknown length
counted as ten iterations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from amp_tf.graph.names import layer_of, path_of
from amp_tf.precision import Precision
from amp_tf.reporting import figures
from amp_tf.reporting.blockers import find_blockers
from amp_tf.reporting.figures import GraphFigures, GraphReport, InsertedCast
from amp_tf.reporting.text import why_no_node

_NS_PER_MS = 1e6
_UNREMARKABLE = {"operations": 0.0, "bytes": 0.0, "runs": 1.0}


def describe(graphs: Iterable[GraphReport], *, seconds: float = math.inf) -> dict[str, Any]:
    """What a document says of graphs; as many blockers are tried as fit in some seconds."""
    end = time.monotonic() + seconds
    found = list(map(GraphFigures, graphs))
    known = [graph for graph in found if graph.report.basis is not None]
    rows = [_graph(graph) for graph in found]
    figures_found, ops = _figures(known) if known else None, _ops(found)
    blockers, together = find_blockers(known, seconds=end - time.monotonic())
    return {
        "figures": figures_found,
        "ops": ops,
        "blockers": blockers,
        "together": together,
        "graphs": rows,
    }


def _figures(graphs: Sequence[GraphFigures]) -> dict[str, Any]:
    all_found = [(graph, graph.figures) for graph in graphs]
    arrays = (
        (f.work, g.is_narrow, f.is_product, f.is_own, np.isnan(f.operations)) for g, f in all_found
    )
    work, is_narrow, is_product, is_own, is_unknown = map(np.concatenate, zip(*arrays, strict=True))

    def shares(mask: Any) -> dict[str, float]:
        return {
            "f16": float(work[mask & is_narrow].sum()),
            "float32": float(work[mask & ~is_narrow].sum()),
        }

    products, milliseconds = shares(is_product), None
    if all(map(_has_costs, graphs)):
        times = [
            figures.times_before_and_now(g.basis, found, g.is_f16) for g, found in all_found
        ]  # of one run, in ns
        casts = sum(
            _cast_time(graph, cast) or 0.0 for graph in graphs for cast in graph.basis.casts
        )
        before, after = (
            sum(float(time.sum()) for time in kind) for kind in zip(*times, strict=True)
        )
        taken = {"float32": before, "now": after + casts, "casts": casts}
        milliseconds = {kind: time / _NS_PER_MS for kind, time in taken.items()} if before else None
    # The peak is that of the graph that takes the most in float32.
    peak_before, peak_now = max(
        (graph.basis.peaks for graph in graphs if graph.basis.peaks), default=(0.0, 0.0)
    )
    return {
        "graphs": len(graphs),
        "products_share_f16": products["f16"] / sum(products.values())
        if any(products.values())
        else None,
        "products": products,
        "operations": shares(np.full(len(work), True)),
        "products_own": float(work[is_product & is_own].sum()),
        "products_unknown": int((is_product & is_unknown).sum()),
        "estimated_ms": milliseconds,
        "estimated_peak": {"float32": peak_before, "now": peak_now} if peak_before else None,
    }


def _has_costs(graph: GraphFigures) -> bool:
    """Whether the cost model applies: XLA fuses ops that it prices one by one."""
    return graph.report.way != "xla" and figures.has_costs(graph.basis)


def _cast_time(graph: GraphFigures, cast: InsertedCast) -> float | None:
    elements = figures.elements_of(graph.basis, cast.node, cast.port)
    if elements is None or not _has_costs(graph):
        return None
    table = graph.basis.resolution.costs  # which has the time of one cast, in ns
    time = table.of_casts(elements)[cast.to_f16]
    return time * float(graph.figures.runs[cast.node])


def _ops(graphs: Iterable[GraphFigures]) -> list[dict[str, Any]]:
    counts: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for graph in graphs:
        has_basis = graph.report.basis is not None
        work = graph.figures.work if has_basis else np.zeros(graph.view.node_count)
        narrow = graph.is_narrow if has_basis else graph.is_f16
        for op, is_f16, operations in zip(
            graph.view.ops, narrow.tolist(), work.tolist(), strict=True
        ):
            nodes, work_of_op = counts.setdefault(
                op, ({"f16": 0, "float32": 0}, {"f16": 0.0, "float32": 0.0})
            )
            kind = "f16" if is_f16 else "float32"
            nodes[kind] += 1
            work_of_op[kind] += operations
    rows = ({"op": op, "nodes": nodes, "operations": work} for op, (nodes, work) in counts.items())
    return sorted(
        rows, key=lambda row: (-sum(row["operations"].values()), -sum(row["nodes"].values()))
    )


def _graph(graph: GraphFigures) -> dict[str, Any]:
    report = graph.report
    return {
        "function": report.function,
        "way": report.way,
        "precision": report.precision.value if report.precision else None,
        "converted": report.converted,
        "total": report.total,
        "casts": report.casts,
        "folded": report.folded,
        "hoisted": report.basis.hoisted if report.basis else None,
        "why_nothing": why_no_node(report.why_nothing) if report.why_nothing else None,
        "nodes": list(_nodes(graph)),
        "inserted_casts": [_cast(graph, cast) for cast in report.basis.casts]
        if report.basis
        else [],
    }


def _nodes(graph: GraphFigures) -> Iterator[dict[str, Any]]:
    view, is_f16 = graph.view, graph.is_f16.tolist()
    precision = (graph.report.precision or Precision.FLOAT32).value
    columns: dict[str, list[float]] = {}
    if graph.report.basis is not None:
        found, sizes = graph.figures, np.where(graph.is_f16, 2, 4)
        arrays = {
            "operations": found.operations,
            "bytes": found.elements * sizes,
            "runs": found.runs,
        }
        columns = {name: array.tolist() for name, array in arrays.items()}
    for node, reason in enumerate(graph.reasons):
        row: dict[str, Any] = {
            "name": view.names[node],
            "op": view.ops[node],
            "precision": precision if is_f16[node] else Precision.FLOAT32.value,
            "rule": reason.rule.name,
            "reason": str(reason),
        }
        if reason.cause:
            row["cause"] = reason.cause
        if layer := path_of(row["name"]):
            row["layer"] = layer
        if view.devices[node]:
            row["device"] = view.devices[node]
        if columns and (shapes := graph.basis.shapes.output_shapes(row["name"])):
            row["shapes"] = [None if shape is None else list(shape) for shape in shapes]
        for name, unremarkable in _UNREMARKABLE.items() if columns else ():
            value = columns[name][node]
            if math.isnan(value):
                row[name] = None
            elif value != unremarkable:
                row[name] = value
        yield row


def _cast(graph: GraphFigures, cast: InsertedCast) -> dict[str, Any]:
    name, f16 = graph.view.names[cast.node], (graph.report.precision or Precision.FLOAT32).value
    elements, taken = (
        figures.elements_of(graph.basis, cast.node, cast.port),
        _cast_time(graph, cast),
    )
    return {
        "node": name,
        "port": cast.port,
        "layer": layer_of(name),
        "from": "float32" if cast.to_f16 else f16,
        "to": f16 if cast.to_f16 else "float32",
        "readers": cast.readers,
        "runs": float(graph.figures.runs[cast.node]),
        "bytes": None if elements is None else elements * (4 + 2),
        "estimated_ms": None if taken is None else taken / _NS_PER_MS,
    }
