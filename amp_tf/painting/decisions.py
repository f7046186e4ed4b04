"""Decisions: what a rule does with some units, and why.

*Allow* units become 16 bit. *Deny* units stay float32, and TensorFlow's pass 2 spreads deny to
their users. A unit may be both for a while, as in TensorFlow; in the end, allow counts.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from amp_tf.graph.datatypes import Node, NodeMask, Unit, indices
from amp_tf.painting.reasons import Balance, Code

if TYPE_CHECKING:
    from amp_tf.painting.canvas import Canvas


class Verdict(enum.Enum):
    """The effect of a decision on its units: a paint, and whether it is put on or taken off."""

    ALLOW = ("allow", True)  #: paints them allow; units that are allow keep their reason
    DENY = ("deny", True)  #: paints them deny; units that are deny keep their reason
    LEAVE = ("allow", False)  #: takes allow paint off them
    #: takes them off the allow list, where no user forced them, and paints them deny
    KEEP = ("allow list", False)
    NOTE = ("reason", True)  #: paints nothing, and says why they are on no list


@dataclasses.dataclass(frozen=True)
class Decision:
    """A decision of a rule about some units.

    Attributes:
        causes: for some of the units, the unit that caused their decision.
        weighed: the two times that the cost model compared, or the reason in words.
    """

    verdict: Verdict
    units: Sequence[Unit]
    reason: Code
    causes: Mapping[Unit, Unit] = dataclasses.field(default_factory=dict)
    weighed: Balance | str | None = None


def spread(verdict: Verdict, reached: Mapping[Unit, Unit], reason: Code) -> Decision:
    """Returns the decision about all units that a search reached, each with its cause."""
    return Decision(verdict, [*reached], reason, reached)


@dataclasses.dataclass(frozen=True, eq=False)
class NodeDecision:
    """A decision of a rule of accuracy: some nodes stay in float32.

    Attributes:
        causes: for some of the nodes, the node that caused their decision.
        verdict: ``DENY`` for nodes on the infer and clear lists, ``KEEP`` for products.
        to_split: fused products whose bias or activation must be float32.
    """

    nodes: NodeMask
    reason: Code
    causes: Mapping[Node, Node] = dataclasses.field(default_factory=dict)
    verdict: Verdict = Verdict.DENY
    to_split: Sequence[Node] = ()

    def on_units(self, canvas: Canvas) -> Decision:
        """Returns the decision about the units of the nodes that the lists would convert."""
        view = canvas.view
        listed = canvas.spreading & canvas.is_float32
        if self.verdict is Verdict.KEEP:
            listed = canvas.on_allow
        units = indices(view.units_of(self.nodes) & listed)
        causes: dict[Unit, Unit] = {}
        if self.causes:
            for unit in units:
                cause = self.causes.get(view.unit_nodes[unit])
                if cause is not None:
                    causes[unit] = view.base[cause]
        return Decision(self.verdict, units, self.reason, causes)
