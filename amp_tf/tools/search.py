"""Searches for a small set of layers that suffices in float32; a function says whether a set does.

An item is a layer, or all layers that are made alike, which are then its parts. A layer is not
divided into its nodes, because their names are TensorFlow's and change with the program.

Zeller's ddmin (Simplifying and Isolating Failure-Inducing Input, 2002) makes a set 1-minimal:
without any one of its items it does not suffice. Before that, doubling and then halving finds a
prefix of the ranking that suffices. It needs few runs if the ranking is good, and twice the
logarithm of the number of items if it is not. Items that cost next to nothing in float32 are not
divided.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from amp_tf.graph.layers import innermost_scope, is_gradient, scope_of, scopes
from amp_tf.graph.names import whole_of, without_calls
from amp_tf.oplists.table import PRODUCTS
from amp_tf.reporting.files import Document
from amp_tf.tools.keeping import (
    Patterns,
    any_matcher,
    layer_pattern,
    node_pattern,
    scope_pattern,
)

_Item = TypeVar("_Item")


@dataclasses.dataclass(frozen=True)
class Item:
    """A part of a program that may stay in float32 as a whole."""

    name: str  #: for people
    patterns: Patterns  #: for ``AmpConfig.keep_float32``
    operations: float = 0.0  #: floating-point operations of one run of its 16-bit products
    parts: tuple[Item, ...] = ()  #: the items of layers that are made alike; empty for one layer


def reduce(
    items: tuple[_Item, ...], suffices: Callable[[tuple[_Item, ...]], bool], most: int | None
) -> tuple[_Item, ...]:
    """Leaves out ever smaller runs of items, as long as the others suffice.

    The last and least helpful items go first.

    ``suffices`` is called at most ``most`` times, which may leave needless items. Without that
    limit the set becomes 1-minimal.
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
                items = rest
                count = max(count - 1, 2)
                break
        else:
            if size == 1:
                break
            count = min(2 * count, len(items))
    return items


Items = tuple[Item, ...]
Suffices = Callable[[Items], bool]  #: tells whether a set of items suffices in float32
#: A share of the products' operations. An item that costs less is as good as free, and not worth
#: runs.
_LEAST_SHARE = 0.01


class OutOfRunsError(Exception):
    """The number of runs that the user allows is used up."""


def find_smallest(ranked: Sequence[Item], suffices: Suffices) -> tuple[Items | None, bool]:
    """Finds a small set of items that suffices.

    Args:
        ranked: the items, those first that are needed most probably.
        suffices: tells whether a set suffices; raises :class:`OutOfRunsError` if no run is left.

    Returns:
        The set, ``None`` if none was found that suffices; and whether it is known that no item of
        the set can be left out.
    """
    smallest: Items | None = None

    def try_items(items: Items) -> bool:
        nonlocal smallest
        is_enough = suffices(items)
        if is_enough and (smallest is None or _cost(items) <= _cost(smallest)):
            smallest = items
        return is_enough

    try:
        items = reduce(_find_prefix(tuple(ranked), try_items), try_items, None)
        # A set of all items was taken for good, and is not if patterns fail to find them again.
        if smallest is None and not try_items(items):
            return None, True
        return _divided(items, try_items, _LEAST_SHARE * _operations(ranked)), True
    except OutOfRunsError:
        return smallest, False


def _find_prefix(ranked: Items, suffices: Suffices) -> Items:
    """Finds the shortest prefix that suffices, on the assumption that longer ones suffice, too."""
    enough = 1
    while enough < len(ranked) and not suffices(ranked[:enough]):
        enough *= 2
    counts = range(min(enough, len(ranked)))
    too_few = enough // 2
    count = bisect.bisect_left(
        counts, True, too_few + 1, key=lambda count: suffices(ranked[:count])
    )
    return ranked[:count]


def _divided(items: Items, suffices: Suffices, least: float) -> Items:
    """Replaces items by those of their parts that suffice, the most costly first.

    Items with fewer than ``least`` operations stay whole.
    """
    for item in sorted(items, key=lambda one: -one.operations):
        if item.operations < least or not item.parts:
            continue
        others = tuple(other for other in items if other is not item)

        def still(parts: Items, others: Items = others) -> bool:
            return suffices((*others, *parts))

        items = (*others, *reduce(item.parts, still, None))
    return items


def _cost(items: Items) -> tuple[float, int]:
    return _operations(items), len(items)


def _operations(items: Iterable[Item | Node]) -> float:
    return sum(item.operations for item in items)


_CALLS = re.compile(r"(_\d+)+(?=/|$)")  # numbers of calls, or of layers of one name
_NUMBERS = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class Node:
    """A 16-bit node of a program."""

    name: str  #: in the function that it was inlined from
    op: str
    #: the path in Keras of its layer, or else the name scope; of a gradient, the forward node's
    place: str
    pattern: str  #: for all nodes of that place; empty where it is no scope
    operations: float  #: of a product, floating-point operations in one run of its graph


def find_items(report: Document) -> list[Item]:
    """Returns the items of a program, in the order of their first nodes.

    They are found in its report in mixed precision.

    Layers that are made alike, and whose names differ in numbers alone, are one item. The nodes of
    a model itself, or of another scope with layers in it, are named one by one.
    """
    of_place: dict[str, list[Node]] = {}
    for node in find_nodes(report):
        of_place.setdefault(node.place, []).append(node)
    alike: dict[tuple[Any, ...], list[Item]] = {}
    for place, inside in of_place.items():
        pattern = inside[0].pattern
        patterns = {pattern}
        if not pattern or any(_is_inside(other, place) for other in of_place):
            patterns = {node_pattern(node.name) for node in inside}
        structure = []
        for node in inside:
            if not is_gradient(node.name):
                structure.append((node.op, node.operations))
        kind = _NUMBERS.sub("#", _CALLS.sub("", place)), *sorted(structure)
        item = Item(place, tuple(sorted(patterns)), _operations(inside))
        alike.setdefault(kind, []).append(item)
    return list(map(_joined, alike.values()))


def find_nodes(report: Document) -> list[Node]:
    """Returns the 16-bit nodes of all graphs, one of each name: that with most operations."""
    rows: list[Document] = []
    for graph in report["graphs"]:
        rows += graph["nodes"]
    forward = _forward_places(rows)
    found: dict[str, Node] = {}
    for row in rows:
        if row["precision"] == "float32":
            continue
        name = without_calls(whole_of(row["name"]))
        operations = 0.0
        if row["op"] in PRODUCTS:
            operations = (row.get("operations") or 0.0) * row.get("runs", 1.0)
        if name not in found or found[name].operations < operations:
            place, pattern = _place_of(name, row.get("layer", ""), forward)
            found[name] = Node(name, row["op"], place, pattern, operations)
    return list(found.values())


def _forward_places(rows: Iterable[Document]) -> dict[str, bool]:
    """Returns the places in which forward nodes compute, with whether each is a scope."""
    found = {}
    for row in rows:
        name = row["name"]
        if row.get("operations", 0.0) != 0.0 and not is_gradient(name):
            found[scope_of(name)] = bool(scopes(name))
    return found


def _place_of(name: str, layer: str, forward: Mapping[str, bool]) -> tuple[str, str]:
    """Returns the place of a node, and the pattern for it; empty where it is no scope."""
    if layer:
        return layer, layer_pattern(layer)
    place = scope_of(name)
    is_scope = bool(scopes(name))
    if is_gradient(name):
        place = innermost_scope(name, forward) or place
        is_scope = forward.get(place, False)
    if is_scope:
        return place, scope_pattern(place)
    return place, ""


def _is_inside(place: str, outer: str) -> bool:
    return place != outer and f"/{outer}/" in f"/{place}/"


def _joined(items: Sequence[Item]) -> Item:
    """Returns one item for items that are made alike, which become its parts."""
    if len(items) == 1:
        return items[0]
    name = f"{items[0].name} and {len(items) - 1} like it"
    return Item(name, patterns_of(items), _operations(items), tuple(items))


def rank(items: Iterable[Item], findings: Sequence[str], errors: Mapping[str, float]) -> list[Item]:
    """Sorts items, those first that most probably have to stay in float32.

    First come those with the nodes at which a comparison of one step finds what goes wrong, in the
    order of these ``findings``; then those with most local error for each operation that float32
    would cost, by the ``errors`` of nodes.
    """
    items = list(items)
    everything = _operations(items) or 1.0

    def key(item: Item) -> tuple[int, float]:
        is_held = any_matcher(item.patterns)
        places = (place for place, node in enumerate(findings) if is_held(node))
        place = next(places, len(findings))
        local = max((error for node, error in errors.items() if is_held(node)), default=0.0)
        return place, -local / max(item.operations / everything, _LEAST_SHARE)

    return sorted(items, key=key)


def patterns_of(items: Iterable[Item]) -> Patterns:
    """Returns the patterns of some items, each once, sorted."""
    found: set[str] = set()
    for item in items:
        found.update(item.patterns)
    return tuple(sorted(found))
