"""The result of the painting: the precision of each unit, and the reason for each node."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Indices, Mask, Node, Unit
from amp_tf.graph.view import GraphView, compact
from amp_tf.oplists.table import PRODUCTS
from amp_tf.painting.canvas import Canvas, Marks, units_of
from amp_tf.painting.eligibility import NO_OBSTACLES, Obstacles
from amp_tf.painting.reasons import IMPOSSIBLE, Balance, Reason, Rule
from amp_tf.precision import Precision

#: What is said of a converted product that a float32 kernel computes.
AS_TENSOR_CORES = (
    "computed in float32, with operands and result rounded to 16 bit, as tensor cores do"
)
_MARKS = [field.name for field in dataclasses.fields(Marks)]
_NOTHING: dict[str, Any] = dict.fromkeys(_MARKS, np.zeros(0, np.uint8))


@dataclasses.dataclass(frozen=True)
class Painting:
    """What the rules decided.

    Attributes:
        precision: the 16-bit type; ``None`` where nothing can be converted on this machine.
        converted: the units that become 16 bit, in order.
        rounded: ops that float32 kernels compute where they become 16 bit, between roundings to it.
        to_split: fused products of whose bias or activation float32 is asked.
        why_nothing: where nothing is converted, the rule that explains it, with more words as
            detail; else ``None``.
    """

    view: GraphView
    precision: Precision | None
    converted: Sequence[Unit]
    obstacles: Obstacles = NO_OBSTACLES
    rounded: frozenset[str] = frozenset()
    to_split: Sequence[Node] = ()
    why_nothing: Rule | None = None
    detail: str = ""
    _marks: Marks = dataclasses.field(default=Marks(**_NOTHING), repr=False)

    @classmethod
    def of(cls, canvas: Canvas) -> Painting:
        """The result of a finished canvas."""
        converted = compact(np.flatnonzero(canvas.allow & canvas.is_float32))
        return cls(
            view=canvas.view,
            precision=canvas.target.precision,
            converted=converted,
            obstacles=canvas.obstacles,
            rounded=canvas.target.rounded,
            to_split=tuple(canvas.to_split),
            why_nothing=None if converted else _why_nothing(canvas),
            _marks=Marks(**{name: getattr(canvas, name) for name in _MARKS}),
        )

    def is_f16(self) -> Mask:
        """Of each unit, whether it is the 16-bit type once the graph is rewritten."""
        found: Mask = self.dtypes_after() == (
            self.precision.data_type if self.precision else datatypes.INVALID
        )
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
        marks = dataclasses.replace(
            self._marks, allow=self._marks.allow.copy(), rule=self._marks.rule.copy()
        )
        marks.allow[units], marks.rule[units] = 1, rule
        converted = compact(sorted({*self.converted, *units}))
        return dataclasses.replace(self, converted=converted, why_nothing=None, _marks=marks)

    def detached(self) -> Painting:
        """The same painting without the graph's protos and edges, to be kept for the report."""
        return dataclasses.replace(self, view=self.view.detached())

    def dtypes_after(self) -> Indices:
        """The ``DataType`` number of each unit once the graph is rewritten, as an array of 32-bit
        integers.
        """
        dtypes = np.array(self.view.dtypes, np.int32)
        if self.precision is not None:
            dtypes[self.converted] = self.precision.data_type
        return dtypes

    def rounded_units(self) -> Mask:
        """Of each unit, whether it becomes 16 bit and is computed in float32 between roundings."""
        found: Mask = np.zeros(self.view.unit_count, np.bool_)
        found[self.converted] = True
        found &= self.view.spread(self.view.mask_with(self.rounded))
        return found

    def converted_nodes(self) -> list[Node]:
        """The nodes of which at least one type becomes 16 bit, in order."""
        return np.unique(self._node_of[self.converted]).tolist()  # type: ignore[no-any-return]

    def count(self, rule: Rule) -> int:
        """How many nodes a rule left its mark on."""
        return len(np.unique(self._node_of[np.flatnonzero(self._marks.rule == rule)]))

    def reason(self, node: Node) -> Reason:
        """Why a node has its precision: the rule for the type of its result, or else for its first
        float32 type.
        """
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
            return Reason(
                rule, detail=str(weighed), balance=weighed if isinstance(weighed, Balance) else None
            )
        cause = self._before[unit]
        name = "" if cause == unit else self.view.names[self.view.unit_nodes[cause]]
        return Reason(rule, name, self._detail(rule, node))

    def _detail(self, rule: Rule, node: Node) -> str:
        if rule.converts and self.view.ops[node] in self.rounded:
            return AS_TENSOR_CORES
        refused = self.obstacles.refused.get(node) if rule is Rule.NO_KERNEL else None
        return f"with {refused}" if refused else ""

    def trail(self, node: Node) -> list[Node]:
        """The nodes along which the decision came, from this one to where it began."""
        marks, own = self._marks, slice(self.view.base[node], self.view.base[node + 1])
        painted = np.flatnonzero(
            marks.is_float32[own] & (marks.allow[own] | marks.deny[own])
        ).tolist()
        unit, units = own.start + painted[0] if painted else None, dict[Unit, None]()
        while unit is not None and unit not in units:
            units[unit] = None
            unit = int(self._before[unit])
        return [self.view.unit_nodes[unit] for unit in units] or [node]

    @property
    def _node_of(self) -> Indices:
        return np.asarray(self.view.unit_nodes, np.int32)

    @functools.cached_property
    def _before(self) -> Indices:
        """For each unit the one that brought its precision about; itself where its rule needs none."""
        caused = np.isin(self._marks.rule, [rule for rule in Rule if "{cause}" in rule.words])
        return np.where(caused, self._marks.cause, np.arange(len(caused), dtype=np.int32))

    def _rule(self, unit: Unit, node: Node) -> Rule:
        marks = self._marks
        if marks.rule[unit]:
            return Rule(int(marks.rule[unit]))
        lists = marks.on_allow, marks.on_infer, marks.on_deny, marks.on_clear
        if not any(of_list[unit] for of_list in lists) and node not in self.obstacles.forced:
            return Rule.NOT_LISTED
        if self.view.signatures[node].holds_functions:
            return Rule.CALLS_FUNCTION
        if marks.on_deny[unit]:  # no pass looked at it, because nothing is on the allow list
            return Rule.DENY_LIST
        if not marks.type_allowed[unit]:
            return Rule.TYPE_NOT_ALLOWED
        if not marks.convertible[unit]:
            return Rule.NO_KERNEL
        return Rule.NOTHING_TO_CONVERT if self.why_nothing else Rule.NO_ALLOW_NEIGHBOUR


def _why_nothing(canvas: Canvas) -> Rule:
    """The commonest reason among the nodes that the allow list would have converted."""
    # Rules that keep a node in float32 take it off the list.
    lost = np.isin(canvas.rule, list(IMPOSSIBLE))
    lost |= canvas.view.spread(canvas.view.mask_with(PRODUCTS)).astype(np.bool_)
    units = units_of((canvas.on_allow | lost) & canvas.is_float32)
    rules = (
        canvas.obstacles.rule_of.get(canvas.view.unit_nodes[unit]) or canvas.rule[unit]
        for unit in units
    )
    blocked = collections.Counter(
        Rule(int(rule)) for rule in rules if rule and not Rule(int(rule)).converts
    )
    return blocked.most_common(1)[0][0] if blocked else Rule.NOTHING_TO_CONVERT
