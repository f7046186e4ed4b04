"""The painting: which units become 16 bit, and why.

The goal, in the words of the method: convert what the hardware runs faster, keep what is numerically dangerous and what
depends on it, and insert as few casts as possible between the two. The rules are the rows of :data:`RULES`, in the
order in which they run; the passes of TensorFlow's ``AutoMixedPrecisionImpl::Optimize`` are numbered among them.

The docstring of each rule shows what it does on a small graph, all other rules in force: behind a node stands what it
computes in, float32 if nothing stands there, and ``f16 → float32`` where that changes once the rule is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from amp_tf.graph.sizes import Shapes
from amp_tf.graph.view import GraphView
from amp_tf.oplists.targets import Resolution
from amp_tf.painting import kernels, lists, needs, origins, placing, preparing, range, ties
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.eligibility import NOTHING_FOLDED, Folded, Obstacles
from amp_tf.painting.outcome import Painting
from amp_tf.painting.reasons import Rule


def paint(
    view: GraphView,
    resolution: Resolution,
    obstacles: Obstacles,
    *,
    is_function: Callable[[str], bool] = lambda op: False,
    calls_products: Callable[[Any], bool] = lambda node: True,
    is_loop_body: bool = False,
    shapes: Shapes | None = None,
    folded: Folded = NOTHING_FOLDED,
    kernels: frozenset[str] = frozenset(),
    left_out: frozenset[str] = frozenset(),
    cost_model: Callable[[Canvas], None] | None = None,
) -> Painting:
    """Decides the precision of every unit of a graph.

    Args:
        view: the graph.
        resolution: what is converted here, from :func:`amp_tf.oplists.targets.resolve_target`.
        obstacles: what forbids to touch nodes, or forces them.
        is_function: whether an op is a function of the graph's library.
        calls_products: whether a node that holds or calls functions computes products in them; asked with its NodeDef.
        is_loop_body: whether the graph is the body of a functional loop: each result is the next argument in its place.
        shapes: the static shapes of the graph's tensors; by default those that its nodes carry.
        folded: the nodes that have another meaning since normalization was folded.
        kernels: ops that are taken to have 16-bit kernels, whatever TensorFlow has.
        left_out: rows of :data:`RULES` that do not run.
        cost_model: takes the paint off units that are faster in float32; ``None`` where costs do not count.

    Raises:
        GraphError: a loop is broken.
    """
    if resolution.target is None:
        return Painting.blank(view, Rule.NO_TARGET, resolution.why_none)
    if folded.scales:
        moved = dict.fromkeys(folded.scales, Rule.SCALES_FILTER)
        obstacles = dataclasses.replace(obstacles, rule_of={**obstacles.rule_of, **moved})
    canvas = preparing.prepare(view, resolution, obstacles, kernels)
    canvas.is_function, canvas.calls_products = is_function, calls_products
    canvas.is_loop_body, canvas.shapes, canvas.folded, canvas.cost_model = is_loop_body, shapes, folded, cost_model
    for row in RULES:
        if row.name not in left_out and row.when(resolution):
            row.apply(canvas)
            if row is ALLOW_LIST and not canvas.allow.any():
                return Painting.of(canvas, nothing_to_convert=True)
    return Painting.of(canvas)


def weigh(canvas: Canvas) -> None:
    """Takes allow paint off units that are cheaper in float32.

    Three kinds stay as they are in the first step. Products whose shapes nobody knows, and all where there are loops of
    graph nodes; what was folded into a convolution, and that convolution; and the entries and exits of loops: a cast of
    a value that does not change belongs outside. What TensorFlow computes together with another product is chosen with
    it. What the user forces stays in any case, and where no op pays, what the user asks for.

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


def _always(resolution: Resolution) -> bool:
    return True


def _unless_forced(resolution: Resolution) -> bool:
    """UNSAFE_FORCE_ALL asks for 16 bit whatever is lost."""
    return resolution.target is not None and not resolution.target.lists.force_all


def _where_amp_tf_chooses(resolution: Resolution) -> bool:
    return resolution.uses_cost_model


@dataclasses.dataclass(frozen=True)
class Row:
    """One rule.

    Attributes:
        name: by which it is left out; for a pass of TensorFlow's with its number there.
        apply: paints the canvas.
        when: whether it applies to what is converted here.
        difference: the name of the difference from TensorFlow's pass that it makes; empty for what TensorFlow does too.
        reasons: those of the nodes that it keeps in float32 for accuracy's sake.
    """

    name: str
    apply: Callable[[Canvas], None]
    when: Callable[[Resolution], bool] = _always
    difference: str = ""
    reasons: tuple[Rule, ...] = ()


ALLOW_LIST = Row("1 allow list", lists.paint_allow_list)

RULES: tuple[Row, ...] = (
    Row(
        "kernels",
        kernels.take_inexact_off_lists,
        difference="inexact-kernel",
        reasons=(Rule.SUMS, Rule.INACCURATE),
    ),
    Row("forced nodes", preparing.place_forced),
    Row("tensor lists", ties.find_clusters),
    ALLOW_LIST,
    Row("range", range.keep_in_range, _unless_forced, "range", (Rule.BEYOND_RANGE, Rule.LEAVES_RANGE)),
    Row(
        "needs",
        needs.keep_needed,
        _unless_forced,
        "need",
        (Rule.COMPARED, *(need.reason for need in needs.NEEDS)),
    ),
    Row("origins", origins.keep_origins, _unless_forced, "origin", (Rule.RUNNING_SUM, Rule.JOINED)),
    Row("2 deny list and what uses it", lists.spread_deny),
    Row("tensor lists after pass 2", ties.match_clusters),
    Row("3 between products", lists.paint_between_allow),
    Row("4 after products", lists.paint_after_allow),
    Row("5 beside products", lists.spread_allow_through_clear),
    Row("6 types that cannot be 16 bit", lists.drop_unsupported),
    Row("tensor lists after pass 6", ties.match_clusters),
    Row("7 recurrent edges", ties.match_recurrent_edges),
    Row("cost model", weigh, _where_amp_tf_chooses),
    Row("carried values", placing.leave_carried_values, difference="carried-value", reasons=(Rule.CARRIED,)),
    Row("picked values", placing.leave_picked_values, difference="picked-value"),
    Row("ties", ties.match_types, difference="tied-types", reasons=(Rule.COMPARED, Rule.SUMS)),
    Row("8 existing casts to float32", lists.retarget_casts),
    Row("existing casts to 16 bit", placing.absorb_casts, _where_amp_tf_chooses),
)
