"""The text of a report, as ``print(amp_tf.report())`` shows it."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from amp_tf.graph.names import layer_of
from amp_tf.oplists.fusions import SPLIT_PRODUCTS
from amp_tf.oplists.op_names import find_registered
from amp_tf.oplists.table import CONSTANTS, READ_OPS, WITHOUT_WAITING
from amp_tf.painting.reasons import Reason, Rule
from amp_tf.reporting.figures import GraphFigures, GraphReport, NodeReport

# Reasons of nodes that nobody would convert, which are in every graph.
_SILENT = (Rule.NO_FLOAT32, Rule.NOT_LISTED)
_OPS_SHOWN = 3
_OF_GRAPHS = (Rule.NOTHING_TO_CONVERT, Rule.NO_TARGET)  # reasons that speak of the whole graph


def why_no_node(reason: Reason) -> str:
    """Why nothing of a graph was converted; words about "it", a node, get their subject."""
    if reason.rule in _OF_GRAPHS:
        return str(reason)
    if reason.rule is Rule.DOES_NOT_PAY:
        return (
            "16 bit would not be faster here, counting the casts (AMP_TF_PRECISION=bfloat16 "
            "converts anyway)"
        )
    return f"no matmul or convolution is converted; the commonest reason of one: {reason}"


def plural(count: int, noun: str) -> str:
    """``1 graph``, ``2,000 graphs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def render(summary: str, nodes: Sequence[NodeReport]) -> str:
    """The summary, then a line for each op that was converted, for each rule that left nodes in
    float32, and for each op that a library registered.

    Fused products count as their product. Nodes without float32 values, and those whose op is on no
    list, are counted only in the first line.
    """
    counts = collections.Counter(_kind(node) for node in nodes if node.precision.is_f16)
    totals = collections.Counter(map(_kind, nodes))
    converted = [f"  {count:,} of {totals[op]:,} {op}" for op, count in counts.most_common()]
    by_rule: dict[Rule, list[NodeReport]] = {}
    for node in nodes:
        if not node.precision.is_f16 and node.reason.rule not in _SILENT:
            by_rule.setdefault(node.reason.rule, []).append(node)
    left = [_group(group) for group in sorted(by_rule.values(), key=len, reverse=True)]
    rows = filter(None, map(find_registered, sorted({node.op for node in nodes})))
    ops = [f"  {row.op}: {row.op_list} list, because it {row.why}" for row in rows]
    left = ["left in float32:", *left] if left else []
    ops = ["registered by libraries:", *ops] if ops else []
    return "\n".join([summary, *converted, *left, *ops])


def _kind(node: NodeReport) -> str:
    """The op of a node; for a fused product that of its product, so that both are counted together."""
    return SPLIT_PRODUCTS[node.op].op if node.op in SPLIT_PRODUCTS else node.op


def _group(nodes: Sequence[NodeReport]) -> str:
    """Such as ``3 nodes (2 Mean, 1 Exp), such as 'loss': its op is on the deny list``."""
    counts = collections.Counter(node.op for node in nodes).most_common()
    ops = ", ".join(f"{count:,} {op}" for op, count in counts[:_OPS_SHOWN])
    more = ", …" if len(counts) > _OPS_SHOWN else ""
    return (
        f"  {plural(len(nodes), 'node')} ({ops}{more}), such as {nodes[0].name!r}: "
        f"{nodes[0].reason}"
    )


_HOLDS = CONSTANTS | READ_OPS | WITHOUT_WAITING  # ops that hand in what layers compute with
_REASONS_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class LayerReason:
    """Why nodes of a layer stay in float32."""

    rule: Rule  #: that decided
    count: int  #: how many of its nodes
    example: str  #: the reason of the first of them, in words


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """What became of one layer, forward and backward, in all graphs.

    Constants, reads of variables and what handles no float32 values do not count as nodes; a
    layer's nodes are those that no layer inside it made. Operations are floating-point operations
    of one run of each graph; ``None`` where no report was asked for before the graphs were
    rewritten (``AMP_TF_REPORT``).
    """

    #: its path in Keras; where none was recorded, the outermost scopes; empty for what is in none
    layer: str
    f16: int  #: how many of its nodes compute in 16 bit
    float32: int  #: and in float32
    operations_f16: float | None
    operations_float32: float | None
    reasons: tuple[LayerReason, ...]  #: why nodes stay in float32, the commonest first

    @property
    def share_f16(self) -> float | None:
        """The share of its operations that is in 16 bit; ``None`` where it is unknown or there are
        none.
        """
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
            why = [
                f"{reason.count:,}: {reason.example}" for reason in layer.reasons[:_REASONS_SHOWN]
            ]
            more = layer.reasons[_REASONS_SHOWN:]
            why += [f"{sum(reason.count for reason in more):,}: other reasons"] if more else []
            rows.append(
                (
                    layer.layer or "(no layer)",
                    f"{layer.f16:,}",
                    f"{layer.float32:,}",
                    share,
                    "".join(why[:1]),
                )
            )
            rows += [("", "", "", "", reason) for reason in why[1:]]
        shown = [0, 1, 2, *([3] if any(layer.share_f16 is not None for layer in self) else []), 4]
        return "\n".join(_lines([[row[column] for column in shown] for row in rows]))


def report_by_layer(graphs: Iterable[GraphReport]) -> Layers:
    """What became of each layer in some graphs, sorted by path, numbers by size."""
    nodes: dict[str, list[tuple[bool, float | None, Reason]]] = {}
    for report in graphs:
        graph = GraphFigures(report)
        work = (
            graph.figures.work.tolist()
            if report.basis is not None
            else [None] * graph.view.node_count
        )
        rows = zip(graph.is_f16.tolist(), work, graph.reasons, strict=True)
        for name, op, row in zip(graph.view.names, graph.view.ops, rows, strict=True):
            if op not in _HOLDS and row[2].rule is not Rule.NO_FLOAT32:
                nodes.setdefault(layer_of(name), []).append(row)
    found = Layers()
    for layer, rows_of in sorted(nodes.items(), key=lambda item: _order(item[0])):
        left = [reason for is_f16, _, reason in rows_of if not is_f16]
        examples = {reason.rule: str(reason) for reason in reversed(left)}
        rules = collections.Counter(reason.rule for reason in left).most_common()
        reasons = tuple(LayerReason(rule, count, examples[rule]) for rule, count in rules)
        known = [(is_f16, work) for is_f16, work, _ in rows_of if work is not None]
        of_f16, of_float32 = (
            sum(work for is_f16, work in known if is_f16 is kind) if known else None
            for kind in (True, False)
        )
        found.append(
            LayerReport(layer, len(rows_of) - len(left), len(left), of_f16, of_float32, reasons)
        )
    return found


def _order(layer: str) -> tuple[bool, list[tuple[int, str]]]:
    """A sort key: block_2 comes before block_12, and what is in no layer last."""
    parts = re.split(r"(\d+)", layer)
    return not layer, [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows with their columns below each other: the first and the last to the left, the numbers to
    the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *numbers, last in rows:
        columns = [first.ljust(widths[0]), *map(str.rjust, numbers, widths[1:]), last]
        yield "  ".join(columns).rstrip()
