"""Searches for patterns that make all outputs good on all batches: a set grows until it does, and is then reduced.

The search begins with the suspects of the judged batch. If they do not suffice, the nodes are measured again with these
in float32, in the batch that then has the largest error, and its suspects are added; finally all 16-bit nodes are,
layer by layer. A sufficient set is reduced by Zeller's ddmin (Simplifying and Isolating Failure-Inducing Input, 2002).
A set that was reduced on the watched batches is tried on all batches before it is believed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from amp_tf.comparing.running import NodeMeasurement
from amp_tf.comparing.suspects import Patterns, narrow, scope_pattern, suspects
from amp_tf.comparing.trials import Trials
from amp_tf.precision import Precision
from amp_tf.rewriting.fused_names import Followers

_LOOKS = 4  # each needs a graph that runs float32 and 16 bit side by side
_REDUCTIONS = 3  # each may fail on the other batches
_TRIALS = 12  # of one reduction
_Item = TypeVar("_Item")


@dataclasses.dataclass(frozen=True)
class Part:
    """Some of the patterns, and the node that they are for; ``None`` where they are for a whole layer."""

    patterns: Patterns
    measured: NodeMeasurement | None = None

    @property
    def name(self) -> str:
        """The node's name, or the layer's pattern."""
        return self.patterns[0] if self.measured is None else self.measured.probe.name


@dataclasses.dataclass(frozen=True)
class Remedy:
    """The result of the search.

    Attributes:
        parts: whose patterns do so together, as was tried on all batches; none where nothing does.
        is_cut: whether the user interrupted the search.
    """

    parts: tuple[Part, ...] = ()
    is_cut: bool = False


def find_remedy(first: Sequence[Part], precision: Precision, followers: Followers, trials: Trials) -> Remedy:
    """Searches for patterns that make all outputs good.

    Args:
        first: what to begin with, the most helpful first.
        precision: the 16-bit type.
        followers: what may be fused with each product.
        trials: run the step with patterns.
    """
    parts: tuple[Part, ...] = ()
    try:
        parts = _grow(first, precision, followers, trials)
        return Remedy(_reduced(parts, trials))
    except KeyboardInterrupt:
        return Remedy(parts, is_cut=True)


def patterns_of(parts: Sequence[Part]) -> Patterns:
    """The patterns of some parts, each once."""
    return tuple(dict.fromkeys(pattern for part in parts for pattern in part.patterns))


def _grow(first: Sequence[Part], precision: Precision, followers: Followers, trials: Trials) -> tuple[Part, ...]:
    """Parts that suffice on all batches; none where not even all nodes in float32 do."""
    parts = tuple(first)
    for _ in range(_LOOKS):
        if trials.holds(patterns_of(parts)):
            return parts
        nodes = suspects(trials.measure_nodes(patterns_of(parts)), precision, followers)
        if not nodes:
            break
        parts += tuple(Part(narrow(measured, followers), measured) for measured in nodes)
    if trials.holds(patterns_of(parts)):
        return parts
    layers = dict.fromkeys(scope_pattern(name) for name in trials.converted(()))
    everything = tuple(Part((layer,)) for layer in layers)
    return everything if trials.holds(patterns_of(everything)) else ()


def _reduced(parts: tuple[Part, ...], trials: Trials) -> tuple[Part, ...]:
    """The smallest set of patterns that the trials find sufficient, as parts."""
    needed = patterns_of(parts)
    for _ in range(_REDUCTIONS):
        fewer = reduce(needed, trials.is_right, _TRIALS)
        if trials.holds(fewer):
            needed = fewer
            break
    return tuple(_left_of(parts, needed))


def _left_of(parts: Sequence[Part], needed: Patterns) -> Iterator[Part]:
    """The parts reduced to the patterns that are needed: each pattern in its first part, each node once."""
    left = dict.fromkeys(needed)
    for name in dict.fromkeys(part.name for part in parts):
        same = [part for part in parts if part.name == name]
        own = tuple(pattern for pattern in patterns_of(same) if pattern in left)
        for pattern in own:
            del left[pattern]
        if own:
            yield dataclasses.replace(same[0], patterns=own)


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
