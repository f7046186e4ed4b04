"""The search for a small set that suffices in float32. It knows nothing of models: a function says whether a set does.

Zeller's ddmin (Simplifying and Isolating Failure-Inducing Input, 2002) makes a set 1-minimal: without any one of its
items it does not suffice. Before it, a prefix of the ranking is found that suffices, by doubling and then halving, so
that few runs are needed where the ranking is good, and twice the logarithm of the number of items where it is not.
Items that cost next to nothing in float32 are not divided: a layer is easier to read than its nodes, and is found again
after it was renamed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

from amp_tf.lock import Decision

_Item = TypeVar("_Item")


@dataclasses.dataclass(frozen=True)
class Item:
    """Something that may stay in float32.

    Attributes:
        name: for people.
        decisions: what a lock file says of it.
        operations: floating-point operations of one run of its 16-bit products.
        parts: smaller items of which it consists; none where it is not to be divided.
    """

    name: str
    decisions: tuple[Decision, ...]
    operations: float = 0.0
    parts: tuple[Item, ...] = ()


def reduce(
    items: tuple[_Item, ...], suffices: Callable[[tuple[_Item, ...]], bool], most: int | None
) -> tuple[_Item, ...]:
    """Leaves out ever smaller runs of items, the last ones first, as long as the others suffice.

    Args:
        items: which suffice together, the most helpful first.
        suffices: whether a set of them does.
        most: how often it may be called; with fewer calls, more items are left than needed. ``None`` for any number,
            which makes the set 1-minimal.
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
_LEAST_SHARE = 0.01  # of the products' operations: less is not worth the runs


class OutOfRunsError(Exception):
    """The number of runs that the user allows is used up."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        items: a set that suffices; ``None`` where no smaller one than all items was found to.
        is_minimal: whether it is known that no item of it can be left out.
    """

    items: Items | None
    is_minimal: bool


def find_smallest(ranked: Sequence[Item], suffices: Callable[[Items], bool], first: Items = ()) -> Found:
    """A small set of items that suffices.

    Args:
        ranked: all items, together sufficient; those that are needed most probably come first.
        suffices: whether a set does; it raises :class:`OutOfRunsError` where it may not be asked any more.
        first: a set to begin with, of an earlier search.
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
        return Found(_divided(items, asked, _LEAST_SHARE * sum(item.operations for item in ranked)), is_minimal=True)
    except OutOfRunsError:
        return Found(found, is_minimal=False)


def _find_prefix(ranked: Items, suffices: Callable[[Items], bool]) -> Items:
    """The shortest prefix that suffices, if longer ones do, too."""
    size, too_few, enough = 1, 0, len(ranked)
    while size < enough:
        if suffices(ranked[:size]):
            enough = size
        else:
            too_few, size = size, 2 * size
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if suffices(ranked[:middle]):
            enough = middle
        else:
            too_few = middle
    return ranked[:enough]


def _divided(items: Items, suffices: Callable[[Items], bool], least: float) -> Items:
    """Replaces items by parts of them, as long as fewer than all parts suffice; the most costly first.

    Args:
        items: a set that suffices.
        suffices: whether a set does.
        least: the operations from which on it is worth runs to divide an item.
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
