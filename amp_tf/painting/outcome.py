"""The result of the painting: the precision of each unit, and the reason for each node."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import Indices, Node, Unit, UnitMask, indices, mask_of
from amp_tf.graph.edges import compact
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import PRODUCTS
from amp_tf.painting.canvas import Canvas, Marks
from amp_tf.painting.eligibility import NO_OBSTACLES, Obstacles
from amp_tf.painting.reasons import IMPOSSIBLE, Balance, Code, Reason
from amp_tf.precision import Precision

#: The detail of the reason of a converted product that a float32 kernel computes.
AS_TENSOR_CORES = (
    "computed in float32, with operands and result rounded to 16 bit, as tensor cores do"
)

#: The reasons of what may be too large or too small for 16 bit.
_OF_RANGE = (Code.AFTER_DENY, Code.LEAVES_RANGE, Code.BEYOND_RANGE, Code.INACCURATE)

_MARKS = [field.name for field in dataclasses.fields(Marks)]


@dataclasses.dataclass(frozen=True)
class Painting:
    """The result of a painting.

    Attributes:
        precision: the 16-bit type; ``None`` where nothing can be converted on this machine.
        converted: the units that become 16 bit, in order.
        rounded: ops that become 16 bit, but are computed by float32 kernels between two roundings.
        to_split: fused products whose bias or activation must be float32.
        why_nothing: the reason, with details, if nothing is converted; else ``None``.
    """

    view: GraphView
    precision: Precision | None
    converted: Sequence[Unit]
    _marks: Marks = dataclasses.field(repr=False)
    obstacles: Obstacles = NO_OBSTACLES
    rounded: frozenset[str] = frozenset()
    to_split: Sequence[Node] = ()
    why_nothing: Code | None = None
    detail: str = ""

    @classmethod
    def without_target(cls, view: GraphView, why: str) -> Painting:
        """Returns the painting of a graph that cannot be converted on this machine."""
        marks = Marks.blank(view.unit_count)
        return cls(view, None, [], marks, why_nothing=Code.NO_TARGET, detail=why)

    @classmethod
    def of(cls, canvas: Canvas, to_split: Sequence[Node] = ()) -> Painting:
        """Returns the painting of a canvas after the last step."""
        converted = compact(np.flatnonzero(canvas.allow & canvas.is_float32))
        return cls(
            view=canvas.view,
            precision=canvas.target.precision,
            converted=converted,
            obstacles=canvas.subject.obstacles,
            rounded=canvas.target.rounded,
            to_split=to_split,
            why_nothing=_why_nothing(canvas, converted),
            _marks=Marks(**{name: getattr(canvas, name) for name in _MARKS}),
        )

    def is_f16(self) -> UnitMask:
        """Returns the units that have the 16-bit type once the graph is rewritten."""
        found: UnitMask = np.zeros(self.view.unit_count, np.bool_)
        if self.precision is not None:
            found = self.dtypes_after() == self.precision.data_type
        return found

    def may_be_f16(self) -> UnitMask:
        """Returns the units that stay in float32 although nothing forbids to touch their node."""
        may: UnitMask = np.asarray(self.view.dtypes) == datatypes.FLOAT
        may &= self.precision is not None
        for node in self.obstacles.code_of:
            may[self.view.units(node)] = False
        may[self.converted] = False
        return may

    def may_round_inputs(self) -> UnitMask:
        """Returns the units that compute in float32 although the lists may convert them, and no
        rule keeps them so.
        """
        marks = self._marks
        return marks.on_infer & marks.convertible & ~(marks.allow | marks.deny)

    def may_be_stored(self) -> UnitMask:
        """Returns the units whose float32 results 16 bit can hold: of ops on the infer list, but
        for what a rule keeps because of its range, and of arguments.
        """
        marks = self._marks
        computed = marks.on_infer & marks.type_allowed & ~np.isin(marks.code, _OF_RANGE)
        return computed | self.view.units_with((ARG_OP,))

    def also(self, units: Sequence[Unit], code: Code) -> Painting:
        """Returns the painting with more converted units."""
        if not units:
            return self
        allow = self._marks.allow | mask_of(units, self.view.unit_count)
        numbers = self._marks.code.copy()
        numbers[units] = code
        marks = dataclasses.replace(self._marks, allow=allow, code=numbers)
        converted = compact(sorted({*self.converted, *units}))
        return dataclasses.replace(self, converted=converted, why_nothing=None, _marks=marks)

    def detached(self) -> Painting:
        """Returns the painting without the graph's protos and edges, to be kept for the report."""
        return dataclasses.replace(self, view=self.view.detached())

    def dtypes_after(self) -> Indices:
        """Returns the ``DataType`` number of each unit once the graph is rewritten.

        The array has 32-bit integers.
        """
        dtypes = np.array(self.view.dtypes, np.int32)
        if self.precision is not None:
            dtypes[self.converted] = self.precision.data_type
        return dtypes

    def rounded_units(self) -> UnitMask:
        """Returns the units that become 16 bit but are computed in float32, between roundings."""
        found = self.view.units_with(self.rounded)
        return found & mask_of(self.converted, self.view.unit_count)

    def converted_nodes(self) -> list[Node]:
        """Returns the nodes of which at least one type becomes 16 bit, in order."""
        return indices(self.view.nodes_of(mask_of(self.converted, self.view.unit_count)))

    def count(self, code: Code) -> int:
        """Returns how many nodes have a reason."""
        return int(self.view.nodes_of(self._marks.code == code).sum())

    def reason(self, node: Node) -> Reason:
        """Returns why a node has its precision.

        It is the reason for the type of its result, or else for its first float32 type.
        """
        marks = self._marks
        if self.why_nothing is Code.NO_TARGET:
            return Reason(Code.NO_TARGET, detail=self.detail)
        units = [unit for unit in self.view.units(node) if marks.is_float32[unit]]
        if not units:
            return Reason(Code.NO_FLOAT32)
        painted = [unit for unit in units if marks.allow[unit]]
        if not painted and node in self.obstacles.code_of:
            return Reason(self.obstacles.code_of[node])
        unit = (painted or units)[0]
        code = self._code(unit, node)
        weighed = marks.weighed.get(unit)
        if code is Code.DOES_NOT_PAY and weighed is not None:
            balance = weighed if isinstance(weighed, Balance) else None
            return Reason(code, detail=str(weighed), balance=balance)
        name = ""
        cause = self._before[unit]
        if cause != unit:
            name = self.view.names[self.view.unit_nodes[cause]]
        return Reason(code, name, self._detail(code, node))

    def _detail(self, code: Code, node: Node) -> str:
        if code.converts and self.view.ops[node] in self.rounded:
            return AS_TENSOR_CORES
        if code is Code.NO_KERNEL and node in self.obstacles.refused:
            return f"with {self.obstacles.refused[node]}"
        return ""

    def trail(self, node: Node) -> list[Node]:
        """Returns the chain of causes of a node's decision, from this node to the first cause."""
        unit = self._decided_unit(node)
        if unit is None:
            return [node]
        units: dict[Unit, None] = {}
        while unit not in units:
            units[unit] = None
            unit = int(self._before[unit])
        return [self.view.unit_nodes[unit] for unit in units]

    def first_cause(self, node: Node) -> Node:
        """Returns the last node of :meth:`trail`, at the same cost for chains of any length."""
        unit = self._decided_unit(node)
        if unit is None:
            return node
        return self.view.unit_nodes[int(self._first[unit])]

    def _decided_unit(self, node: Node) -> Unit | None:
        """Returns a node's first painted float32 unit; ``None`` where none is painted."""
        marks = self._marks
        for unit in self.view.units(node):
            if marks.is_float32[unit] and (marks.allow[unit] or marks.deny[unit]):
                return unit
        return None

    @functools.cached_property
    def _before(self) -> Indices:
        """For each unit, the unit that caused its precision, or itself if its reason names none."""
        marks = self._marks
        has_cause = np.isin(marks.code, [code for code in Code if "{cause}" in code.words])
        return np.where(has_cause, marks.cause, np.arange(len(has_cause), dtype=np.int32))

    @functools.cached_property
    def _first(self) -> Indices:
        """For each unit, the end of its chain of causes; each step doubles what is passed."""
        first = self._before
        for _ in range(len(first).bit_length()):
            first = first[first]
        return first

    def _code(self, unit: Unit, node: Node) -> Code:
        marks = self._marks
        if marks.code[unit]:
            return Code(int(marks.code[unit]))
        lists = (marks.on_allow, marks.on_infer, marks.on_deny, marks.on_clear)
        if not any(of_list[unit] for of_list in lists) and node not in self.obstacles.forced:
            return Code.NOT_LISTED
        if self.view.signatures[node].holds_functions:
            return Code.CALLS_FUNCTION
        if marks.on_deny[unit]:  # no pass looked at it, because nothing is on the allow list
            return Code.DENY_LIST
        if not marks.type_allowed[unit]:
            return Code.TYPE_NOT_ALLOWED
        if not marks.convertible[unit]:
            return Code.NO_KERNEL
        if self.why_nothing:
            return Code.NOTHING_TO_CONVERT
        return Code.NO_ALLOW_NEIGHBOUR


def _why_nothing(canvas: Canvas, converted: Sequence[Unit]) -> Code | None:
    """Returns the commonest reason among the nodes that the allow list would convert.

    It is ``None`` where something is converted.
    """
    if converted:
        return None
    # Products that stay in float32 lost their place on the allow list.
    lost = np.isin(canvas.code, list(IMPOSSIBLE))
    lost |= canvas.view.units_with(PRODUCTS)
    obstacles = canvas.subject.obstacles.code_of
    blocked = collections.Counter({Code.NOTHING_TO_CONVERT: 0})
    for unit in indices((canvas.on_allow | lost) & canvas.is_float32):
        number = obstacles.get(canvas.view.unit_nodes[unit]) or int(canvas.code[unit])
        if number and not Code(number).converts:
            blocked[Code(number)] += 1
    return max(blocked, key=blocked.__getitem__)
