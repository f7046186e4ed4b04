"""The painting: which units become 16 bit, and why.

The goal, in the words of the method: convert what the hardware runs faster, keep what is
numerically dangerous and what depends on it, and insert as few casts as possible between the two.
It takes five steps, each a function of values to a frozen value. The rules are the rows of
:data:`RULES`, in the order in which they run, each in one of the steps; the passes of TensorFlow's
``AutoMixedPrecisionImpl::Optimize`` are numbered among them.

The docstring of each rule shows its effect on a small graph, with all other rules in force. Behind
each node stands its precision, nothing for float32, and ``f16 → float32`` where the rule changes
it.

A graph is painted again under a :class:`Change` to find the nodes that the change would convert.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.graph.datatypes import Node
from amp_tf.graph.view import GraphView
from amp_tf.oplists.targets import Resolution
from amp_tf.painting import (
    kernels,
    listing,
    needs,
    origins,
    passes,
    placing,
    ranges,
    tensor_lists,
    ties,
)
from amp_tf.painting.canvas import Canvas, Subject
from amp_tf.painting.decisions import Decision
from amp_tf.painting.eligibility import Obstacles
from amp_tf.painting.outcome import Painting
from amp_tf.painting.programs import join, split
from amp_tf.painting.reasons import Code
from amp_tf.painting.value_graph import ValueGraph


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of settings, or of facts that no setting names.

    Attributes:
        added: ops and patterns that join fields of the settings, each with its field.
        dropped: ops and patterns that leave fields of the settings, likewise.
        nodes: names of nodes that may be touched although their device, a scope or a fetch forbids
            it.
        kernels: ops that are painted as if they had 16-bit kernels for all type attributes.
        rules: rows of :data:`RULES` that are left out.
        shapes: whether the graph is painted as if all its dimensions were known.
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
            node: code for node, code in obstacles.code_of.items() if names[node] not in self.nodes
        }
        return dataclasses.replace(obstacles, code_of=left)


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
        settings: further attributes of :class:`~amp_tf.painting.canvas.Subject` that have
            defaults.

    Raises:
        GraphError: a loop is broken.
    """
    subject = Subject(view, resolution, obstacles, change.kernels, **settings)
    [painting] = paint_together([subject], change)
    return painting


def paint_together(subjects: Sequence[Subject], change: Change = NO_CHANGE) -> list[Painting]:
    """Decides the precision of every unit of a graph, or of the functions of a program.

    Args:
        subjects: the first function has callers outside of the program.

    Raises:
        GraphError: a loop is broken.
    """
    resolution = subjects[0].resolution
    if resolution.target is None:
        why = resolution.why_none
        return [Painting.without_target(subject.view, why) for subject in subjects]
    listed = [_run(LISTING, Canvas.of(subject), change) for subject in subjects]
    canvases = listed
    if len(listed) > 1 and any(map(_has_product, listed)):
        program, _ = _keep(join(listed), change)
        canvases = split(program, listed)
    paintings = []
    for before, canvas in zip(listed, canvases, strict=True):
        if _has_product(before):
            kept, to_split = _keep(canvas, change)
            painted = _run(PASSES, kept, change)
            paintings.append(Painting.of(_run(SETTLING, painted, change), to_split))
        else:
            paintings.append(Painting.of(before))
    return paintings


def _has_product(canvas: Canvas) -> bool:
    """Tells whether the lists may convert a node, with which a painting begins."""
    return bool((canvas.allow | canvas.on_allow & canvas.processable).any())


def _run(step: Sequence[Row], canvas: Canvas, change: Change) -> Canvas:
    """Returns the canvas after a step."""
    for row in step:
        if row.applies(change, canvas.subject.resolution):
            canvas = row.apply(canvas)
    return canvas


def _keep(canvas: Canvas, change: Change) -> tuple[Canvas, list[Node]]:
    """Returns the canvas after the rules that keep nodes in float32.

    Also returns the fused products whose bias or activation must be float32.
    """
    held = _run(HOLDING, canvas, change)
    values = ValueGraph.of(held)
    kept: list[Decision] = []
    to_split: list[Node] = []
    for row in KEEPING:
        if row.applies(change, canvas.subject.resolution):
            for decision in row.apply(values):
                kept.append(decision.on_units(held))
                to_split += decision.to_split
    return _run(DENYING, held.after(*kept).having(values=values), change), to_split


def weigh(canvas: Canvas) -> Canvas:
    """Leaves in float32 what is not faster in 16 bit, its casts included.

    Products of unknown shapes keep their precision. Nodes that TensorFlow computes together with a
    product share its precision. Forced nodes stay 16 bit in any case; if no op is faster, so do the
    ops that the user asks for.

    Example (auto)::

        x = Placeholder() shape=[512, 512]
        allow1 = MatMul(x, x)               f16
        infer1 = Sigmoid(allow1)            f16 → float32
        infer2 = Sigmoid(infer1)            f16 → float32
        allow2 = MatMul(infer2, x)          f16
        small = Placeholder() shape=[8, 8]
        allow3 = MatMul(small, small)       f16 → float32
    """
    cost_model = canvas.subject.cost_model
    return cost_model(canvas) if cost_model else canvas


def _unless_forced(resolution: Resolution) -> bool:
    """UNSAFE_FORCE_ALL asks for 16 bit whatever is lost."""
    return resolution.target is not None and not resolution.target.lists.force_all


@dataclasses.dataclass(frozen=True)
class Row:
    """One rule.

    Attributes:
        name: the name by which tests and changes leave the rule out; TensorFlow's passes have their
            number in it. Rows of one name are left out together.
        apply: the rule. It takes a canvas and returns the canvas after its decisions; a rule of
            :data:`KEEPING` takes the value graph and yields decisions about its nodes.
        difference: the name of its difference from TensorFlow's pass; empty where TensorFlow does
            the same.
        reasons: the reasons that it gives to nodes kept in float32 for accuracy.
    """

    name: str
    apply: Callable[..., Any]
    when: Callable[[Resolution], bool] = lambda resolution: True
    difference: str = ""
    reasons: tuple[Code, ...] = ()

    def applies(self, change: Change, resolution: Resolution) -> bool:
        """Returns whether the rule is not left out, and decides under these settings."""
        return self.name not in change.rules and self.when(resolution)


#: The condition of rules that run only if amp_tf chooses the precision.
_chooses = operator.attrgetter("uses_cost_model")

#: Rules about lists: the list of each op, and the kernels that exist and are exact.
LISTING = (
    Row("outer products", listing.judge_outer_products, difference="outer-product"),
    Row("missing kernels", listing.drop_allow_without_kernel),
    Row(
        "kernels",
        kernels.take_inexact_off_lists,
        difference="inexact-kernel",
        reasons=(Code.SUMS, Code.INACCURATE),
    ),
    Row("kernels", kernels.take_bounded_off_deny, difference="inexact-kernel"),
    Row("forced nodes", listing.place_forced),
    Row("tensor lists", tensor_lists.find_clusters),
    Row("1 allow list", listing.paint_allow_list),
)
#: Rules about range: the products that 16 bit cannot hold.
HOLDING = (Row("range", ranges.keep_in_range, _unless_forced, "range", (Code.BEYOND_RANGE,)),)
#: Rules of accuracy: nodes that stay in float32.
KEEPING = (
    Row("range", ranges.keep_squares_and_quotients, _unless_forced, "range", (Code.LEAVES_RANGE,)),
    Row(
        "needs",
        needs.keep_needed,
        _unless_forced,
        "need",
        tuple(need.reason for need in needs.NEEDS),
    ),
    Row("decompositions", needs.keep_decomposed, _unless_forced, "need", (Code.DECOMPOSED,)),
    Row("origins", origins.keep_origins, _unless_forced, "origin", (Code.RUNNING_SUM, Code.JOINED)),
)
#: TensorFlow's pass that keeps nodes in float32.
DENYING = (Row("2 deny list and what uses it", passes.spread_deny),)
#: TensorFlow's other passes.
PASSES = (
    Row("tensor lists after pass 2", tensor_lists.match_clusters),
    Row("3 between products", passes.paint_between_allow),
    Row("4 after products", passes.paint_after_allow),
    Row("5 beside products", passes.spread_allow_through_clear),
    Row("6 types that cannot be 16 bit", passes.drop_unsupported),
    Row("tensor lists after pass 6", tensor_lists.match_clusters),
    Row("7 recurrent edges", ties.match_recurrent_edges),
)
#: Rules about speed, about nodes that must have one type, and about the places of casts.
SETTLING = (
    Row("cost model", weigh, _chooses),
    Row(
        "values passed through",
        placing.leave_carried_values,
        difference="passed-through",
        reasons=(Code.CARRIED,),
    ),
    Row("looked-up rows", placing.leave_picked_values, difference="looked-up-rows"),
    Row("shared types", ties.match_bias_gradients, difference="tied-types", reasons=(Code.SUMS,)),
    Row("shared types", ties.match_maxima, difference="tied-types", reasons=(Code.COMPARED,)),
    Row("shared types", ties.match_loop_entries, difference="tied-types"),
    Row("shared types", ties.match_weighted_means, _unless_forced, "tied-types"),
    Row("shared types", ties.match_fused_products, difference="tied-types"),
    Row("8 existing casts to float32", placing.retarget_casts),
    Row("existing casts to 16 bit", placing.absorb_casts, _chooses),
)
#: All rules, in the order in which they run.
RULES: tuple[Row, ...] = (
    *LISTING,
    *HOLDING,
    *KEEPING,
    *DENYING,
    *PASSES,
    *SETTLING,
)
