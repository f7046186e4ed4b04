"""The canvas: a graph with its lists and its paint, from which each rule makes another one.

A canvas is never changed. A rule reads one, and returns the canvas after its decisions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Indices, Node, NodeMask, Unit, UnitMask, mask_of
from amp_tf.graph.edges import Adjacency
from amp_tf.graph.sizes import Shapes
from amp_tf.graph.templates import Templates
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import ALLOW, CLEAR, DENY, INFER, SUCCESSOR_OPS
from amp_tf.oplists.targets import Resolution, Target
from amp_tf.painting import eligibility
from amp_tf.painting.decisions import Decision, Verdict
from amp_tf.painting.eligibility import Obstacles
from amp_tf.painting.reasons import FORCED, Balance, Code

if TYPE_CHECKING:
    from amp_tf.painting.value_graph import ValueGraph

_LIST_NUMBERS = {ALLOW: 1, INFER: 2, DENY: 3, CLEAR: 4}


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """The graph to paint, and the settings.

    Attributes:
        assumed: ops that are painted as if they had 16-bit kernels for all type attributes.
        templates: knows the functions that nodes may call.
        is_loop_body: whether the graph is the body of a functional loop, whose results are its next
            arguments, in this order.
        shapes: the static shapes of the graph's tensors; ``None`` for those that its nodes carry.
        cost_model: leaves units in float32 that are faster so; ``None`` where costs do not count.
        beyond_range: nodes that give stored values which 16 bit cannot hold. The values are known
            from outside of the graph.
        closing: nodes whose results are the next arguments of the body of a functional loop.
    """

    view: GraphView
    resolution: Resolution
    obstacles: Obstacles
    assumed: frozenset[str] = frozenset()
    templates: Templates = dataclasses.field(default_factory=Templates)
    is_loop_body: bool = False
    shapes: Shapes | None = None
    cost_model: Callable[[Canvas], Canvas] | None = None
    beyond_range: Sequence[Node] = ()
    closing: Sequence[Node] = ()

    @property
    def target(self) -> Target:
        """The target of the conversion, with the lists that decide."""
        assert self.resolution.target is not None
        return self.resolution.target

    @functools.cached_property
    def calls(self) -> NodeMask:
        """The nodes that hold or call functions."""
        kinds = self.view.of_kind
        is_call = (kind.holds_functions or self.templates.is_function(kind.op) for kind in kinds)
        return self.view.of_kinds(is_call, np.bool_)


@dataclasses.dataclass(frozen=True, eq=False)
class Marks:
    """The marks that a painting leaves on each unit: they say why, without the graph's edges.

    They are arrays, because reports keep them for every graph, and lists take ten times the memory.

    Attributes:
        on_allow, on_infer, on_deny, on_clear: the unit's op is on this list.
        type_allowed: the unit is float32, nothing forbids to touch its node, and its op's
            definition lets it be 16 bit.
        convertible: the unit's type is allowed, and there is a 16-bit kernel for it.
        code: the number of the reason for each unit's paint, 0 for none.
        cause: the unit from which the paint came, or itself.
        weighed: for units that the cost model left in float32, the two times that it compared, or
            the reason in words.
    """

    on_allow: UnitMask
    on_infer: UnitMask
    on_deny: UnitMask
    on_clear: UnitMask
    is_float32: UnitMask
    type_allowed: UnitMask
    convertible: UnitMask
    allow: UnitMask
    deny: UnitMask
    code: npt.NDArray[np.uint8]
    cause: Indices
    weighed: Mapping[Unit, Balance | str]

    @staticmethod
    def blank(count: int) -> Marks:
        """Returns the marks of units that are on no list and have no paint."""
        none = np.zeros(count, np.bool_)
        lists = (none, none, none, none)
        facts = (none, none, none)
        code = np.zeros(count, np.uint8)
        return Marks(*lists, *facts, none, none, code, np.arange(count, dtype=np.int32), {})


@dataclasses.dataclass(frozen=True, eq=False)
class Canvas(Marks):
    """A graph with its lists and its paint.

    Attributes:
        processable: nothing forbids to touch the unit's node.
        locked: the unit's type must stay, wherever the paint comes from (preserved nodes, name
            rules, scopes).
        src, dst: the units that each edge connects; edges through TensorLists stand at the end.
        positions: the input at which each edge arrives; 0 for edges through TensorLists.
        links: the adjacency of units by these edges.
        clusters: for each TensorList, the units that are the type of its elements.
        values: the value graph, for the last step.
    """

    subject: Subject
    processable: UnitMask
    locked: UnitMask
    src: Indices
    dst: Indices
    positions: Indices
    links: Adjacency
    clusters: Sequence[Sequence[Unit]] = ()
    values: ValueGraph | None = None

    @classmethod
    def of(cls, subject: Subject) -> Canvas:
        """Returns a canvas without paint, with the lists of the settings."""
        view = subject.view
        edges = view.edges
        lists = _list_numbers(subject)
        code_of = subject.obstacles.code_of
        lasting = [node for node, code in code_of.items() if code is not Code.OTHER_DEVICE]
        processable = ~view.units_of(mask_of(code_of, view.node_count))
        type_allowed, convertible = _convertible(subject, lists)
        of_units = view.units_of(lists)
        marks = dataclasses.replace(
            cls.blank(view.unit_count),
            **{f"on_{name}": of_units == number for name, number in _LIST_NUMBERS.items()},
            is_float32=np.asarray(view.dtypes) == datatypes.FLOAT,
            type_allowed=type_allowed & processable,
            convertible=convertible & processable,
        )
        return cls(
            **vars(marks),
            subject=subject,
            processable=processable,
            locked=view.units_of(mask_of(lasting, view.node_count)),
            src=edges.src_unit,
            dst=edges.dst_unit,
            positions=edges.dst_position,
            links=Adjacency(edges.src_unit, edges.dst_unit, view.unit_count),
        )

    @property
    def view(self) -> GraphView:
        return self.subject.view

    @property
    def target(self) -> Target:
        return self.subject.target

    @property
    def spreading(self) -> UnitMask:
        """Units of the infer and clear lists, whose precision depends on their neighbours."""
        return self.on_infer | self.on_clear

    def is_free(self, unit: Unit) -> bool:
        """Returns whether a unit is float32, and nothing but rules forbids to change it."""
        return bool(self.is_float32[unit] and not self.locked[unit])

    def is_forced(self, unit: Unit) -> bool:
        """Returns whether a user forced a unit to be 16 bit."""
        return self.code[unit] in FORCED

    def float32_units(self, nodes: Iterable[Node]) -> list[Unit]:
        """Returns the float32 units of some nodes, in the order of the nodes."""
        is_float32 = self.is_float32.tobytes()
        return [unit for node in nodes for unit in self.view.units(node) if is_float32[unit]]

    def having(self, **attributes: Any) -> Canvas:
        """Returns the canvas with some attributes replaced. ``dataclasses.replace`` is slower."""
        canvas = object.__new__(Canvas)
        canvas.__dict__.update(self.__dict__, **attributes)
        return canvas

    def connected(self, src: Indices, dst: Indices, positions: Indices) -> Canvas:
        """Returns the canvas with other edges."""
        links = Adjacency(src, dst, self.view.unit_count)
        return self.having(src=src, dst=dst, positions=positions, links=links)

    def relisted(self, units: UnitMask, op_list: str = "") -> Canvas:
        """Returns the canvas with some units on one list alone, or on none."""
        lists = {}
        for name in _LIST_NUMBERS:
            before = getattr(self, f"on_{name}")
            lists[f"on_{name}"] = before | units if name == op_list else before & ~units
        return self.having(**lists)

    def after(self, *decisions: Decision) -> Canvas:
        """Returns the canvas after further decisions, which are made in their order."""
        decisions = tuple(decision for decision in decisions if len(decision.units))
        if not decisions:
            return self
        weighed = dict(self.weighed)
        for decision in decisions:
            if decision.weighed is not None:
                weighed.update(dict.fromkeys(decision.units, decision.weighed))
        names = ("on_allow", "allow", "deny", "code", "cause")
        copies = {name: getattr(self, name).copy() for name in names}
        canvas = self.having(weighed=weighed, **copies)
        for decision in decisions:
            _fold(canvas, decision)
        for copy in copies.values():
            copy.flags.writeable = False
        return canvas

    def leaving(self, units: Iterable[Unit], reason: Code) -> Canvas:
        """Returns the canvas without allow paint on some units."""
        return self.after(Decision(Verdict.LEAVE, list(units), reason))


def _fold(fresh: Canvas, decision: Decision) -> None:
    """Makes one decision on a canvas whose paint nobody else has seen."""
    units = np.asarray(decision.units, np.int32)
    if decision.verdict is Verdict.KEEP:
        # Units that a user forced have another code.
        units = units[fresh.on_allow[units] & (fresh.code[units] == Code.ALLOW_LIST)]
        fresh.on_allow[units] = False
        fresh.allow[units] = False
        fresh.deny[units] = True
    elif decision.verdict is not Verdict.NOTE:
        name, value = decision.verdict.value
        flags = getattr(fresh, name)
        units = units[flags[units] != value]
        flags[units] = value
    fresh.code[units] = decision.reason
    # A unit that kept an earlier reason keeps its cause, too.
    if decision.causes:
        caused = np.fromiter(decision.causes, np.int32)
        causes = np.fromiter(decision.causes.values(), np.int32)
        is_its = fresh.code[caused] == decision.reason
        fresh.cause[caused[is_its]] = causes[is_its]


def _list_numbers(subject: Subject) -> Indices:
    """The number of each node's list, 0 for none."""
    view = subject.view
    list_of = subject.target.lists.list_of
    of_kinds = (_LIST_NUMBERS.get(list_of.get(kind.op, ""), 0) for kind in view.of_kind)
    lists: Indices = view.of_kinds(of_kinds, np.int32)
    for node in subject.obstacles.code_of:
        if view.ops[node] in SUCCESSOR_OPS:  # the node has another op, and may not change it
            lists[node] = _LIST_NUMBERS.get(list_of.get(view.protos[node].op, ""), 0)
    return lists


def _convertible(subject: Subject, lists: Indices) -> tuple[UnitMask, UnitMask]:
    """Returns the units that the op's definition lets be 16 bit.

    Also returns those of them that a kernel can compute.
    """
    view = subject.view
    target = subject.target
    forced = mask_of(subject.obstacles.forced, view.node_count) | target.lists.force_all
    candidates = ((lists != 0) & (lists != _LIST_NUMBERS[DENY])) | forced
    whole = (lists == _LIST_NUMBERS[ALLOW]) | forced
    refused = subject.obstacles.refused
    allowed, runnable = eligibility.find_convertible(view, target, candidates, whole, refused)
    if subject.assumed:
        units = view.units_with(subject.assumed) & ~view.fixed_units()
        units &= np.asarray(view.dtypes) == datatypes.FLOAT
        allowed |= units
        runnable |= units
    return allowed, runnable
