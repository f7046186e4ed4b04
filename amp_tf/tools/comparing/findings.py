"""Names the places where a model goes wrong, and searches for patterns that make all outputs good.

*Suspects* are the nodes with the largest local errors: first those that make numbers infinite that
are finite in float32, in the order of the graph, then the others by local error.

A set of patterns grows until all outputs are good on all batches. It begins with the suspects of
the judged batch. If they do not suffice, they are put in float32, and the nodes are measured again
in the batch that then has the largest error: its suspects join the set. At last all 16-bit nodes
join it, layer by layer. A sufficient set is reduced (:mod:`amp_tf.tools.search`). If it was reduced
on the watched batches, it is tried on all batches before it is believed. The suspects that are left
in it are the findings.

Outputs that the ideal program loses, too, are inherent in multiplying in 16 bit. They are let go
unless the set makes them good: if a few products cancel, their suspects do.

The sufficient set that is reported is the one with the shortest text: one layer, name scope or
loss, where that suffices and takes at most 2 % more of the products' work out of 16 bit than the
reduced set.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from amp_tf.config import AmpConfig
from amp_tf.graph.layers import path_of, scopes
from amp_tf.graph.names import find_followers, pattern_for, without_calls
from amp_tf.oplists.table import HANDING_ON
from amp_tf.precision import Precision
from amp_tf.reporting.figures import percent
from amp_tf.rewriting.pipeline import RewriteResult
from amp_tf.tools import some
from amp_tf.tools.comparing.flattening import Names
from amp_tf.tools.comparing.nodes import NodeError
from amp_tf.tools.comparing.verdicts import Output, inherent_in, roundoff
from amp_tf.tools.comparing.work import OutputMeasurement, Work, Yardstick
from amp_tf.tools.keeping import Patterns, any_matcher, layer_pattern
from amp_tf.tools.search import reduce

Fault = Literal["overflow", "underflow", "cancellation", "rounding"]
UNDERFLOWN = 0.1  #: share of the numbers; fewer do no harm
SUSPICIOUS = 4.0  #: times the roundoff; a product in a healthy model adds about one
_MOST = 8  # suspects
_LOOKS = 4  # each needs a graph that runs float32 and 16 bit side by side
_REDUCTIONS = 3  # each may fail on the other batches
_TRIALS = 12  # of one reduction
_SHORT = 20  # characters of patterns that are short enough to read
_PLACES = 8  # layers and scopes that are tried for a shorter text
_PLACES_PRICED = 32  # places whose share of work in 16 bit is computed, each by a rewrite
_SHARE_FOR_SHORTER = 0.02  # share of the products' work that a shorter text may cost

#: Patterns, each with the first suspect that it is for; ``None`` for the pattern of a whole layer.
Causes = dict[str, NodeError | None]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One place where the model goes wrong in 16 bit."""

    node: str  #: where
    op: str  #: of the node
    layer: str  #: the path of its layer in Keras, also of a gradient; empty where none is recorded
    kind: Fault  #: a cancellation is one rounding of its inputs that is large beside its result
    why: str  #: what goes wrong, for people
    local_error: float  #: relative L2 error that it adds on exact inputs
    accumulated_error: float  #: its result's error in the run


def describe(node: NodeError, precision: Precision) -> Finding:
    """Returns the finding at a node with a local error."""
    assert node.local is not None
    kind, why = _diagnose(node, node.local, precision)
    return Finding(
        node.name,
        node.op,
        path_of(node.name),
        kind,
        why,
        local_error=node.local,
        accumulated_error=node.accumulated,
    )


def _diagnose(node: NodeError, local: float, precision: Precision) -> tuple[Fault, str]:
    """Returns what goes wrong at a node by itself, also in words."""
    if node.nonfinite_alone:
        return "overflow", (
            f"{percent(node.nonfinite_alone)} of its result is inf or nan; its numbers reach "
            f"{max(node.largest, node.largest_input):.3g}, "
            f"{precision.value} ends at {precision.max_finite:.5g}"
        )
    if node.underflow > UNDERFLOWN:
        return "underflow", (
            f"{percent(node.underflow)} of its result becomes zero; its numbers reach "
            f"{node.largest:.1g}, {precision.value} begins at {precision.smallest:.1g}. Where it "
            "is a gradient, scale the loss (LossScaler)"
        )
    inputs = f"its inputs, up to {node.largest_input:.3g}, are rounded"
    if node.rounded:
        inputs += f" ({some(node.rounded)})"
    roundings = SUSPICIOUS * roundoff(precision)
    if roundings < local and local * node.largest <= roundings * node.largest_input:
        return (
            "cancellation",
            f"{inputs}, and they cancel: its result is at most {node.largest:.3g}",
        )
    if node.rounded:
        return "rounding", f"{inputs}, and its result is up to {node.largest:.3g}"
    return "rounding", f"its result, up to {node.largest:.3g}, is rounded"


class Search:
    """A search for patterns that fix all outputs, by runs of a step with more nodes in float32.

    Most run only the watched batches: at first those of the yardstick, later also each batch on
    which a set of patterns failed that did well on those watched before. So a set that must hold on
    all batches is found at the price of a few.
    """

    def __init__(self, work: Work, config: AmpConfig, yardstick: Yardstick) -> None:
        self._work = work
        self._config = config
        self._yardstick = yardstick
        self._followers = find_followers(work.flat.graph)  # what may be fused with each product
        self._watched = tuple(yardstick.numbers)
        self._let_go: Names = ()  # titles of outputs that may stay wrong
        self._known: dict[Any, tuple[list[Output], OutputMeasurement]] = {}

    def suspects(self, nodes: Sequence[NodeError]) -> list[NodeError]:
        """Returns the nodes with larger local errors than products of a healthy model have.

        If there are none, all nodes with an error are returned. The worst comes first. A node that
        may be fused with a worse product is left out, because the product's pattern keeps both in
        float32.
        """
        known = []
        bad = []
        for node in nodes:
            if node.local and node.has_truth:
                known.append(node)
                if self._is_suspicious(node):
                    bad.append(node)
        chosen: dict[Names, NodeError] = {}
        fused: set[str] = set()
        for node in sorted(bad or known, key=_severity):
            kept = _nodes_to_keep(node)
            if kept and not fused.issuperset(kept):
                chosen.setdefault(kept, node)
                for name in kept:
                    fused.update(self._followers.get(name, ()))
        return list(chosen.values())[:_MOST]

    def _is_suspicious(self, node: NodeError) -> bool:
        return (node.local or 0.0) > SUSPICIOUS * roundoff(self._work.precision)

    def find(
        self, suspects: Sequence[NodeError], outputs: Sequence[Output]
    ) -> tuple[list[NodeError], Patterns]:
        """Returns the suspects that have to stay in float32, and the shortest patterns that hold.

        With these all outputs are good on all batches, as was tried, but perhaps for inherent ones.
        Both are empty where only these are wrong, or where not even all nodes in float32 suffice.

        Args:
            suspects: those of the judged batch.
            outputs: as they are without patterns.
        """
        self._let_go = inherent_in(outputs)
        if self._are_right(outputs) and not any(map(self._is_suspicious, suspects)):
            return [], ()
        causes = self._grow(suspects)
        if not causes or self._are_right(outputs):
            return [], ()
        causes = self._reduced(causes)
        needed: dict[str, NodeError] = {}
        for node in causes.values():
            if node is not None:
                needed.setdefault(node.name, node)
        return sorted(needed.values(), key=_severity), self._shortest(causes)

    def _patterns_of(self, suspects: Sequence[NodeError]) -> Causes:
        """Returns the patterns that keep some nodes in float32, each with the first such node."""
        causes: Causes = {}
        for node in suspects:
            for name in _nodes_to_keep(node):
                causes.setdefault(pattern_for(name, self._followers), node)
        return causes

    def _grow(self, suspects: Sequence[NodeError]) -> Causes:
        """Returns patterns that suffice on all batches.

        There are none if not even all nodes in float32 suffice.
        """
        causes = self._patterns_of(suspects)
        for _ in range(_LOOKS):
            patterns = tuple(causes)
            if not patterns:
                break
            outputs, measured = self._run(patterns, self._watched)
            self._let_go = inherent_in(outputs)
            if self._holds(patterns):
                return causes
            rewritten = self._rewritten(patterns).graph
            nodes = self._work.measure_nodes(rewritten, measured.furthest()[0], measured.scale)
            more = self._patterns_of(self.suspects(nodes))
            if more.keys() <= causes.keys():
                break
            for pattern, node in more.items():
                causes.setdefault(pattern, node)
        everything: Causes = {}
        for row in self._rewritten(()).report.nodes:
            if row.precision.is_f16:
                innermost = places_of(row.name)[-1:] or [pattern_for(row.name, {})]
                everything[innermost[0]] = None
        if self._holds(tuple(everything)):
            return everything
        return {}

    def _reduced(self, causes: Causes) -> Causes:
        """Returns the causes without patterns that the trials find needless."""
        for _ in range(_REDUCTIONS):
            fewer = reduce(tuple(causes), self._is_right, _TRIALS)
            if self._holds(fewer):
                return {pattern: causes[pattern] for pattern in fewer}
        return dict(causes)

    def _shortest(self, causes: Causes) -> Patterns:
        """Returns patterns with a shorter text that hold, too.

        They are those of the causes if none is found.

        First candidates are single layers or name scopes around the nodes that the patterns keep in
        float32: those around most nodes, and among equals the outermost. The last one is the set of
        all layers of the causes.
        """
        patterns = tuple(causes)
        if _length(patterns) <= _SHORT:
            return patterns
        candidates: list[Patterns] = []
        least_share = self._share_in_f16(patterns) - _SHARE_FOR_SHORTER
        for place in self._places_around(patterns)[:_PLACES_PRICED]:
            if len(candidates) < _PLACES and self._share_in_f16((place,)) >= least_share:
                candidates.append((place,))
        candidates.append(_layers_of(causes.values()))
        for candidate in candidates:
            is_shorter = 0 < _length(candidate) < _length(patterns)
            if is_shorter and self._holds(candidate):
                return candidate
        return patterns

    def _places_around(self, patterns: Patterns) -> list[str]:
        """Returns patterns for the layers and scopes of the nodes that some patterns keep.

        The most common comes first.
        """
        is_kept = any_matcher(patterns)
        counts: collections.Counter[str] = collections.Counter()
        for node in self._rewritten(()).report.nodes:
            if node.precision.is_f16 and is_kept(node.name):
                counts.update(places_of(node.name))
        # The sort is stable: of equals the outermost comes first.
        return sorted(counts, key=lambda place: -counts[place])

    def _share_in_f16(self, patterns: Patterns) -> float:
        """Returns the share of the products' work that is 16 bit with some patterns.

        If the work is not known, it is the share of their number.
        """
        products = self._rewritten(patterns).report.products
        if products.share is not None:
            return products.share
        return products.nodes[0] / max(products.nodes[-1], 1)

    def on_all_batches(self, patterns: Patterns) -> tuple[list[Output], OutputMeasurement]:
        """Returns the outputs with some patterns, and the differences of which they were judged."""
        return self._run(patterns, tuple(range(len(self._work.flat.batches))))

    def _are_right(self, outputs: Iterable[Output]) -> bool:
        """Tells whether all outputs are good, or inherent and let go."""
        for output in outputs:
            if not output.is_good and not (output.is_inherent and output.title in self._let_go):
                return False
        return True

    def _is_right(self, patterns: Patterns) -> bool:
        """Tells whether all outputs are right on the watched batches."""
        return self._are_right(self._run(patterns, self._watched)[0])

    def _holds(self, patterns: Patterns) -> bool:
        """Tells whether all outputs are right on all batches.

        If not, the worst batch is watched from now on.
        """
        if not self._is_right(patterns):
            return False
        outputs, measured = self.on_all_batches(patterns)
        if self._are_right(outputs):
            return True
        for number in measured.furthest():
            if number not in self._watched:
                self._watched += (number,)
                break
        return False

    def _rewritten(self, patterns: Patterns) -> RewriteResult:
        return self._work.rewritten(self._config_with(patterns))

    def _config_with(self, patterns: Patterns) -> AmpConfig:
        kept = (*self._config.keep_float32, *patterns)
        return dataclasses.replace(self._config, keep_float32=kept)

    def _run(
        self, patterns: Patterns, numbers: Sequence[int]
    ) -> tuple[list[Output], OutputMeasurement]:
        """Returns the outputs, and the differences of which they were judged."""
        key = frozenset(patterns), tuple(sorted(numbers))
        if key not in self._known:
            what = f"a trial with {', '.join(patterns)} in float32"
            measured = self._work.measure(self._rewritten(patterns).graph, what, numbers)
            yardstick = self._yardstick
            # An infinity of the ideal program is that of a product that may be in float32 now.
            if any(one.nonfinite for one in yardstick.ideal):
                config = self._config_with(patterns)
                ideal = self._work.measure_ideal(config, yardstick.numbers, measured.scale)
                yardstick = dataclasses.replace(yardstick, ideal=ideal.pooled())
            self._known[key] = self._work.judge(measured, yardstick), measured
        return self._known[key]


def _length(patterns: Patterns) -> int:
    return len(",".join(patterns))


def _layers_of(nodes: Iterable[NodeError | None]) -> Patterns:
    """Returns the patterns of the layers of some nodes; none where a layer is not recorded."""
    layers: dict[str, None] = {}
    for node in nodes:
        if node is None or not path_of(node.name):
            return ()
        layers[layer_pattern(path_of(node.name))] = None
    return tuple(layers)


def places_of(node: str) -> list[str]:
    """Returns patterns for the layers around a node, outermost first.

    If TensorFlow recorded no layer, they are for the scopes in its name.
    """
    path = path_of(node).split("/")
    if path != [""]:
        return [layer_pattern("/".join(path[:end])) for end in range(1, len(path) + 1)]
    places: dict[str, None] = {}
    for scope in scopes(without_calls(node)):
        # The name of a loss, such as compile_loss, needs no slash: with it, dense_1 does not find
        # dense_10.
        end = "/" if scope[-1].isdigit() else ""
        places[f"{re.escape(scope)}{end}"] = None
    return list(places)


def _severity(node: NodeError) -> tuple[float, bool]:
    """Returns a key that sorts the largest local errors first, in a stable sort.

    Ops that only pass values on come after their readers, because a reader in float32 fixes both.
    """
    return -(node.local or 0.0), node.op in HANDING_ON


def _nodes_to_keep(node: NodeError) -> Names:
    """Returns the nodes to keep in float32 so that nothing is lost at a node.

    They are the node itself, or the sources of its 16-bit inputs.
    """
    if node.is_f16:
        return (node.name,)
    return node.rounded
