"""The result of the painting: the precision of each unit, and the reason for each node."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Flags, Indices, Mask, Node, Unit
from amp_tf.graph.view import GraphView, compact
from amp_tf.painting.canvas import NO_CAUSE, Canvas, units_of
from amp_tf.painting.eligibility import Obstacles
from amp_tf.painting.locked import NOTHING_LOCKED, Locked
from amp_tf.painting.reasons import IMPOSSIBLE, Balance, Reason, Rule
from amp_tf.precision import Precision

_NO_OBSTACLES = Obstacles({}, {}, ())
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
    weighed: dict[int, Balance | str]


@dataclasses.dataclass(frozen=True)
class Painting:
    """What the rules decided.

    Attributes:
        view: the graph that was painted.
        precision: the 16-bit type; ``None`` where nothing can be converted on this machine.
        converted: the units that become 16 bit, in order.
        unmatched: name rules that matched no node.
        locked: what the lock file keeps in float32.
        of_scopes: the patterns of the scopes in this graph, each with whether it matched a node.
        to_split: fused products of whose bias or activation float32 is asked.
        why_nothing: where nothing is converted, the rule that explains it; else ``None``.
        detail: more words on ``why_nothing``.
    """

    view: GraphView
    precision: Precision | None
    converted: Sequence[Unit]
    unmatched: tuple[str, ...] = ()
    locked: Locked = NOTHING_LOCKED
    of_scopes: Mapping[str, bool] = dataclasses.field(default_factory=dict, hash=False)
    to_split: Sequence[Node] = ()
    why_nothing: Rule | None = None
    detail: str = ""
    _marks: Marks | None = None
    _obstacles: Obstacles = _NO_OBSTACLES

    @classmethod
    def blank(cls, view: GraphView, rule: Rule, detail: str) -> Painting:
        """A painting that converts nothing."""
        return cls(view, None, [], why_nothing=rule, detail=detail)

    @classmethod
    def of(cls, canvas: Canvas, *, nothing_to_convert: bool = False) -> Painting:
        """The result of a finished canvas."""
        converted = compact(np.flatnonzero(canvas.allow & canvas.is_float32))
        nothing = nothing_to_convert or not converted
        return cls(
            view=canvas.view,
            precision=canvas.target.precision,
            converted=converted,
            unmatched=canvas.obstacles.unmatched,
            locked=canvas.obstacles.locked,
            of_scopes=canvas.obstacles.of_scopes,
            to_split=tuple(canvas.to_split),
            why_nothing=_why_nothing(canvas) if nothing else None,
            _marks=Marks(
                node_of=np.asarray(canvas.node_of, np.int32),
                listed=canvas.on_allow | canvas.on_infer | canvas.on_deny | canvas.on_clear,
                cause=np.asarray(canvas.cause, np.int32),
                **{name: getattr(canvas, name) for name in _KEPT},
            ),
            _obstacles=canvas.obstacles,
        )

    def is_f16(self) -> Mask:
        """Of each unit, whether it is the 16-bit type once the graph is rewritten."""
        found: Mask = self.dtypes_after() == (self.precision.data_type if self.precision else datatypes.INVALID)
        return found

    def may_be_f16(self) -> Mask:
        """Of each unit, whether it stays in float32 although nothing forbids to touch its node."""
        may: Mask = np.asarray(self.view.dtypes) == datatypes.FLOAT
        may &= self.precision is not None
        for node in self._obstacles.rule_of:
            may[self.view.units(node)] = False
        may[self.converted] = False
        return may

    def also(self, units: Sequence[Unit], rule: Rule) -> Painting:
        """The same painting with more units that become 16 bit."""
        if not units or self._marks is None:
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
        if self._marks is None:
            return []
        return np.unique(self._marks.node_of[self.converted]).tolist()  # type: ignore[no-any-return]

    def count(self, rule: Rule) -> int:
        """How many nodes a rule left its mark on."""
        marks = self._marks
        return 0 if marks is None else len(np.unique(marks.node_of[marks.rule == rule]))

    def reason(self, node: Node) -> Reason:
        """Why a node has its precision: the rule for the type of its result, or else for its first float32 type."""
        marks = self._marks
        if marks is None or self.why_nothing is Rule.NO_TARGET:
            return Reason(Rule.NO_TARGET, detail=self.detail)
        units = [unit for unit in self.view.units(node) if marks.is_float32[unit]]
        if not units:
            return Reason(Rule.NO_FLOAT32)
        unit = next((unit for unit in units if marks.allow[unit]), None)
        if unit is None:
            if node in self._obstacles.rule_of:
                return Reason(self._obstacles.rule_of[node])
            unit = units[0]
        rule, weighed = self._rule(unit, node), marks.weighed.get(unit)
        if rule is Rule.DOES_NOT_PAY and weighed is not None:
            return Reason(rule, detail=str(weighed), balance=weighed if isinstance(weighed, Balance) else None)
        detail = self._obstacles.refused.get(node, "") if rule is Rule.NO_KERNEL else ""
        cause = self._cause(unit)
        name = self.view.names[self._node_of(cause)] if cause >= 0 else ""
        return Reason(rule, name, f"with {detail}" if detail else "")

    def trail(self, node: Node) -> list[str]:
        """The names of the nodes along which the decision came, from this one to where it began."""
        names, unit, seen = [self.view.names[node]], self._painted_unit(node), set[Unit]()
        while unit >= 0 and unit not in seen and (before := self._cause(unit)) >= 0:
            seen.add(unit)
            unit = before
            names.append(self.view.names[self._node_of(unit)])
        return names

    def origin(self, node: Node, known: dict[Unit, Unit]) -> Node:
        """The last node of :meth:`trail`, for many nodes.

        Args:
            node: one of the graph.
            known: where the ways from units end, as found before; what is found now is added.
        """
        unit = self._painted_unit(node)
        if unit < 0:
            return node
        passed = []
        while unit not in known:
            passed.append(unit)
            known[unit] = unit  # where it begins, or a circle closes
            before = self._cause(unit)
            unit = unit if before < 0 else before
        known.update(dict.fromkeys(passed, known[unit]))
        return self._node_of(known[unit])

    def _node_of(self, unit: Unit) -> Node:
        assert self._marks is not None
        return int(self._marks.node_of[unit])

    def _painted_unit(self, node: Node) -> Unit:
        """The first float32 unit of a node that has paint; -1 for none."""
        marks = self._marks
        if marks is None:
            return -1
        painted = (u for u in self.view.units(node) if marks.is_float32[u] and (marks.allow[u] or marks.deny[u]))
        return next(painted, -1)

    def _rule(self, unit: Unit, node: Node) -> Rule:
        marks = self._marks
        assert marks is not None
        if marks.rule[unit]:
            return Rule(int(marks.rule[unit]))
        if not marks.listed[unit] and node not in self._obstacles.forced:
            return Rule.NOT_LISTED
        if self.view.signatures[node].holds_functions:
            return Rule.CALLS_FUNCTION
        if not marks.type_allowed[unit]:
            return Rule.TYPE_NOT_ALLOWED
        if not marks.convertible[unit]:
            return Rule.NO_KERNEL
        return Rule.NOTHING_TO_CONVERT if self.why_nothing else Rule.NO_ALLOW_NEIGHBOUR

    def _cause(self, unit: Unit) -> Unit:
        """The unit that brought a unit's precision about; -1 where its rule needs none."""
        marks = self._marks
        assert marks is not None
        needs_cause = marks.rule[unit] and "{cause}" in Rule(int(marks.rule[unit])).words
        return int(marks.cause[unit]) if needs_cause else NO_CAUSE


def _why_nothing(canvas: Canvas) -> Rule:
    """The commonest reason among the nodes that the allow list would have converted."""
    lost = np.isin(canvas.rule, list(IMPOSSIBLE))  # their place on the allow list, because they cannot be 16 bit
    units = units_of((canvas.on_allow | lost) & canvas.is_float32)
    rules = (canvas.obstacles.rule_of.get(canvas.node_of[unit]) or canvas.rule[unit] for unit in units)
    blocked = collections.Counter(Rule(int(rule)) for rule in rules if rule and not Rule(int(rule)).converts)
    return blocked.most_common(1)[0][0] if blocked else Rule.NOTHING_TO_CONVERT
