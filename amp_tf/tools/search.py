"""What may stay in float32, and the search for a small set of it that suffices: a function says whether a set does.

Items are layers that are made alike, each of them, and the nodes of each, from large to small.

Zeller's ddmin (Simplifying and Isolating Failure-Inducing Input, 2002) makes a set 1-minimal: without any one of its
items it does not suffice. Before it, a prefix of the ranking is found that suffices, by doubling and then halving, so
that few runs are needed where the ranking is good, and twice the logarithm of the number of items where it is not.
Items that cost next to nothing in float32 are not divided: a layer is easier to read than its nodes, and is found again
after it was renamed.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from amp_tf.graph.names import is_gradient, is_within, scope_of, whole_of, without_calls
from amp_tf.lock import Decision, Layer

_Item = TypeVar("_Item")


@dataclasses.dataclass(frozen=True)
class Item:
    """Something that may stay in float32."""

    name: str  #: for people
    decisions: tuple[Decision, ...]  #: what a lock file says of it
    operations: float = 0.0  #: floating-point operations of one run of its 16-bit products
    parts: tuple[Item, ...] = ()  #: smaller items of which it consists; none where it is not to be divided


def reduce(
    items: tuple[_Item, ...], suffices: Callable[[tuple[_Item, ...]], bool], most: int | None
) -> tuple[_Item, ...]:
    """Leaves out ever smaller runs of items, the last and least helpful first, as long as the others suffice.

    ``suffices`` is called at most so often, and then more items are left than needed; without a limit the set becomes
    1-minimal.
    """
    count = 2
    while len(items) > 1:
        size = -(-len(items) // count)
        for start in reversed(range(0, len(items), size)):
            if most is not None:
                if not most:
                    return items
                most -= 1
            rest = (*items[:start], *items[start + size :])
            if suffices(rest):
                items, count = rest, max(count - 1, 2)
                break
        else:
            if size == 1:
                break
            count = min(2 * count, len(items))
    return items


Items = tuple[Item, ...]
_LEAST_SHARE = 0.01  # of the products' operations: what costs less is as good as free, and not worth runs


class OutOfRunsError(Exception):
    """The number of runs that the user allows is used up."""


def find_smallest(
    ranked: Sequence[Item], suffices: Callable[[Items], bool], first: Items = ()
) -> tuple[Items | None, bool]:
    """A small set of ranked items, together sufficient, of which those that are needed most probably come first.

    ``suffices`` raises :class:`OutOfRunsError` where it may not be asked any more. ``first`` is a set to begin with.
    Returns the set, ``None`` where no smaller one than all items was found to suffice, and whether it is known that no
    item of it can be left out.
    """
    found: Items | None = None

    def asked(items: Items) -> bool:
        nonlocal found
        is_enough = suffices(items)
        if is_enough and (found is None or _cost(items) <= _cost(found)):
            found = items
        return is_enough

    try:
        items = first if first and asked(first) else _find_prefix(tuple(ranked), asked)
        items = reduce(items, asked, None)
        return _divided(items, asked, _LEAST_SHARE * sum(item.operations for item in ranked)), True
    except OutOfRunsError:
        return found, False


def _find_prefix(ranked: Items, suffices: Callable[[Items], bool]) -> Items:
    """The shortest prefix that suffices, if longer ones do, too."""
    enough = 1
    while enough < len(ranked) and not suffices(ranked[:enough]):
        enough *= 2
    counts, too_few = range(min(enough, len(ranked))), enough // 2
    return ranked[: bisect.bisect_left(counts, True, too_few + 1, key=lambda count: suffices(ranked[:count]))]


def _divided(items: Items, suffices: Callable[[Items], bool], least: float) -> Items:
    """Replaces items by parts of them, as long as fewer than all parts suffice; the most costly first.

    It is worth runs to divide an item that has ``least`` operations or more.
    """
    whole: list[Item] = []
    left = list(items)
    while left:
        item = max(left, key=lambda one: one.operations)
        left.remove(item)
        others = (*whole, *left)

        def still(parts: Items, others: Items = others) -> bool:
            return suffices((*others, *parts))

        needed = reduce(item.parts, still, None) if item.operations >= least else ()
        if needed and (len(needed) < len(item.parts) or any(part.parts for part in needed)):
            left += needed
        else:
            whole.append(item)
    return tuple(whole)


def _cost(items: Items) -> tuple[float, int]:
    return sum(item.operations for item in items), len(items)


_NUMBERS = re.compile(r"(_\d+)+(?=/|$)|\d+")


def find_items(report: Mapping[str, Any]) -> list[Item]:
    """The items of a program, from its report in mixed precision, in the order of their first nodes.

    Layers that are made alike, and whose names differ in numbers alone, are one item. The nodes of a model itself, or
    of another scope with layers in it, are items of their own.
    """
    layers: dict[str, Layer] = {}
    nodes: dict[str, float] = {}
    for graph in report["graphs"]:
        for row in graph["layers"]:
            layers.setdefault(row["layer"], Layer.of_row(row))
        for row in graph["nodes"]:
            if row["precision"] != "float32":
                work = (row.get("operations") or 0.0) * row.get("runs", 1.0)
                name = without_calls(whole_of(row["name"]))
                nodes[name] = max(work, nodes.get(name, 0.0))
    of_layer: dict[str, list[Item]] = {}
    for name, work in nodes.items():
        path = scope_of(name)
        if is_gradient(name):  # of the innermost layer around it
            path = max((path for path in layers if is_within(name, path)), key=len, default=path)
        decision = Decision(layers.get(path, Layer(path)), name)
        of_layer.setdefault(path, []).append(Item(name, (decision,), work))
    alike: dict[tuple[str, str, tuple[str, ...], str], list[Item]] = {}
    for path, inside in of_layer.items():
        layer = layers.get(path, Layer(path))
        place = _NUMBERS.sub(lambda found: "" if found[0].startswith("_") else "#", path)
        holds_others = any(other != path and is_within(f"{other}/", path) for other in layers)
        if not holds_others:
            parts = tuple(sorted(inside, key=lambda item: -item.operations)) if len(inside) > 1 else ()
            inside = [Item(path, (Decision(layer),), sum(item.operations for item in inside), parts)]
        for item in inside:
            key = place, layer.structure, layer.weights, item.name if holds_others else ""
            alike.setdefault(key, []).append(item)
    found = []
    for items in alike.values():
        name, work = f"{items[0].name} and {len(items) - 1} like it", sum(item.operations for item in items)
        found.append(items[0] if len(items) == 1 else Item(name, decisions_of(items), work, tuple(items)))
    return found


def rank(items: Iterable[Item], comparison: Mapping[str, Any] | None) -> list[Item]:
    """The items and their parts, those first that have to stay in float32 most probably, or cost least.

    First come those at which the document of a comparison of one step, if there is one, finds what goes wrong, in its
    order, which is that of their effect on the outputs; then those with most local error for each operation that
    float32 would cost.
    """
    items = list(items)
    everything = sum(item.operations for item in items) or 1.0
    findings = [finding["node"] for finding in (comparison or {}).get("findings", ())]
    rows = (row for row in (comparison or {}).get("nodes", ()) if row["has_truth"])
    errors = {row["name"]: float(row["local"] or 0.0) for row in rows}  # in which infinity is text

    def key(item: Item) -> tuple[int, float]:
        found = next((place for place, node in enumerate(findings) if holds(item, node)), len(findings))
        known = (error for node, error in errors.items() if holds(item, node))
        local = max((math.inf if math.isnan(error) else error for error in known), default=0.0)
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
