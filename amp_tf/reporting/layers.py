"""The layers that a report groups nodes by, and what became of each."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from amp_tf.graph.names import path_of, scopes
from amp_tf.oplists.table import CONSTANTS, READ_OPS, WITHOUT_WAITING
from amp_tf.painting.reasons import Rule
from amp_tf.reporting.graph_figures import GraphFigures

if TYPE_CHECKING:
    from amp_tf.reporting.schema import GraphReport

_DEPTH = 2  # a model and a layer of it
_HOLDS = CONSTANTS | READ_OPS | WITHOUT_WAITING  # ops that hand in what layers compute with
_NONE = "(no layer)"
_REASONS_SHOWN = 3


def layer_of(name: str) -> str:
    """The layer of a node: its path in Keras where it was recorded, else guessed; empty where its name has none.

    A guess is the outermost scopes, such as ``"functional_1/dense_1"``.
    """
    return path_of(name) or "/".join(scopes(name)[:_DEPTH])


@dataclasses.dataclass(frozen=True)
class LayerReason:
    """Why nodes of a layer stay in float32.

    Attributes:
        rule: the rule that decided.
        count: how many of its nodes.
        example: the reason of the first of them, in words.
    """

    rule: Rule
    count: int
    example: str


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """What became of one layer, forward and backward, in all graphs.

    Constants, reads of variables and what handles no float32 values do not count as nodes; a layer's nodes are those
    that no layer inside it made.

    Attributes:
        layer: its path in Keras; where none was recorded, the outermost scopes; empty for what is in none.
        f16, float32: how many of its nodes compute in 16 bit and in float32.
        operations_f16, operations_float32: floating-point operations of one run of each graph; ``None`` where no report
            was asked for before the graphs were rewritten (``AMP_TF_REPORT``).
        reasons: why nodes stay in float32, the commonest first.
    """

    layer: str
    f16: int
    float32: int
    operations_f16: float | None
    operations_float32: float | None
    reasons: tuple[LayerReason, ...]

    @property
    def share_f16(self) -> float | None:
        """The share of its operations that is in 16 bit; ``None`` where it is unknown or there are none."""
        if self.operations_f16 is None or self.operations_float32 is None:
            return None
        total = self.operations_f16 + self.operations_float32
        return self.operations_f16 / total if total else None


class Layers(list[LayerReport]):
    """A list of layers that prints as a table."""

    def __str__(self) -> str:
        """A row for each layer, and a line for each reason beyond the first."""
        rows = [("layer", "16 bit", "float32", "work in 16 bit", "why float32")]
        for layer in self:
            share = "" if layer.share_f16 is None else f"{100 * layer.share_f16:.0f} %"
            why = [f"{reason.count:,}: {reason.example}" for reason in layer.reasons[:_REASONS_SHOWN]]
            more = layer.reasons[_REASONS_SHOWN:]
            why += [f"{sum(reason.count for reason in more):,}: other reasons"] if more else []
            rows.append((layer.layer or _NONE, f"{layer.f16:,}", f"{layer.float32:,}", share, "".join(why[:1])))
            rows += [("", "", "", "", reason) for reason in why[1:]]
        shown = [0, 1, 2, *([3] if any(layer.share_f16 is not None for layer in self) else []), 4]
        return "\n".join(_lines([[row[column] for column in shown] for row in rows]))


def report_by_layer(graphs: Iterable[GraphReport]) -> Layers:
    """What became of each layer in some graphs, sorted by path, numbers by size."""
    tallies: dict[str, _Tally] = {}
    for report in graphs:
        graph = GraphFigures(report)
        work = graph.figures.work.tolist() if report.basis is not None else None
        is_f16 = graph.is_f16.tolist()
        for node, (name, op) in enumerate(zip(graph.view.names, graph.view.ops, strict=True)):
            rule = graph.reasons[node].rule
            if op in _HOLDS or rule is Rule.NO_FLOAT32:
                continue
            tally = tallies.setdefault(layer_of(name), _Tally())
            tally.nodes[is_f16[node]] += 1
            if work is not None:
                tally.has_work = True
                tally.work[is_f16[node]] += work[node]
            if not is_f16[node]:
                tally.rules[rule] += 1
                tally.examples.setdefault(rule, str(graph.reasons[node]))
    return Layers(tally.report(layer) for layer, tally in sorted(tallies.items(), key=lambda item: _order(item[0])))


class _Tally:
    """Counts of one layer, by whether nodes are 16 bit."""

    def __init__(self) -> None:
        self.nodes = [0, 0]
        self.work = [0.0, 0.0]
        self.has_work = False
        self.rules: collections.Counter[Rule] = collections.Counter()
        self.examples: dict[Rule, str] = {}

    def report(self, layer: str) -> LayerReport:
        float32, f16 = self.work if self.has_work else (None, None)
        reasons = tuple(LayerReason(rule, count, self.examples[rule]) for rule, count in self.rules.most_common())
        return LayerReport(layer, self.nodes[True], self.nodes[False], f16, float32, reasons)


def _order(layer: str) -> tuple[bool, list[tuple[int, str]]]:
    """A sort key: block_2 comes before block_12, and what is in no layer last."""
    parts = re.split(r"(\d+)", layer)
    return not layer, [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with their columns below each other: the first and the last to the left, the numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            (
                row[0].ljust(widths[0]),
                *(text.rjust(width) for text, width in zip(row[1:-1], widths[1:-1], strict=True)),
                row[-1],
            )
        ).rstrip()
        for row in rows
    ]
