"""What may stay in float32, from large to small: layers that are made alike, each of them, the nodes of each."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amp_tf.graph.names import is_gradient, is_within, scope_of, whole_of, without_calls
from amp_tf.lock import Decision, Layer
from amp_tf.tools.search import Item

_NUMBERS = re.compile(r"(_\d+)+(?=/|$)|\d+")
_LEAST_SHARE = 0.01  # of the operations of all products: what costs less is as good as free


@dataclasses.dataclass(frozen=True)
class _Node:
    name: str
    operations: float


def find_items(report: Mapping[str, Any]) -> list[Item]:
    """The items of a program, from its report in mixed precision, in the order of their first nodes.

    Layers that are made alike, and whose names differ in numbers alone, are one item. The nodes of a model itself, or
    of another scope with layers in it, are items of their own.

    Args:
        report: the document, whose graphs have their layers (:class:`amp_tf.reporting.document_types.LayerRow`).
    """
    layers: dict[str, Layer] = {}
    nodes: dict[str, _Node] = {}
    for graph in report["graphs"]:
        for row in graph["layers"]:
            layers.setdefault(row["layer"], Layer.of_row(row))
        for row in graph["nodes"]:
            if row["precision"] != "float32":
                work = (row.get("operations") or 0.0) * row.get("runs", 1.0)
                name = without_calls(whole_of(row["name"]))
                nodes[name] = _Node(name, max(work, nodes[name].operations if name in nodes else 0.0))
    of_layer: dict[str, list[_Node]] = {}
    for node in nodes.values():
        of_layer.setdefault(_layer_of(node.name, layers), []).append(node)
    alike: dict[tuple[str, str, tuple[str, ...], str], list[Item]] = {}
    for path, inside in of_layer.items():
        layer = layers.get(path, Layer(path))
        key = (
            _NUMBERS.sub(lambda found: "" if found[0].startswith("_") else "#", path),
            layer.structure,
            layer.weights,
        )
        holds_others = any(other != path and is_within(f"{other}/", path) for other in layers)
        items = _nodes(layer, inside) if holds_others else [_of_layer(layer, inside)]
        for item in items:
            alike.setdefault((*key, item.name if holds_others else ""), []).append(item)
    return [_together(items) for items in alike.values()]


def rank(items: Iterable[Item], comparison: Mapping[str, Any] | None) -> list[Item]:
    """The items and their parts, those first that have to stay in float32 most probably, or cost least.

    First come those at which the comparison finds what goes wrong, in its order, which is that of their effect on the
    outputs; then those with most local error for each operation that float32 would cost.

    Args:
        items: what may stay in float32.
        comparison: the document of a comparison of one step; ``None`` where there is none.
    """
    items = list(items)
    everything = sum(item.operations for item in items) or 1.0
    findings = [finding["node"] for finding in (comparison or {}).get("findings", ())]
    errors = {row["name"]: row["local"] for row in (comparison or {}).get("nodes", ()) if row["has_truth"]}

    def key(item: Item) -> tuple[int, float]:
        found = next((place for place, node in enumerate(findings) if holds(item, node)), len(findings))
        local = max((_number(error) for node, error in errors.items() if holds(item, node)), default=0.0)
        return found, -local / max(item.operations / everything, _LEAST_SHARE)

    def in_order(some: Iterable[Item]) -> list[Item]:
        return sorted((dataclasses.replace(item, parts=tuple(in_order(item.parts))) for item in some), key=key)

    return in_order(items)


def holds(item: Item, node: str) -> bool:
    """Whether a node stays in float32 with an item."""
    return any(node == one.node if one.node else is_within(node, one.layer.path) for one in item.decisions)


def decisions_of(items: Iterable[Item]) -> tuple[Decision, ...]:
    """The decisions of some items, each once, by name."""
    found = {(one.layer.path, one.node): one for item in items for one in item.decisions}
    return tuple(found[key] for key in sorted(found))


def _layer_of(name: str, layers: Mapping[str, Layer]) -> str:
    """The innermost layer that a node belongs to; of a gradient that of no layer, its own scope."""
    if not is_gradient(name):
        return scope_of(name)
    around = [path for path in layers if is_within(name, path)]
    return max(around, key=len, default=scope_of(name))


def _of_layer(layer: Layer, nodes: Sequence[_Node]) -> Item:
    work = sum(node.operations for node in nodes)
    if len(nodes) == 1:
        return Item(layer.path, (Decision(layer),), work)
    costly = sorted(nodes, key=lambda node: -node.operations)
    return Item(layer.path, (Decision(layer),), work, tuple(_nodes(layer, costly)))


def _nodes(layer: Layer, nodes: Sequence[_Node]) -> list[Item]:
    return [Item(node.name, (Decision(layer, node.name),), node.operations) for node in nodes]


def _together(items: Sequence[Item]) -> Item:
    if len(items) == 1:
        return items[0]
    name = f"{items[0].name} and {len(items) - 1} like it"
    return Item(name, decisions_of(items), sum(item.operations for item in items), tuple(items))


def _number(value: Any) -> float:
    """A number of a document, in which infinity is text; nothing is zero."""
    found = float(value or 0.0)
    return math.inf if math.isnan(found) else found
