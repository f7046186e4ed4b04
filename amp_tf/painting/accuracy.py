"""Accuracy: the decisions about nodes that must stay in float32, the third step of a painting."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from amp_tf.graph.datatypes import Node, Unit
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.decisions import Decision, Verdict
from amp_tf.painting.masks import NodeMask, indices, units_of
from amp_tf.painting.reasons import Code


@dataclasses.dataclass(frozen=True, eq=False)
class NodeDecision:
    """Some nodes that stay in float32, and why.

    Attributes:
        causes: for some of them, the node that brought it about.
        verdict: ``DENY`` for what the infer and clear lists would convert, ``KEEP`` for products.
    """

    nodes: NodeMask
    reason: Code
    causes: Mapping[Node, Node] = dataclasses.field(default_factory=dict)
    verdict: Verdict = Verdict.DENY


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """The decisions of the rules of accuracy.

    Attributes:
        decisions: in the order in which the rules give their reasons.
        to_split: fused products of whose bias or activation float32 is asked.
    """

    decisions: tuple[NodeDecision, ...] = ()
    to_split: tuple[Node, ...] = ()

    @classmethod
    def of(cls, *found: tuple[NodeMask, Code]) -> Kept:
        """Returns some nodes that stay in float32, each set with its reason."""
        return cls(tuple(NodeDecision(nodes, reason) for nodes, reason in found))

    @classmethod
    def joined(cls, parts: Iterable[Kept]) -> Kept:
        """Returns what several rules decided, in their order."""
        whole = cls()
        for part in parts:
            whole = cls(whole.decisions + part.decisions, whole.to_split + part.to_split)
        return whole

    def on_units(self, canvas: Canvas) -> Iterator[Decision]:
        """Yields the decisions about the units that the lists would convert."""
        view = canvas.view
        open_units = canvas.spreading & canvas.is_float32
        for decision in self.decisions:
            if not decision.nodes.any():
                continue
            listed = canvas.on_allow if decision.verdict is Verdict.KEEP else open_units
            units = indices(units_of(view, decision.nodes) & listed)
            causes: dict[Unit, Unit] = {}
            for unit in units if decision.causes else ():
                cause = decision.causes.get(view.unit_nodes[unit])
                if cause is not None:
                    causes[unit] = view.base[cause]
            yield Decision(decision.verdict, units, decision.reason, causes)


NOTHING_KEPT = Kept()
