"""The painting: which units become 16 bit, and why.

The goal, in the words of the method: convert what the hardware runs faster, keep what is numerically dangerous and what
depends on it, and insert as few casts as possible between the two. The rules are the rows of :data:`RULES`, in the
order in which they run; the passes of TensorFlow's ``AutoMixedPrecisionImpl::Optimize`` are numbered among them.

The docstring of each rule shows what it does on a small graph, all other rules in force: behind a node stands what it
computes in, float32 if nothing stands there, and ``f16 → float32`` where that changes once the rule is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.graph.indices import Mask
from amp_tf.graph.sizes import AttributeShapes, Shapes
from amp_tf.graph.view import GraphView
from amp_tf.oplists.targets import XLA_WIDENS, Resolution
from amp_tf.painting import (
    carriers,
    contract,
    differences,
    economy,
    eligibility,
    exact,
    extremes,
    loops,
    norms,
    preparing,
    rules,
    tensor_lists,
)
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.changes import NO_CHANGE, Change
from amp_tf.painting.contract import Flow
from amp_tf.painting.eligibility import Obstacles
from amp_tf.painting.folded import NOTHING_FOLDED, Folded
from amp_tf.painting.outcome import Painting
from amp_tf.painting.reasons import Rule


def paint(
    view: GraphView,
    resolution: Resolution,
    config: AmpConfig,
    *,
    preserve: Iterable[str] = (),
    is_function: Callable[[str], bool] = lambda op: False,
    calls_products: Callable[[Any], bool] = lambda node: True,
    shapes: Shapes | None = None,
    folded: Folded = NOTHING_FOLDED,
    change: Change = NO_CHANGE,
) -> Painting:
    """Decides the precision of every unit of a graph.

    Args:
        view: the graph.
        resolution: what is converted here, from :func:`amp_tf.oplists.targets.resolve_target`.
        config: name rules are read from it.
        preserve: names of nodes that stay as they are.
        is_function: whether an op is a function of the graph's library.
        calls_products: whether a node that holds or calls functions computes products in them; asked with its NodeDef.
        shapes: the static shapes of the graph's tensors; by default those that its nodes carry.
        folded: the nodes that have another meaning since normalization was folded.
        change: what is taken away before, to see what it keeps in float32.

    Raises:
        GraphError: a loop is broken.
    """
    resolution, config = change.lists(resolution, config), change.config(config)
    if resolution.target is None:
        return Painting.blank(view, Rule.NO_TARGET, resolution.why_none)
    obstacles = change.obstacles(eligibility.find_obstacles(view, resolution, config, preserve), view.names)
    if folded.scales:
        moved = dict.fromkeys(folded.scales, Rule.SCALES_FILTER)
        obstacles = dataclasses.replace(obstacles, rule_of={**obstacles.rule_of, **moved})
    canvas = preparing.prepare(view, resolution.target, obstacles, change.kernels)
    given = Given(obstacles, resolution, is_function, calls_products, shapes, folded)
    left_out = _left_out | change.rules
    for row in RULES:
        if row.name not in left_out and row.when(resolution):
            row.apply(canvas, given)
            if row is ALLOW_LIST and not canvas.allow.any():
                return Painting.of(canvas, obstacles, nothing_to_convert=True)
    return Painting.of(canvas, obstacles)


@dataclasses.dataclass
class Given:
    """What rules may ask for beside the canvas.

    Attributes:
        obstacles: what forbids to touch nodes, and what forces them.
        resolution: what is converted here.
        is_function, calls_products, shapes, folded: as :func:`paint` got them.
        clusters: the nodes that share TensorLists, once they are found.
    """

    obstacles: Obstacles
    resolution: Resolution
    is_function: Callable[[str], bool]
    calls_products: Callable[[Any], bool]
    shapes: Shapes | None
    folded: Folded
    clusters: list[tensor_lists.Cluster] = dataclasses.field(default_factory=list)
    _flow: Flow | None = None

    def flow(self, canvas: Canvas) -> Flow:
        """Where values go, found once, after the allow list is painted."""
        if self._flow is None:
            self._flow = Flow.of(canvas, self._calls(canvas.view))
        return self._flow

    def _calls(self, view: GraphView) -> Mask:
        """The nodes that call functions which compute products."""
        holds = (signature.holds_functions or self.is_function(signature.op) for signature in view.of_kind)
        calls = view.of_kinds(holds, np.bool_)
        for node in np.flatnonzero(calls).tolist():
            calls[node] = self.calls_products(view.protos[node])
        return calls


def _always(resolution: Resolution) -> bool:
    return True


def _unless_forced(resolution: Resolution) -> bool:
    """UNSAFE_FORCE_ALL asks for 16 bit whatever is lost."""
    return resolution.target is not None and not resolution.target.lists.force_all


def _where_amp_tf_chooses(resolution: Resolution) -> bool:
    return resolution.is_thrifty


@dataclasses.dataclass(frozen=True)
class Row:
    """One rule.

    Attributes:
        name: by which it is left out; for a pass of TensorFlow's with its number there.
        apply: paints the canvas.
        when: whether it applies to what is converted here.
        difference: the name of the difference from TensorFlow's pass that it makes; empty for what TensorFlow does too.
    """

    name: str
    apply: Callable[[Canvas, Given], None]
    when: Callable[[Resolution], bool] = _always
    difference: str = ""


def _of_canvas(rule: Callable[[Canvas], None]) -> Callable[[Canvas, Given], None]:
    return functools.wraps(rule)(lambda canvas, given: rule(canvas))


def _of_flow(rule: Callable[[Canvas, Flow], None]) -> Callable[[Canvas, Given], None]:
    return functools.wraps(rule)(lambda canvas, given: rule(canvas, given.flow(canvas)))


@functools.wraps(preparing.place_forced)
def _place_forced(canvas: Canvas, given: Given) -> None:
    preparing.place_forced(canvas, given.obstacles)


@functools.wraps(tensor_lists.find_clusters)
def _find_lists(canvas: Canvas, given: Given) -> None:
    if any(map(tensor_lists.handles_lists, canvas.view.of_kind)):
        given.clusters = tensor_lists.find_clusters(canvas, given.is_function)
        canvas.add_edges(tensor_lists.implicit_edges(canvas, given.clusters))


@functools.wraps(tensor_lists.match_clusters)
def _match_lists(canvas: Canvas, given: Given) -> None:
    tensor_lists.match_clusters(canvas, given.clusters)


@functools.wraps(economy.drop_unprofitable)
def _drop_unprofitable(canvas: Canvas, given: Given) -> None:
    ties = [*(list(cluster.values()) for cluster in given.clusters), *loops.recurrent_units(canvas)]
    if given.resolution.asked is not None:
        economy.drop_unasked(canvas, given.resolution.asked, XLA_WIDENS, ties)
        return
    shapes = AttributeShapes(canvas.view.protos) if given.shapes is None else given.shapes
    economy.drop_unprofitable(canvas, shapes, given.resolution.costs, ties, given.folded)


ALLOW_LIST = Row("1 allow list", _of_canvas(rules.paint_allow_list))

RULES: tuple[Row, ...] = (
    Row("sums on lists", _of_canvas(exact.take_sums_off_lists), difference="narrow-sum"),
    Row(
        "bounded exponentials", _of_canvas(rules.take_bounded_exponentials_off_lists), difference="bounded-exponential"
    ),
    Row("forced nodes", _place_forced),
    Row("tensor lists", _find_lists),
    ALLOW_LIST,
    Row("extreme constants", _of_canvas(extremes.keep_extremes), _unless_forced, "extreme-constant"),
    Row("stored maxima", _of_canvas(exact.keep_stored_maxima), _unless_forced, "lost-maximum"),
    Row("whole numbers", _of_canvas(exact.keep_whole_numbers), _unless_forced, "whole-number"),
    Row("results", _of_flow(contract.keep_results), _unless_forced, "after-products"),
    Row("running sums", _of_flow(contract.keep_running_sums), _unless_forced, "running-sum"),
    Row("differences", _of_flow(differences.keep_differences), _unless_forced, "difference"),
    Row("centred values", _of_flow(differences.keep_centred), _unless_forced, "difference"),
    Row("norms", _of_flow(norms.keep_norms), _unless_forced, "norm"),
    Row("squares and quotients", _of_flow(extremes.keep_in_range), _unless_forced, "squares-and-quotients"),
    Row("joined values", _of_flow(contract.keep_joined), _unless_forced, "joined"),
    Row("inaccurate kernels", _of_canvas(exact.take_inaccurate_off_lists), difference="inaccurate-kernel"),
    Row("2 deny list and what uses it", _of_canvas(rules.spread_deny)),
    Row("tensor lists after pass 2", _match_lists),
    Row("3 between products", _of_canvas(rules.paint_between_allow)),
    Row("4 after products", _of_canvas(rules.paint_after_allow)),
    Row("5 beside products", _of_canvas(rules.spread_allow_through_clear)),
    Row("6 types that cannot be 16 bit", _of_canvas(rules.drop_unsupported)),
    Row("tensor lists after pass 6", _match_lists),
    Row("7 recurrent edges", _of_canvas(loops.match_recurrent_edges)),
    Row("cost model", _drop_unprofitable, _where_amp_tf_chooses),
    Row("narrow sums", _of_canvas(exact.drop_narrow_sums), difference="narrow-sum"),
    Row("promoted differences", _of_flow(differences.promote_differences), difference="difference"),
    Row("carried values", _of_flow(carriers.leave_carried_values), difference="carried-value"),
    Row("maxima", _of_canvas(exact.match_maxima), difference="lost-maximum"),
    Row("loop entries", _of_canvas(loops.match_entries), difference="loop-entry"),
    Row("fused products", _of_canvas(rules.match_fused_types)),
    Row("8 existing casts to float32", _of_canvas(rules.retarget_casts)),
    Row("existing casts to 16 bit", _of_canvas(rules.absorb_casts), _where_amp_tf_chooses),
)

_left_out: frozenset[str] = frozenset()


def leave_out(names: Iterable[str]) -> None:
    """Leaves rules out from now on, in the whole process: to see what a rule is worth.

    Args:
        names: of rows of :data:`RULES`.

    Raises:
        KeyError: there is no such row.
    """
    global _left_out
    known, names = {row.name for row in RULES}, frozenset(names)
    if unknown := names - known:
        raise KeyError(f"no rules {sorted(unknown)}; there are {sorted(known)}")
    _left_out |= names


@contextlib.contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """As :func:`leave_out`, for a while: so is parity with TensorFlow's pass judged."""
    global _left_out
    before = _left_out
    leave_out(names)
    try:
        yield
    finally:
        _left_out = before


@functools.cache
def differing(*differences: str) -> tuple[str, ...]:
    """The names of the rows that make some differences from TensorFlow's pass, or any if none is named."""
    return tuple(row.name for row in RULES if row.difference and (not differences or row.difference in differences))
