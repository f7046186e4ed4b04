"""The canvas: what the rules read and where they paint. One flag array for each question, indexed by unit."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from amp_tf.graph.indices import Flags, Indices, Mask, Node, Unit
from amp_tf.graph.view import Adjacency, GraphView
from amp_tf.oplists.targets import Target
from amp_tf.painting.reasons import Balance, Rule

NO_CAUSE = -1


@dataclasses.dataclass
class Canvas:
    """The state of a painting.

    Attributes:
        view: the graph.
        target: what is converted, and the lists that decide.
        edges: neighbours of each unit; TensorList edges are added once they are known.
        node_of: the node of each unit.
        src, dst: the units that each edge connects, as arrays; TensorList edges included.
        on_allow, on_infer, on_deny, on_clear: the unit's op is on this list.
        processable: nothing forbids to touch the unit's node.
        locked: the unit's type must stay, wherever the paint comes from (preserved nodes, name rules, scopes).
        is_float32: the unit's type is float32.
        type_allowed: the unit is float32, processable, and its op's definition lets it be 16 bit.
        convertible: likewise, and there is a kernel for it.
        allow, deny: the paint.
        rule: the rule that painted each unit, 0 for none.
        cause: the unit from which the paint came, -1 for none.
        weighed: for units that the cost model took the paint off, what it weighed, or why in words.
    """

    view: GraphView
    target: Target
    edges: Adjacency
    node_of: Sequence[Node]
    src: Indices
    dst: Indices
    on_allow: Flags
    on_infer: Flags
    on_deny: Flags
    on_clear: Flags
    processable: Flags
    locked: Flags
    is_float32: Flags
    type_allowed: Flags
    convertible: Flags
    allow: Flags
    deny: Flags
    rule: Flags
    cause: array[int]
    weighed: dict[int, Balance | str] = dataclasses.field(default_factory=dict)

    def add_edges(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Adds edges that the graph does not show, such as those from TensorList writers to readers."""
        if not pairs:
            return
        extra = np.asarray(pairs, dtype=np.int32)
        self.src = np.concatenate([self.src, extra[:, 0]])
        self.dst = np.concatenate([self.dst, extra[:, 1]])
        self.edges = Adjacency(self.src, self.dst, self.view.unit_count)

    def paint_allow(self, units: Iterable[Unit], rule: Rule) -> None:
        """Paints units allow; those that are allow already keep their rule."""
        fresh = [unit for unit in units if not self.allow[unit]]
        if fresh:
            self.allow[fresh] = 1
            self.rule[fresh] = rule

    def paint_deny(self, units: Iterable[Unit], rule: Rule) -> None:
        """Paints units deny; those that are deny already keep their rule."""
        fresh = [unit for unit in units if not self.deny[unit]]
        if fresh:
            self.deny[fresh] = 1
            self.rule[fresh] = rule

    def unpaint_allow(self, units: Iterable[Unit], rule: Rule) -> None:
        """Takes allow paint off units."""
        painted = [unit for unit in units if self.allow[unit]]
        if painted:
            self.allow[painted] = 0
            self.rule[painted] = rule

    def keep_allowed(self, units: Iterable[Unit], rule: Rule) -> None:
        """Takes units off the allow list, where no user forced them, and paints them deny."""
        kept = [unit for unit in units if self.on_allow[unit] and self.rule[unit] == Rule.ALLOW_LIST]
        self.unpaint_allow(kept, rule)
        self.on_allow[kept] = 0
        self.paint_deny(kept, rule)

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

        Args:
            seeds: where it begins.
            enterable: the units that it may enter.
            forward, backward: the ways that it goes.
            is_cause: whether the neighbour from which a unit is reached is recorded as its cause.
        """
        open_units = bytearray(enterable.tobytes())
        cause = self.cause if is_cause else self.cause[:]
        directions = [(self.edges.fanout_start, self.edges.fanout)] if forward else []
        if backward:
            directions.append((self.edges.fanin_start, self.edges.fanin))
        stack = list(seeds)
        reached = []
        while stack:
            unit = stack.pop()
            for start, neighbours in directions:
                for neighbour in neighbours[start[unit] : start[unit + 1]]:
                    if open_units[neighbour]:
                        open_units[neighbour] = 0
                        cause[neighbour] = unit
                        reached.append(neighbour)
                        stack.append(neighbour)
        return reached


def units_of(flags: Flags | Mask) -> list[Unit]:
    """The units whose flag is set, in order."""
    return np.flatnonzero(flags).tolist()  # type: ignore[no-any-return]
