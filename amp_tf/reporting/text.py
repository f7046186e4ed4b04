"""The text of a report, as ``print(amp_tf.report())`` shows it."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from amp_tf.oplists.fusions import SPLIT_PRODUCTS
from amp_tf.oplists.op_names import find_registered
from amp_tf.oplists.table import CONSTANTS, READ_OPS, WITHOUT_WAITING
from amp_tf.painting.reasons import Reason, Rule
from amp_tf.reporting.figures import percent
from amp_tf.reporting.graphs import GraphReport, NodeReport

# Reasons of nodes that nobody would convert, which are in every graph.
_SILENT = (Rule.NO_FLOAT32, Rule.NOT_LISTED)
_OPS_SHOWN = 3
_OF_GRAPHS = (Rule.NOTHING_TO_CONVERT, Rule.NO_TARGET)  # reasons that speak of the whole graph


def why_no_node(reason: Reason) -> str:
    """Says why nothing of a graph was converted; a reason of one node gets its subject."""
    if reason.rule in _OF_GRAPHS:
        return str(reason)
    if reason.rule is Rule.DOES_NOT_PAY:
        return (
            "16 bit would not be faster here, counting the casts (AMP_TF_PRECISION=bfloat16 "
            "converts anyway)"
        )
    return f"no matmul or convolution is converted; the commonest reason of one: {reason}"


def plural(count: int, noun: str) -> str:
    """Counts things in words: ``1 graph``, ``2,000 graphs``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"


def render(summary: str, nodes: Sequence[NodeReport]) -> str:
    """Lists the conversion of nodes below a summary.

    A line each for the ops that were converted, for the rules that left nodes in float32, and for
    the ops that a library registered. Fused products count as their product. Nodes without float32
    values, and those whose op is on no list, count only in the summary.
    """
    totals: collections.Counter[str] = collections.Counter()
    converted: collections.Counter[str] = collections.Counter()
    left: dict[Rule, list[NodeReport]] = {}
    for node in nodes:
        op = _kind(node)
        totals[op] += 1
        if node.precision.is_f16:
            converted[op] += 1
        elif node.reason.rule not in _SILENT:
            left.setdefault(node.reason.rule, []).append(node)
    lines = [summary]
    # The converted ops.
    for op, count in converted.most_common():
        lines.append(f"  {count:,} of {totals[op]:,} {op}")
    # The nodes left in float32, by rule.
    if left:
        lines.append("left in float32:")
        lines += map(_group, sorted(left.values(), key=len, reverse=True))
    # The ops that libraries registered.
    registered = []
    for op in sorted({node.op for node in nodes}):
        row = find_registered(op)
        if row is not None:
            registered.append(f"  {op}: {row.op_list} list, because it {row.why}")
    if registered:
        lines += ["registered by libraries:", *registered]
    return "\n".join(lines)


def _kind(node: NodeReport) -> str:
    """Returns the op of a node; for a fused product the op of the product."""
    if node.op in SPLIT_PRODUCTS:
        return SPLIT_PRODUCTS[node.op].op
    return node.op


def _group(nodes: Sequence[NodeReport]) -> str:
    """Says ``3 nodes (2 Mean, 1 Exp), such as 'loss': its op is on the deny list``."""
    counts = collections.Counter(node.op for node in nodes)
    ops = [f"{count:,} {op}" for op, count in counts.most_common(_OPS_SHOWN)]
    if len(counts) > _OPS_SHOWN:
        ops.append("…")
    example = f"such as {nodes[0].name!r}: {nodes[0].reason}"
    return f"  {plural(len(nodes), 'node')} ({', '.join(ops)}), {example}"


_HOLDS = CONSTANTS | READ_OPS | WITHOUT_WAITING  # ops that give layers their inputs and weights
_REASONS_SHOWN = 3
_Counted = tuple[NodeReport, float | None]  # a node, and its operations where they are known


@dataclasses.dataclass(frozen=True)
class LayerReason:
    """A rule that keeps nodes of a layer in float32.

    Attributes:
        rule: the rule that decided.
        count: the number of the layer's nodes.
        example: the reason of the first of them, in words.
    """

    rule: Rule
    count: int
    example: str


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """The precision of one layer, forward and backward, in all graphs.

    Constants, reads of variables and nodes without float32 values do not count. A layer's nodes are
    those that no layer inside it made. Operations are floating-point operations of one run of each
    graph; ``None`` where no report was asked for before the graphs were rewritten
    (``AMP_TF_REPORT``).

    Attributes:
        layer: its path in Keras, or the outermost scopes if none was recorded; empty for nodes in
            no layer.
        f16: the number of its nodes that compute in 16 bit.
        float32: the number of those that compute in float32.
        operations_f16: operations in 16 bit.
        operations_float32: operations in float32.
        reasons: the rules that keep nodes in float32, the commonest first.
    """

    layer: str
    f16: int
    float32: int
    operations_f16: float | None
    operations_float32: float | None
    reasons: tuple[LayerReason, ...]

    @property
    def share_f16(self) -> float | None:
        """The share of its operations in 16 bit; ``None`` where it is unknown or undefined."""
        if self.operations_f16 is None or self.operations_float32 is None:
            return None
        total = self.operations_f16 + self.operations_float32
        if not total:
            return None
        return self.operations_f16 / total


class Layers(list[LayerReport]):
    """A list of layers that prints as a table."""

    def __repr__(self) -> str:
        """Renders a row for each layer, and a line for each reason beyond the first."""
        rows = [["layer", "16 bit", "float32", "work in 16 bit", "why float32"]]
        knows_work = False
        for layer in self:
            share = ""
            if layer.share_f16 is not None:
                share = percent(layer.share_f16)
                knows_work = True
            cells = [layer.layer or "(no layer)", f"{layer.f16:,}", f"{layer.float32:,}", share]
            for reason in _reasons(layer) or [""]:
                rows.append([*cells, reason])
                cells = [""] * len(cells)
        if not knows_work:
            for row in rows:
                del row[3]
        return "\n".join(_lines(rows))


def _reasons(layer: LayerReport) -> list[str]:
    """Returns the first reasons of a layer, and the number of nodes with other reasons."""
    lines = []
    more = layer.float32
    for reason in layer.reasons[:_REASONS_SHOWN]:
        lines.append(f"{reason.count:,}: {reason.example}")
        more -= reason.count
    if more:
        lines.append(f"{more:,}: other reasons")
    return lines


def report_by_layer(graphs: Iterable[GraphReport]) -> Layers:
    """Reports each layer of some graphs, sorted by path, numbers in paths by size."""
    nodes: dict[str, list[_Counted]] = {}
    for graph in graphs:
        work: Sequence[float | None] = [None] * graph.view.node_count
        if graph.basis is not None:
            work = dataclasses.replace(graph).figures.work.tolist()  # the report keeps none
        for node, operations in zip(graph.nodes, work, strict=True):
            if node.op not in _HOLDS and node.reason.rule is not Rule.NO_FLOAT32:
                nodes.setdefault(node.layer, []).append((node, operations))
    layers = Layers()
    for name in sorted(nodes, key=_order):
        layers.append(_layer(name, nodes[name]))
    return layers


def _layer(name: str, nodes: Sequence[_Counted]) -> LayerReport:
    counts: collections.Counter[Rule] = collections.Counter()
    examples: dict[Rule, str] = {}
    work: dict[bool, float] = {True: 0.0, False: 0.0}
    knows_work = False
    for node, operations in nodes:
        is_f16 = node.precision.is_f16
        if not is_f16:
            counts[node.reason.rule] += 1
            examples.setdefault(node.reason.rule, str(node.reason))
        if operations is not None:
            knows_work = True
            work[is_f16] += operations
    reasons = []
    for rule, count in counts.most_common():
        reasons.append(LayerReason(rule, count, examples[rule]))
    float32 = counts.total()
    known: tuple[float | None, float | None] = (None, None)
    if knows_work:
        known = (work[True], work[False])
    return LayerReport(name, len(nodes) - float32, float32, *known, tuple(reasons))


def _order(layer: str) -> tuple[bool, list[tuple[int, str]]]:
    """Returns a sort key: block_2 comes before block_12, and what is in no layer last."""
    parts = []
    for part in re.split(r"(\d+)", layer):
        if part.isdigit():
            parts.append((int(part), ""))
        else:
            parts.append((-1, part))
    return not layer, parts


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Aligns columns: the first and the last to the left, the numbers between to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *numbers, last in rows:
        columns = [first.ljust(widths[0]), *map(str.rjust, numbers, widths[1:]), last]
        yield "  ".join(columns).rstrip()
