"""The canvas: what the rules read and where they paint.

One flag array for each question, indexed by unit.
"""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import flood
from amp_tf.graph.attributes import ARG_OP, value_of
from amp_tf.graph.datatypes import Flags, Indices, Mask, Node, Unit
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.sizes import Shapes
from amp_tf.graph.view import Adjacency, GraphView
from amp_tf.oplists.table import ALLOW, CASTS, CLEAR, DENY, INFER, JUDGED_AS, SUCCESSOR_OPS
from amp_tf.oplists.targets import Resolution, Target
from amp_tf.painting import eligibility
from amp_tf.painting.eligibility import Obstacles
from amp_tf.painting.flow import Flow
from amp_tf.painting.reasons import Balance, Rule

_NONE: Mapping[Node, Node] = MappingProxyType({})
_CODES = {ALLOW: 1, INFER: 2, DENY: 3, CLEAR: 4}


@dataclasses.dataclass(kw_only=True, eq=False)
class Marks:
    """What the rules leave of each unit: enough to say why, without the graph's edges.

    Reports keep them for every graph, hence no lists, which take ten times the memory.

    Attributes:
        on_allow, on_infer, on_deny, on_clear: the unit's op is on this list.
        type_allowed: the unit is float32, nothing forbids to touch its node, and its op's
            definition lets it be 16 bit.
        convertible: the unit's type is allowed, and there is a 16-bit kernel for it.
        rule: the rule that painted each unit, 0 for none.
        cause: the unit from which the paint came, or itself.
        weighed: for units that the cost model took the paint off, what it weighed, or why in words.
    """

    on_allow: Flags
    on_infer: Flags
    on_deny: Flags
    on_clear: Flags
    is_float32: Flags
    type_allowed: Flags
    convertible: Flags
    allow: Flags
    deny: Flags
    rule: Flags
    cause: array[int]
    weighed: dict[int, Balance | str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True, eq=False)
class Canvas(Marks):
    """The state of a painting.

    Attributes:
        edges: neighbours of each unit; TensorList edges are added once they are known.
        src, dst: the units that each edge connects, as arrays; TensorList edges included.
        processable: nothing forbids to touch the unit's node.
        locked: the unit's type must stay, wherever the paint comes from (preserved nodes, name
            rules, scopes).
        calls_products: whether a node that holds or calls functions computes products in them;
            asked with its NodeDef.
        is_loop_body: whether the graph is the body of a functional loop: each result is the next
            argument in its place.
        shapes: the static shapes of the graph's tensors; ``None`` for those that its nodes carry.
        cost_model: takes the paint off units that are faster in float32; ``None`` where costs do
            not count.
        clusters: of the nodes that share a TensorList, the units that are the type of its elements.
        to_split: fused products of whose bias or activation float32 is asked.
        centred: what weights the terms of a mean, and the value with its rounding from which that
            mean is taken.
        beyond_range: nodes that give stored values, known from outside of the graph, which 16 bit
            cannot hold.
    """

    view: GraphView
    resolution: Resolution
    obstacles: Obstacles
    edges: Adjacency
    src: Indices
    dst: Indices
    processable: Flags
    locked: Flags
    is_function: Callable[[str], bool] = lambda op: False
    calls_products: Callable[[Any], bool] = lambda node: True
    is_loop_body: bool = False
    shapes: Shapes | None = None
    cost_model: Callable[[Canvas], None] | None = None
    clusters: list[list[Unit]] = dataclasses.field(default_factory=list)
    to_split: list[Node] = dataclasses.field(default_factory=list)
    centred: list[tuple[Node, Node]] = dataclasses.field(default_factory=list)
    beyond_range: Sequence[Node] = ()

    @property
    def target(self) -> Target:
        """What is converted, and the lists that decide."""
        assert self.resolution.target is not None
        return self.resolution.target

    @functools.cached_property
    def calls(self) -> Mask:
        """The nodes that hold or call functions."""
        kinds = self.view.of_kind
        return self.view.of_kinds(
            (kind.holds_functions or self.is_function(kind.op) for kind in kinds), np.bool_
        )

    @functools.cached_property
    def flow(self) -> Flow:
        """Where values go, once the allow list is painted; what is denied since then makes no
        difference.
        """
        view = self.view
        calls = self.calls.copy()
        for node in np.flatnonzero(calls).tolist():
            calls[node] = self.calls_products(view.protos[node])
        links: list[tuple[Node, Node]] = []
        if self.is_loop_body:
            links = list(
                zip(view.nodes_with((RETVAL_OP,)), view.nodes_with((ARG_OP,)), strict=False)
            )
        return Flow(
            view,
            self.src,
            self.dst,
            links,
            products=self.nodes_of(self.allow),
            calls=calls,
            listed=self.nodes_of((self.on_infer | self.on_clear) & self.is_float32),
            on_infer=self.nodes_of(self.on_infer & self.is_float32),
        )

    def is_free(self, unit: Unit) -> bool:
        """Whether a unit is float32, and nothing but rules forbids to change it."""
        return bool(self.is_float32[unit] and not self.locked[unit])

    def float32_units(self, nodes: Iterable[Node]) -> list[Unit]:
        """The float32 units of some nodes."""
        is_float32 = self.is_float32.tobytes()
        return [unit for node in nodes for unit in self.view.units(node) if is_float32[unit]]

    def nodes_of(self, flags: Flags | Mask) -> Mask:
        """The nodes that have a flagged unit."""
        found = np.zeros(self.view.node_count, np.bool_)
        found[np.asarray(self.view.unit_nodes, np.int32)[flags.astype(np.bool_)]] = True
        return found

    def paint_allow(self, units: Iterable[Unit], rule: Rule) -> None:
        """Paints units allow; those that are allow already keep their rule."""
        self._set(self.allow, 1, units, rule)

    def paint_deny(
        self, units: Iterable[Unit], rule: Rule, causes: Mapping[Node, Node] = _NONE
    ) -> None:
        """Paints units deny; those that are deny already keep their rule.

        Of some it is known which node caused it.
        """
        self._set(self.deny, 1, units, rule)
        for unit in units if causes else ():
            node = self.view.unit_nodes[unit]
            if node in causes and self.rule[unit] == int(rule):
                self.cause[unit] = self.view.base[causes[node]]

    def keep(self, nodes: Mask, rule: Rule, causes: Mapping[Node, Node] = _NONE) -> None:
        """Paints deny what the lists would convert of some nodes."""
        if nodes.any():
            listed = (self.on_infer | self.on_clear) & self.is_float32
            self.paint_deny(
                units_of(self.view.spread(nodes) & listed.astype(np.bool_)), rule, causes
            )

    def unpaint_allow(self, units: Iterable[Unit], rule: Rule) -> None:
        """Takes allow paint off units."""
        self._set(self.allow, 0, units, rule)

    def _set(self, flags: Flags, value: int, units: Iterable[Unit], rule: Rule) -> None:
        before = flags.tobytes()
        changed = [unit for unit in units if before[unit] != value]
        flags[changed] = value
        self.rule[changed] = rule

    def keep_allowed(
        self, units: Iterable[Unit], rule: Rule, causes: Mapping[Node, Node] = _NONE
    ) -> None:
        """Takes units off the allow list, where no user forced them, and paints them deny."""
        kept = [
            unit for unit in units if self.on_allow[unit] and self.rule[unit] == Rule.ALLOW_LIST
        ]
        self.unpaint_allow(kept, rule)
        self.on_allow[kept] = 0
        self.paint_deny(kept, rule, causes)

    def flood(
        self,
        seeds: Iterable[Unit],
        enterable: Flags,
        *,
        forward: bool = False,
        backward: bool = False,
        is_cause: bool = True,
    ) -> list[Unit]:
        """The units that can be reached from the seeds through enterable units, seeds not included.

        Unless told otherwise it records the neighbour from which a unit is reached as its cause.
        """
        ways = [(self.edges.fanout_start, self.edges.fanout)] if forward else []
        if backward:
            ways.append((self.edges.fanin_start, self.edges.fanin))
        return flood(seeds, bytearray(enterable.tobytes()), ways, self.cause if is_cause else None)


def casts(view: GraphView) -> Iterator[tuple[Node, Unit, Unit]]:
    """Each Cast, with the units of what it reads and gives."""
    for node in view.nodes_with(CASTS):
        first, signature = view.base[node], view.signatures[node]
        yield node, first + signature.inputs[0], first + signature.outputs[0]


def units_of(flags: Flags | Mask) -> list[Unit]:
    """The units whose flag is set, in order."""
    return np.flatnonzero(flags).tolist()  # type: ignore[no-any-return]


def prepare(
    view: GraphView,
    resolution: Resolution,
    obstacles: Obstacles,
    assumed: frozenset[str],
    **settings: Any,
) -> Canvas:
    """A canvas without paint: what each unit's list says, and what can be 16 bit at all.

    Ops that are ``assumed`` are taken to have 16-bit kernels, whatever TensorFlow has.
    """
    target = resolution.target
    assert target is not None
    list_of = target.lists.list_of
    node_codes = view.of_kinds(
        (_CODES.get(list_of.get(signature.op, ""), 0) for signature in view.of_kind), np.uint8
    )
    _judge_outer_products(view, list_of, node_codes)
    for node in obstacles.rule_of:
        if (
            view.ops[node] in SUCCESSOR_OPS
        ):  # the node may be another op, and may not become this one
            node_codes[node] = _CODES.get(list_of.get(view.protos[node].op, ""), 0)
    codes = view.spread(node_codes)
    untouchable, locked, forced = np.zeros((3, view.node_count), np.bool_)
    untouchable[list(obstacles.rule_of)] = True
    locked[[node for node, rule in obstacles.rule_of.items() if rule is not Rule.OTHER_DEVICE]] = (
        True
    )
    forced[list(obstacles.forced)] = True
    force_all = target.lists.force_all
    candidates = (node_codes != 0) & (node_codes != _CODES[DENY]) | forced | force_all
    whole = (node_codes == _CODES[ALLOW]) | forced | force_all
    allowed, runnable = eligibility.find_convertible(
        view, target, candidates, whole, obstacles.refused
    )
    if assumed:  # their float32 types that the op's definition does not fix
        is_free = view.of_slots(
            np.array([not slot.is_fixed for kind in view.of_kind for slot in kind.slots], np.bool_)
        )
        units = (
            view.spread(view.mask_with(assumed))
            & is_free
            & (np.asarray(view.dtypes) == datatypes.FLOAT)
        )
        allowed[units] = runnable[units] = 1
    processable = view.spread(~untouchable).astype(np.uint8)
    canvas = Canvas(
        view=view,
        resolution=resolution,
        obstacles=obstacles,
        edges=Adjacency(view.edges.src_unit, view.edges.dst_unit, view.unit_count),
        src=view.edges.src_unit,
        dst=view.edges.dst_unit,
        **{f"on_{name}": (codes == code).astype(np.uint8) for name, code in _CODES.items()},
        processable=processable,
        locked=view.spread(locked).astype(np.uint8),
        is_float32=(np.asarray(view.dtypes) == datatypes.FLOAT).astype(np.uint8),
        type_allowed=allowed & processable,
        convertible=runnable & processable,
        allow=np.zeros(view.unit_count, np.uint8),
        deny=np.zeros(view.unit_count, np.uint8),
        rule=np.zeros(view.unit_count, np.uint8),
        cause=array("i", range(view.unit_count)),
        **settings,
    )
    _drop_allow_without_kernel(canvas)
    return canvas


def _judge_outer_products(view: GraphView, list_of: Mapping[str, str], node_codes: Flags) -> None:
    """Takes what is on the allow list as a product, but sums nothing, for what it is: a
    multiplication.

    Rotary and sinusoidal embeddings write position times frequency as an Einsum, "bi,j->bij". The
    hardware is no faster in 16 bit at what sums nothing, and the sine of such an angle means
    nothing once the position is rounded: of integers, bfloat16 holds all up to 256, float16 up to
    2,048. A MatMul with an inner dimension of 1 would be the same, but XLA's functions carry no
    shapes.

    Difference "outer-product": TensorFlow looks at no equations.
    """
    for node in view.nodes_with(JUDGED_AS):
        equation = value_of(view.protos[node], "equation").s
        inputs, arrow, result = equation.replace(b" ", b"").partition(b"->")
        sums_nothing = arrow and set(inputs.replace(b",", b"")) <= set(
            result
        )  # an ellipsis counts as one label
        if node_codes[node] == _CODES[ALLOW] and sums_nothing:
            node_codes[node] = _CODES.get(list_of.get(JUDGED_AS[view.ops[node]], ""), 0)


def _drop_allow_without_kernel(canvas: Canvas) -> None:
    """Takes what has no kernel off the allow list: a type, or the node if its result cannot be 16
    bit because of it.

    A result whose type is always float32 (ResizeBilinear's) is no obstacle: the other types are
    converted.

    Difference "kernel-missing": TensorFlow converts allow-list nodes without asking for a kernel.
    """
    view, convertible = canvas.view, canvas.convertible
    for unit in units_of(
        canvas.on_allow & canvas.processable & canvas.is_float32 & (convertible ^ 1)
    ):
        node = view.unit_nodes[unit]
        first, end = view.base[node], view.base[node + 1]
        rule = Rule.NO_KERNEL if canvas.type_allowed[unit] else Rule.TYPE_NOT_ALLOWED
        if view.ops[node] in canvas.target.without_kernel:
            rule = Rule.NO_FUSED_KERNEL
        is_result = unit - first in view.signatures[node].outputs[:1]
        if is_result and not (view.slot(node, unit).is_fixed and convertible[first:end].any()):
            canvas.on_allow[first:end] = 0
            canvas.rule[first:end] = rule
        elif rule is Rule.NO_KERNEL:
            canvas.on_allow[unit] = 0
            canvas.rule[unit] = rule
