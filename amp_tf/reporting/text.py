"""The text of a report, as ``print(amp_tf.report())`` shows it."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from amp_tf.oplists.fusions import SPLIT_PRODUCTS
from amp_tf.oplists.op_names import find_registered
from amp_tf.painting.reasons import Reason, Rule
from amp_tf.precision import Precision

if TYPE_CHECKING:
    from amp_tf.reporting.schema import NodeReport

# Reasons of nodes that nobody would convert, which are in every graph.
_SILENT = (Rule.NO_FLOAT32, Rule.NOT_LISTED)
_OPS_SHOWN = 3
_OF_GRAPHS = (Rule.NOTHING_TO_CONVERT, Rule.NO_TARGET)  # reasons that speak of the whole graph


def headline(
    graphs: int, converted: int, total: int, precisions: Iterable[Precision], casts: int, products: object = ""
) -> str:
    """The counts in one line.

    Such as ``4 graphs, 120 of 560 nodes converted to bfloat16 (97.2 % of matmul and convolution work), 45 casts``.
    """
    kinds = " and ".join(precision.value for precision in precisions)
    text = f"{plural(graphs, 'graph')}, {converted:,} of {plural(total, 'node')} converted"
    of_products = f" ({products})" if str(products) else ""
    return f"{text}{f' to {kinds}' if kinds else ''}{of_products}, {plural(casts, 'cast')}"


def percent(part: float | None) -> str:
    """A share in percent; one that is not all, or not nothing, is not rounded to it."""
    if part is None:
        return "unknown"
    if 0.999 <= part < 1:
        return "99.9 %" if part < 0.9999 else ">99.9 %"
    if 0 < part < 0.001:
        return "<0.1 %"
    return f"{100 * part:.3g} %" if part < 1 else "100 %"


def why_no_node(reason: Reason) -> str:
    """Why nothing of a graph was converted; words about "it", a node, get their subject."""
    if reason.rule in _OF_GRAPHS:
        return str(reason)
    if reason.rule is Rule.DOES_NOT_PAY:
        return "16 bit would not be faster here, casts included (AMP_TF_PRECISION=bfloat16 converts all the same)"
    return f"no matmul or convolution is converted, and for most of them the reason is: {reason}"


def plural(count: int, noun: str) -> str:
    """``1 graph``, ``2,000 graphs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def render(summary: str, nodes: Sequence[NodeReport]) -> str:
    """The summary, then a line for each op that was converted, for each rule that left nodes in float32, and for each
    op that a library registered.

    Fused products count as their product. Nodes without float32 values, and those whose op is on no list, are counted
    only in the first line.
    """
    return "\n".join([summary, *_converted(nodes), *_left(nodes), *_registered(nodes)])


def _converted(nodes: Sequence[NodeReport]) -> list[str]:
    counts = collections.Counter(_kind(node) for node in nodes if node.precision.is_f16)
    totals = collections.Counter(map(_kind, nodes))
    return [f"  {count:,} of {totals[op]:,} {op}" for op, count in counts.most_common()]


def _kind(node: NodeReport) -> str:
    """The op of a node; for a fused product that of its product, so that both are counted together."""
    return SPLIT_PRODUCTS[node.op].op if node.op in SPLIT_PRODUCTS else node.op


def _left(nodes: Sequence[NodeReport]) -> list[str]:
    by_rule: dict[Rule, list[NodeReport]] = {}
    for node in nodes:
        if not node.precision.is_f16 and node.reason.rule not in _SILENT:
            by_rule.setdefault(node.reason.rule, []).append(node)
    groups = sorted(by_rule.values(), key=len, reverse=True)
    return ["left in float32:", *map(_group, groups)] if groups else []


def _registered(nodes: Sequence[NodeReport]) -> list[str]:
    rows = filter(None, map(find_registered, sorted({node.op for node in nodes})))
    lines = [f"  {row.op}: {row.op_list} list, because it {row.why}" for row in rows]
    return ["registered by libraries:", *lines] if lines else []


def _group(nodes: Sequence[NodeReport]) -> str:
    """Such as ``3 nodes (2 Mean, 1 Exp), such as 'loss': its op is on the deny list``."""
    counts = collections.Counter(node.op for node in nodes).most_common()
    ops = ", ".join(f"{count:,} {op}" for op, count in counts[:_OPS_SHOWN])
    more = ", …" if len(counts) > _OPS_SHOWN else ""
    return f"  {plural(len(nodes), 'node')} ({ops}{more}), such as {nodes[0].name!r}: {nodes[0].reason}"
