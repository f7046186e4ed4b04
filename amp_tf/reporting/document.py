"""The document: a report as plain data. ``report-1.schema.json`` beside this file describes it.

Page, notebook and command line are made of it. Unknown values are ``null``; a node's unremarkable figures are absent.
Operations and times are those of one run of each graph, loops of unknown length counted as ten iterations.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from amp_tf.graph.names import layer_of, path_of
from amp_tf.lock import Layer
from amp_tf.precision import Precision
from amp_tf.reporting import document_types as types
from amp_tf.reporting import figures
from amp_tf.reporting.blockers import Blocker, Together, find_blockers
from amp_tf.reporting.document_types import ProcessFacts
from amp_tf.reporting.figures import GraphFigures, InsertedCast
from amp_tf.reporting.text import why_no_node

if TYPE_CHECKING:
    from amp_tf.reporting.schema import RewriteReport, StoredVariable

_NS_PER_MS = 1e6
_UNREMARKABLE: dict[Literal["operations", "bytes", "runs"], float] = {"operations": 0.0, "bytes": 0.0, "runs": 1.0}


def make_document(report: RewriteReport, *, seconds: float = math.inf) -> dict[str, Any]:
    """Makes the document of a report.

    Args:
        report: of a rewrite or of a process.
        seconds: the time limit: as many blockers are tried as fit in.
    """
    end = time.monotonic() + seconds
    graphs = [GraphFigures(graph) for graph in report.graphs]
    known = [graph for graph in graphs if graph.report.basis is not None]
    rows = [_graph(graph) for graph in graphs]
    figures_found, ops = _figures(known) if known else None, _ops(graphs)
    blockers, together = find_blockers(known, seconds=end - time.monotonic())
    facts = report.facts or ProcessFacts()
    return {
        "schema": types.KIND,
        "schema_version": types.SCHEMA_VERSION,
        "converted": report.converted,
        "total": report.total,
        "casts": report.casts,
        "precisions": [precision.value for precision in report.precisions],
        "why_nothing": why_no_node(report.why_nothing) if report.why_nothing else None,
        "summary": report.summary,
        "process": dict(facts.process),
        "totals": dict(facts.totals),
        "settings": [dict(setting) for setting in facts.settings],
        "devices": [dict(device) for device in facts.devices],
        "hooks": dict(facts.hooks),
        "loss_scales": [{**dataclasses.asdict(curve), "points": list(curve.points)} for curve in facts.loss_scales],
        "steps": [dict(row) for row in facts.steps],
        "figures": figures_found,
        "ops": ops,
        "blockers": [_blocker_row(blocker) for blocker in blockers],
        "together": _together_row(together),
        "graphs": rows,
        **({} if report.weights is None else {"weights": [_weight(each) for each in report.weights.variables]}),
    }


def _weight(variable: StoredVariable) -> types.WeightRow:
    return {
        "name": variable.name,
        "key": variable.key,
        "shape": list(variable.shape),
        "precision": variable.precision.value,
        "why": variable.why,
    }


def _figures(graphs: Sequence[GraphFigures]) -> types.Figures:
    sums: dict[str, float] = collections.defaultdict(float)
    times: dict[str, float] = collections.defaultdict(float)
    for graph in graphs:
        found, work = graph.figures, graph.figures.work
        for name, mask in (("operations", slice(None)), ("products", found.is_product)):
            sums[f"{name}_f16"] += float(work[mask][graph.is_narrow[mask]].sum())
            sums[f"{name}_float32"] += float(work[mask][~graph.is_narrow[mask]].sum())
        sums["own"] += float(work[found.is_product & found.is_own].sum())
        sums["products_unknown"] += int(np.isnan(found.operations[found.is_product]).sum())
        for name, taken in _times(graph).items():
            times[name] += taken
    has_costs = times["float32"] > 0 and all(map(_has_costs, graphs))
    products = sums["products_f16"] + sums["products_float32"]
    return {
        "graphs": len(graphs),
        "products_share_f16": sums["products_f16"] / products if products else None,
        "products": {"f16": sums["products_f16"], "float32": sums["products_float32"]},
        "operations": {"f16": sums["operations_f16"], "float32": sums["operations_float32"]},
        "products_own": sums["own"],
        "products_unknown": int(sums["products_unknown"]),
        "estimated_ms": None
        if not has_costs
        else {
            "float32": times["float32"] / _NS_PER_MS,
            "now": times["now"] / _NS_PER_MS,
            "casts": times["casts"] / _NS_PER_MS,
        },
        "estimated_peak": _peak(graphs),
    }


def _peak(graphs: Sequence[GraphFigures]) -> types.Peak | None:
    """Of the graph that takes the most in float32."""
    before, now = max((graph.basis.peaks for graph in graphs if graph.basis.peaks), default=(0.0, 0.0))
    return {"float32": before, "now": now} if before else None


def _times(graph: GraphFigures) -> dict[str, float]:
    """The times of one run, in ns: all in float32, as it is now, and of the casts alone."""
    before, now = figures.times_before_and_now(graph.basis, graph.figures, graph.is_f16)
    casts = sum(found for cast in graph.basis.casts if (found := _cast_time(graph, cast)) is not None)
    return {"float32": float(before.sum()), "now": float(now.sum()) + casts, "casts": casts}


def _has_costs(graph: GraphFigures) -> bool:
    """Whether the cost model applies: XLA fuses ops that it prices one by one."""
    return graph.report.way != "xla" and figures.has_costs(graph.basis)


def _cast_time(graph: GraphFigures, cast: InsertedCast) -> float | None:
    elements = figures.cast_elements(graph.basis, cast)
    if elements is None or not _has_costs(graph):
        return None
    return figures.cast_time(graph.basis, cast, elements) * float(graph.figures.runs[cast.node])


def _ops(graphs: Iterable[GraphFigures]) -> list[types.OpRow]:
    """Nodes and operations of each op, by precision."""
    counts: dict[str, tuple[types.Counts, types.Counts]] = {}
    for graph in graphs:
        has_basis = graph.report.basis is not None
        work = graph.figures.work if has_basis else np.zeros(graph.view.node_count)
        narrow = graph.is_narrow if has_basis else graph.is_f16
        for op, is_f16, operations in zip(graph.view.ops, narrow.tolist(), work.tolist(), strict=True):
            nodes, work_of_op = counts.setdefault(op, ({"f16": 0, "float32": 0}, {"f16": 0.0, "float32": 0.0}))
            kind: Literal["f16", "float32"] = "f16" if is_f16 else "float32"
            nodes[kind] += 1
            work_of_op[kind] += operations
    rows: list[types.OpRow] = [{"op": op, "nodes": nodes, "operations": work} for op, (nodes, work) in counts.items()]
    return sorted(rows, key=lambda row: (-_total(row["operations"]), -_total(row["nodes"])))


def _total(counts: types.Counts) -> float:
    return counts["f16"] + counts["float32"]


def _blocker_row(blocker: Blocker) -> types.BlockerRow:
    return {
        "kind": blocker.root.kind,
        "what": blocker.root.what,
        "nodes": blocker.nodes,
        "operations": blocker.operations,
        "example": blocker.example,
        "gain": blocker.gain,
        "gain_products": blocker.products,
        "gain_nodes": blocker.converted,
        "remedy": blocker.root.remedy,
    }


def _together_row(together: Together | None) -> types.Together | None:
    if together is None:
        return None
    return {"roots": [{"kind": root.kind, "what": root.what} for root in together.roots], "gain": together.gain}


def _graph(graph: GraphFigures) -> types.GraphRow:
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
        "layers": list(map(_layer, report.painting.locked.layers)),
        "nodes": list(map(_Row(graph).of, range(graph.view.node_count))),
        "inserted_casts": [_cast(graph, cast) for cast in report.basis.casts] if report.basis else [],
    }


def _layer(layer: Layer) -> types.LayerRow:
    place = f"{layer.place}/{layer.alike}"
    return {
        "layer": layer.path,
        "keras": layer.keras,
        "structure": layer.structure,
        "weights": list(layer.weights),
        "place": place,
    }


class _Row:
    """Makes the rows of a graph's nodes."""

    def __init__(self, graph: GraphFigures) -> None:
        self._graph = graph
        self._precision = (graph.report.precision or Precision.FLOAT32).value
        self._is_f16 = graph.is_f16.tolist()
        self._figures: Mapping[str, list[float]] = {}
        if graph.report.basis is not None:
            found = graph.figures
            moved = found.bytes(graph.is_f16)
            columns = {"operations": found.operations, "bytes": moved, "runs": found.runs}
            self._figures = {name: column.tolist() for name, column in columns.items()}

    def of(self, node: int) -> types.FullNodeRow:
        """The row of a node."""
        view, reason = self._graph.view, self._graph.reasons[node]
        row: types.FullNodeRow = {
            "name": view.names[node],
            "op": view.ops[node],
            "precision": self._precision if self._is_f16[node] else Precision.FLOAT32.value,
            "rule": reason.rule.name,
            "reason": str(reason),
        }
        if reason.cause:
            row["cause"] = reason.cause
        if layer := path_of(row["name"]):
            row["layer"] = layer
        if view.devices[node]:
            row["device"] = view.devices[node]
        if self._figures:
            self._add_figures(row, node)
        return row

    def _add_figures(self, row: types.FullNodeRow, node: int) -> None:
        shapes = self._graph.basis.shapes.output_shapes(row["name"])
        if shapes:
            row["shapes"] = [None if shape is None else list(shape) for shape in shapes]
        for name, unremarkable in _UNREMARKABLE.items():
            value = self._figures[name][node]
            if math.isnan(value):
                row[name] = None
            elif value != unremarkable:
                row[name] = value


def _cast(graph: GraphFigures, cast: InsertedCast) -> types.CastRow:
    name, f16 = graph.view.names[cast.node], (graph.report.precision or Precision.FLOAT32).value
    elements, taken = figures.cast_elements(graph.basis, cast), _cast_time(graph, cast)
    return {
        "node": name,
        "port": cast.port,
        "layer": layer_of(name),
        "from": "float32" if cast.to_f16 else f16,
        "to": f16 if cast.to_f16 else "float32",
        "readers": cast.readers,
        "runs": float(graph.figures.runs[cast.node]),
        "bytes": None if elements is None else elements * figures.CAST_BYTES,
        "estimated_ms": None if taken is None else taken / _NS_PER_MS,
    }
