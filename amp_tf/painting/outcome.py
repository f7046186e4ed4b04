"""The result of the painting: the precision of each unit, and the reason for each node."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Flags, Indices, Mask, Node, Unit
from amp_tf.graph.view import GraphView, compact
from amp_tf.painting.canvas import NO_CAUSE, Canvas, units_of
from amp_tf.painting.eligibility import NO_OBSTACLES, Obstacles
from amp_tf.painting.reasons import IMPOSSIBLE, Balance, Reason, Rule
from amp_tf.precision import Precision

_KEPT = ("is_float32", "type_allowed", "convertible", "allow", "deny", "rule", "weighed")  # of the canvas


@dataclasses.dataclass(frozen=True)
class Marks:
    """What the rules left on the canvas, arrays of one entry a unit: enough to say why, without the graph's edges.

    Reports keep them for every graph, hence no lists, which take ten times the memory.
    """

    node_of: Indices
    listed: Flags
    is_float32: Flags
    type_allowed: Flags
    convertible: Flags
    allow: Flags
    deny: Flags
    rule: Flags
    cause: Indices
    weighed: dict[int, Balance | str] = dataclasses.field(default_factory=dict)


_NOTHING: Any = np.zeros(0, np.int32)
NO_MARKS = Marks(*[_NOTHING] * 9)


@dataclasses.dataclass(frozen=True)
class Painting:
    """What the rules decided.

    Attributes:
        precision: the 16-bit type; ``None`` where nothing can be converted on this machine.
        converted: the units that become 16 bit, in order.
        to_split: fused products of whose bias or activation float32 is asked.
        why_nothing: where nothing is converted, the rule that explains it, with more words as detail; else ``None``.
    """

    view: GraphView
    precision: Precision | None
    converted: Sequence[Unit]
    obstacles: Obstacles = NO_OBSTACLES
    to_split: Sequence[Node] = ()
    why_nothing: Rule | None = None
    detail: str = ""
    _marks: Marks = NO_MARKS

    @classmethod
    def of(cls, canvas: Canvas) -> Painting:
        """The result of a finished canvas."""
        converted = compact(np.flatnonzero(canvas.allow & canvas.is_float32))
        return cls(
            view=canvas.view,
            precision=canvas.target.precision,
            converted=converted,
            obstacles=canvas.obstacles,
            to_split=tuple(canvas.to_split),
            why_nothing=None if converted else _why_nothing(canvas),
            _marks=Marks(
                node_of=np.asarray(canvas.node_of, np.int32),
                listed=canvas.on_allow | canvas.on_infer | canvas.on_deny | canvas.on_clear,
                cause=np.asarray(canvas.cause, np.int32),
                **{name: getattr(canvas, name) for name in _KEPT},
            ),
        )

    def is_f16(self) -> Mask:
        """Of each unit, whether it is the 16-bit type once the graph is rewritten."""
        found: Mask = self.dtypes_after() == (self.precision.data_type if self.precision else datatypes.INVALID)
        return found

    def may_be_f16(self) -> Mask:
        """Of each unit, whether it stays in float32 although nothing forbids to touch its node."""
        may: Mask = np.asarray(self.view.dtypes) == datatypes.FLOAT
        may &= self.precision is not None
        for node in self.obstacles.rule_of:
            may[self.view.units(node)] = False
        may[self.converted] = False
        return may

    def also(self, units: Sequence[Unit], rule: Rule) -> Painting:
        """The same painting with more units that become 16 bit."""
        if not units:
            return self
        marks = dataclasses.replace(self._marks, allow=self._marks.allow.copy(), rule=self._marks.rule.copy())
        marks.allow[units], marks.rule[units] = 1, rule
        converted = compact(sorted({*self.converted, *units}))
        return dataclasses.replace(self, converted=converted, why_nothing=None, _marks=marks)

    def detached(self) -> Painting:
        """The same painting without the graph's protos and edges, to be kept for the report."""
        return dataclasses.replace(self, view=self.view.detached())

    def dtypes_after(self) -> Indices:
        """The ``DataType`` number of each unit once the graph is rewritten, as an array of 32-bit integers."""
        dtypes = np.array(self.view.dtypes, np.int32)
        if self.precision is not None:
            dtypes[self.converted] = self.precision.data_type
        return dtypes

    def converted_nodes(self) -> list[Node]:
        """The nodes of which at least one type becomes 16 bit, in order."""
        return np.flatnonzero(np.bincount(self._marks.node_of[self.converted])).tolist()  # type: ignore[no-any-return]

    def count(self, rule: Rule) -> int:
        """How many nodes a rule left its mark on."""
        return len(np.unique(self._marks.node_of[self._marks.rule == rule]))

    def reason(self, node: Node) -> Reason:
        """Why a node has its precision: the rule for the type of its result, or else for its first float32 type."""
        marks = self._marks
        if self.why_nothing is Rule.NO_TARGET:
            return Reason(Rule.NO_TARGET, detail=self.detail)
        units = [unit for unit in self.view.units(node) if marks.is_float32[unit]]
        if not units:
            return Reason(Rule.NO_FLOAT32)
        unit = next((unit for unit in units if marks.allow[unit]), None)
        if unit is None:
            if node in self.obstacles.rule_of:
                return Reason(self.obstacles.rule_of[node])
            unit = units[0]
        rule, weighed = self._rule(unit, node), marks.weighed.get(unit)
        if rule is Rule.DOES_NOT_PAY and weighed is not None:
            return Reason(rule, detail=str(weighed), balance=weighed if isinstance(weighed, Balance) else None)
        detail = self.obstacles.refused.get(node, "") if rule is Rule.NO_KERNEL else ""
        cause = self._before[unit]
        name = "" if cause == unit else self.view.names[marks.node_of[cause]]
        return Reason(rule, name, f"with {detail}" if detail else "")

    def trail(self, node: Node) -> list[str]:
        """The names of the nodes along which the decision came, from this one to where it began."""
        names, unit, seen = [self.view.names[node]], self._first_painted.get(node), set[Unit]()
        while unit is not None and unit not in seen and (before := int(self._before[unit])) != unit:
            seen.add(unit)
            unit = before
            names.append(self.view.names[self._marks.node_of[unit]])
        return names

    @functools.cached_property
    def origins(self) -> Indices:
        """For each node the last one of its :meth:`trail`."""
        found, last = np.arange(self.view.node_count, dtype=np.int32), self._before
        for _ in range(len(last).bit_length()):  # each time twice as far
            last = last[last]
        found[[*self._first_painted]] = self._marks.node_of[last[[*self._first_painted.values()]]]
        return found

    @functools.cached_property
    def _first_painted(self) -> dict[Node, Unit]:
        """Of each node that has paint, its first float32 unit that has."""
        painted = np.flatnonzero(self._marks.is_float32 & (self._marks.allow | self._marks.deny))
        nodes, first = np.unique(self._marks.node_of[painted], return_index=True)
        return dict(zip(nodes.tolist(), painted[first].tolist(), strict=True))

    @functools.cached_property
    def _before(self) -> Indices:
        """For each unit the one that brought its precision about; itself where its rule needs none."""
        marks = self._marks
        caused = np.isin(marks.rule, [rule for rule in Rule if "{cause}" in rule.words]) & (marks.cause != NO_CAUSE)
        return np.where(caused, marks.cause, np.arange(len(caused), dtype=np.int32))

    def _rule(self, unit: Unit, node: Node) -> Rule:
        marks = self._marks
        if marks.rule[unit]:
            return Rule(int(marks.rule[unit]))
        if not marks.listed[unit] and node not in self.obstacles.forced:
            return Rule.NOT_LISTED
        if self.view.signatures[node].holds_functions:
            return Rule.CALLS_FUNCTION
        if not marks.type_allowed[unit]:
            return Rule.TYPE_NOT_ALLOWED
        if not marks.convertible[unit]:
            return Rule.NO_KERNEL
        return Rule.NOTHING_TO_CONVERT if self.why_nothing else Rule.NO_ALLOW_NEIGHBOUR


def _why_nothing(canvas: Canvas) -> Rule:
    """The commonest reason among the nodes that the allow list would have converted."""
    lost = np.isin(canvas.rule, list(IMPOSSIBLE))  # their place on the allow list, because they cannot be 16 bit
    units = units_of((canvas.on_allow | lost) & canvas.is_float32)
    rules = (canvas.obstacles.rule_of.get(canvas.node_of[unit]) or canvas.rule[unit] for unit in units)
    blocked = collections.Counter(Rule(int(rule)) for rule in rules if rule and not Rule(int(rule)).converts)
    return blocked.most_common(1)[0][0] if blocked else Rule.NOTHING_TO_CONVERT
