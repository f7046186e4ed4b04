"""The painting: which units become 16 bit, and why.

The goal, in the words of the method: convert what the hardware runs faster, keep what is
numerically dangerous and what depends on it, and insert as few casts as possible between the two.
The rules are the rows of :data:`RULES`, in the order in which they run; the passes of TensorFlow's
``AutoMixedPrecisionImpl::Optimize`` are numbered among them.

The docstring of each rule shows what it does on a small graph, all other rules in force: behind a
node stands what it computes in, float32 if nothing stands there, and ``f16 → float32`` where that
changes once the rule is there.

A graph is painted again under a :class:`Change`, to see what the change would turn.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.graph.view import GraphView
from amp_tf.oplists.targets import Resolution
from amp_tf.painting import kernels, lists, needs, origins, ties
from amp_tf.painting.canvas import Canvas, prepare
from amp_tf.painting.eligibility import Obstacles
from amp_tf.painting.outcome import Painting
from amp_tf.painting.reasons import Rule


@dataclasses.dataclass(frozen=True)
class Change:
    """One change, or several together.

    Attributes:
        added: ops and patterns that join fields of the settings, each with its field.
        dropped: ops and patterns that leave fields of the settings, likewise.
        nodes: names of nodes that may be touched, whatever forbids it: their device, a scope, a
            fetch.
        kernels: ops that are taken to have 16-bit kernels for every type that can be another one.
        rules: rows of :data:`RULES` that are left out.
        shapes: unknown dimensions are taken to be known.
    """

    added: frozenset[tuple[str, str]] = frozenset()
    dropped: frozenset[tuple[str, str]] = frozenset()
    nodes: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()
    rules: frozenset[str] = frozenset()
    shapes: bool = False

    def __bool__(self) -> bool:
        return self != NO_CHANGE

    def plus(self, other: Change) -> Change:
        """Both changes together."""
        fields = [field.name for field in dataclasses.fields(self)]
        return Change(**{name: getattr(self, name) | getattr(other, name) for name in fields})

    def config(self, config: AmpConfig) -> AmpConfig:
        """The changed settings.

        Raises:
            OpListError: an op joins two lists.
        """
        fields: dict[str, Any] = {}
        for field, name in sorted(self.added | self.dropped):
            names = fields.setdefault(field, list(getattr(config, field)))
            if (field, name) in self.dropped:
                names.remove(name)
            else:
                names.append(name)
        return dataclasses.replace(config, **fields)

    def obstacles(self, obstacles: Obstacles, names: Sequence[str]) -> Obstacles:
        """The obstacles without those of the nodes."""
        if not self.nodes:
            return obstacles
        left = {
            node: rule for node, rule in obstacles.rule_of.items() if names[node] not in self.nodes
        }
        return dataclasses.replace(obstacles, rule_of=left)


NO_CHANGE = Change()


def paint(
    view: GraphView,
    resolution: Resolution,
    obstacles: Obstacles,
    change: Change = NO_CHANGE,
    **settings: Any,
) -> Painting:
    """Decides the precision of every unit of a graph.

    Args:
        settings: further attributes of :class:`~amp_tf.painting.canvas.Canvas` that have defaults.

    Raises:
        GraphError: a loop is broken.
    """
    if resolution.target is None:
        return Painting(view, None, [], why_nothing=Rule.NO_TARGET, detail=resolution.why_none)
    canvas = prepare(view, resolution, obstacles, change.kernels, **settings)
    for row in RULES:
        if row.name not in change.rules and row.when(resolution):
            row.apply(canvas)
            if row is ALLOW_LIST and not canvas.allow.any():
                break
    return Painting.of(canvas)


def weigh(canvas: Canvas) -> None:
    """Unpaints what is not faster in 16 bit, counting the casts that it needs.

    Products whose shapes nobody knows stay as they are. What TensorFlow computes together with a
    product is chosen with it. What the user forces stays in any case, and where no op pays, what
    the user asks for.

    Example (auto)::

        x = Placeholder() shape=[512, 512]
        allow1 = MatMul(x, x)               f16
        infer1 = Sigmoid(allow1)            f16 → float32
        infer2 = Sigmoid(infer1)            f16 → float32
        allow2 = MatMul(infer2, x)          f16
        small = Placeholder() shape=[8, 8]
        allow3 = MatMul(small, small)       f16 → float32
    """
    if canvas.cost_model:
        canvas.cost_model(canvas)


def _unless_forced(resolution: Resolution) -> bool:
    """UNSAFE_FORCE_ALL asks for 16 bit whatever is lost."""
    return resolution.target is not None and not resolution.target.lists.force_all


@dataclasses.dataclass(frozen=True)
class Row:
    """One rule.

    Attributes:
        name: by which it is left out; for a pass of TensorFlow's with its number there.
        difference: the name of the difference from TensorFlow's pass that it makes; empty for what
            TensorFlow does too.
        reasons: those of the nodes that it keeps in float32 for accuracy's sake.
    """

    name: str
    apply: Callable[[Canvas], None]
    when: Callable[[Resolution], bool] = lambda resolution: True
    difference: str = ""
    reasons: tuple[Rule, ...] = ()


_chooses = operator.attrgetter("uses_cost_model")  #: where amp_tf chooses the precision
ALLOW_LIST = Row("1 allow list", lists.paint_allow_list)

RULES: tuple[Row, ...] = (
    Row(
        "kernels",
        kernels.take_inexact_off_lists,
        difference="inexact-kernel",
        reasons=(Rule.SUMS, Rule.INACCURATE),
    ),
    Row("forced nodes", lists.place_forced),
    Row("tensor lists", ties.find_clusters),
    ALLOW_LIST,
    Row(
        "range",
        origins.keep_in_range,
        _unless_forced,
        "range",
        (Rule.BEYOND_RANGE, Rule.LEAVES_RANGE),
    ),
    Row(
        "needs",
        needs.keep_needed,
        _unless_forced,
        "need",
        (Rule.COMPARED, *(need.reason for need in needs.NEEDS)),
    ),
    Row("decompositions", needs.keep_decomposed, _unless_forced, "need", (Rule.DECOMPOSED,)),
    Row("origins", origins.keep_origins, _unless_forced, "origin", (Rule.RUNNING_SUM, Rule.JOINED)),
    Row("2 deny list and what uses it", lists.spread_deny),
    Row("tensor lists after pass 2", ties.match_clusters),
    Row("3 between products", lists.paint_between_allow),
    Row("4 after products", lists.paint_after_allow),
    Row("5 beside products", lists.spread_allow_through_clear),
    Row("6 types that cannot be 16 bit", lists.drop_unsupported),
    Row("tensor lists after pass 6", ties.match_clusters),
    Row("7 recurrent edges", ties.match_recurrent_edges),
    Row("cost model", weigh, _chooses),
    Row(
        "values passed through",
        lists.leave_carried_values,
        difference="passed-through",
        reasons=(Rule.CARRIED,),
    ),
    Row("looked-up rows", lists.leave_picked_values, difference="looked-up-rows"),
    Row(
        "shared types",
        ties.match_types,
        difference="tied-types",
        reasons=(Rule.COMPARED, Rule.SUMS),
    ),
    Row("8 existing casts to float32", lists.retarget_casts),
    Row("existing casts to 16 bit", lists.absorb_casts, _chooses),
)
