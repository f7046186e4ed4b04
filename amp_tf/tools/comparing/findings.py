"""Ranks what went wrong by its effect on the outputs, and searches for patterns that make all
outputs good.

*Suspects* are the nodes with the largest local errors: first those that make numbers infinite that
are finite in float32, in the order of the graph, then the others by local error. Each is kept in
float32 once, and the step run again: more and more around it, until an output gets better.

Then a set of patterns grows until all outputs are good on all batches. It begins with the suspects
of the judged batch. If they do not suffice, the nodes are measured again with these in float32, in
the batch that then has the largest error, and its suspects are added; finally all 16-bit nodes are,
layer by layer. A sufficient set is reduced (:mod:`amp_tf.tools.search`); one that was reduced on
the watched batches is tried on all batches before it is believed.

The sufficient set that people are told is the one with the shortest text: one layer, name scope or
loss, where that suffices and takes hardly more of the products' work out of 16 bit than the reduced
set.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from amp_tf.config import AmpConfig
from amp_tf.graph.names import (
    find_followers,
    is_gradient,
    matcher,
    path_of,
    pattern_for,
    scopes,
    without_calls,
)
from amp_tf.oplists.table import HANDING_ON, PRODUCTS
from amp_tf.reporting.figures import NO_PRODUCTS, Products
from amp_tf.tools.comparing.flattening import reached
from amp_tf.tools.comparing.nodes import NodeMeasurement
from amp_tf.tools.comparing.verdicts import Output, Patterns, has_truth, roundoff
from amp_tf.tools.comparing.work import Work, Yardstick
from amp_tf.tools.search import reduce
from amp_tf.values import LAYER

OVERFLOW = "overflow"
UNDERFLOW = "underflow"
CANCELLATION = "cancellation"
ROUNDING = "rounding"
KEEP_VAR = "AMP_TF_KEEP_FLOAT32"
UNDERFLOWN = 0.1  #: of the numbers: fewer are no harm


@dataclasses.dataclass(frozen=True)
class Finding:
    """One place where the model goes wrong in 16 bit."""

    node: str  #: where
    op: str  #: of the node
    #: the path of its layer in Keras where it was recorded, else its name scope; also of a gradient
    layer: str
    #: ``"overflow"``, ``"underflow"``, ``"cancellation"`` (one rounding of its inputs, which is
    #: large beside its result) or ``"rounding"``
    kind: Annotated[str, (OVERFLOW, UNDERFLOW, CANCELLATION, ROUNDING)]
    local_error: float  #: relative L2 error that it adds on exact inputs
    accumulated_error: float  #: that of its result in the run
    nonfinite: (
        float  #: share of its result that is inf or nan on exact inputs, and finite in float32
    )
    underflow: float  #: share that is zero on exact inputs, and not in float32
    largest: float  #: the largest size of a number of its result in float32
    largest_input: float  #: that of its inputs
    rounded: tuple[str, ...]  #: the nodes whose 16-bit results it reads
    patterns: Patterns  #: for ``AmpConfig.keep_float32``: what was kept in float32 to try it
    ratio: float  #: the worst ratio of an output then
    mends: bool  #: whether all outputs are good then, in the batches that were judged
    forced_by: str = (
        ""  #: the pattern of ``AmpConfig.force_f16`` that made it 16 bit; empty if none did
    )

    @property
    def line(self) -> str:
        """The environment variable to set."""
        return keep_line(self.patterns)


def worth_alone(finding: Finding) -> str:
    """What a finding's line does without the others, as text."""
    if finding.mends:
        return "this alone fixes all outputs in the batches that were judged"
    return f"this alone leaves some outputs wrong (worst ratio {finding.ratio:.2g})"


def keep_line(patterns: Patterns) -> str:
    """The environment variable that keeps nodes in float32."""
    return f"{KEEP_VAR}={shlex.quote(','.join(patterns))}" if patterns else ""


def keep_call(patterns: Patterns) -> str:
    """The call that does so in Python."""
    return f"amp_tf.enable(keep_float32={list(patterns)!r})" if patterns else ""


SUSPICIOUS = 4.0  #: times the roundoff; a product in a healthy model adds about one
_MOST = 8  # suspects: each costs at least a rewrite and a run of the batches
_LOOKS = 4  # each needs a graph that runs float32 and 16 bit side by side
_REDUCTIONS, _TRIALS = 3, 12  # each reduction may fail on the other batches; trials of one
_SHORT = 20  # characters of patterns that are short enough to read
_PLACES = 8  # layers and scopes that are tried for a shorter text
_PLACES_PRICED = 32  # of which the share of work in 16 bit is asked for: each is a rewrite
_SHARE_FOR_SHORTER = 0.02  # of the products' work, which a shorter text may cost more
_NUMBER, _ANY_NUMBER = re.compile(r"_\d+(?=/|$)"), r"(_\\d+)?"
_GRADIENT_SCOPES = ("gradient_tape/", "gradients/")
_GRADIENT_OP = re.compile(r"(\w+?)Grad(V\d)?(_\d+)?")


@dataclasses.dataclass(frozen=True)
class _Part:
    """Some patterns, the node that they are for, ``None`` where it is a whole layer, and the
    outputs with them.
    """

    patterns: Patterns
    measured: NodeMeasurement | None = None
    after: Sequence[Output] = ()


class Search:
    """A search for what goes wrong, by runs of a step with more nodes in float32; ``trials`` is how
    many were made.

    Most run only the watched batches: at first those of the yardstick, later also each batch on
    which a set of patterns failed that did well on those watched before. So a set that must hold on
    all batches is found at the price of a few. ``outputs`` are the verdicts, of which one is bad at
    least.
    """

    def __init__(
        self, work: Work, config: AmpConfig, yardstick: Yardstick, outputs: Sequence[Output]
    ) -> None:
        self._work, self._config, self._yardstick, self._outputs = work, config, yardstick, outputs
        self._followers = find_followers(work.flat.graph)  # what may be fused with each product
        self._watched = tuple(yardstick.numbers)
        self._known: dict[Any, tuple[Sequence[Output], Sequence[int], float]] = {}
        self.trials = 0

    def find(self, nodes: Sequence[NodeMeasurement]) -> tuple[tuple[Finding, ...], Patterns, bool]:
        """Tries the suspects one by one, and searches for patterns that make all outputs good.

        Returns what the patterns are there for, the most helpful first, or the suspects that make
        outputs better, or the first one; patterns with which all outputs are good on all batches,
        as was tried, if there are any; and whether the user interrupted the search.
        """
        tried: list[_Part] = []
        explained: list[_Part] = []
        patterns: Patterns = ()
        parts: tuple[_Part, ...] = ()
        is_cut = False
        try:
            for one in self._alone(nodes):
                tried.append(one)
            try:
                # The suspect that suffices alone comes first; else all, each with its smallest set.
                ranked = self._ranked(tried)
                wide = [one for one in ranked if one.patterns != self._narrow(one.measured)]
                first = [
                    *(_Part(self._narrow(one.measured), one.measured) for one in ranked),
                    *wide,
                ]
                if tried and all(output.is_good for output in tried[-1].after):
                    first = tried[-1:]
                parts = self._grow(tuple(first))
                parts = self._reduced(parts)
            except KeyboardInterrupt:  # the parts suffice all the same, if there are any
                is_cut = True
            # The layers of the nodes, which are easier to read, where they suffice on all batches
            # as well.
            patterns = _patterns_of(parts)
            paths = [path_of(part.measured.name) if part.measured else "" for part in parts]
            layers = tuple(dict.fromkeys(f"{LAYER}{path}" for path in paths))
            if all(paths) and 0 < len(layers) < len(patterns) and self._holds(layers):
                patterns = layers
            patterns = self._shortest(patterns)
            for part in parts:
                if part.measured is not None:
                    explained.append(
                        dataclasses.replace(part, after=self._outputs_with(part.patterns))
                    )
        except KeyboardInterrupt:
            is_cut = True
        ranked = self._ranked(explained or tried)
        helpful = [
            one for one in ranked if explained or _harm(one.after) < _harm(self._outputs)
        ] or ranked[:1]
        return tuple(map(self._finding, helpful)), patterns, is_cut

    def _alone(self, nodes: Sequence[NodeMeasurement]) -> Iterator[_Part]:
        """Tries each suspect alone, until one suffices.

        Of each, sets of patterns that grow: the node, or the sources of its 16-bit inputs; then the
        chain back to the products before it, these included; then its scope, and its layer.
        """
        known = {measured.name: measured for measured in nodes}

        def sources(name: str) -> Patterns:
            return known[name].rounded if name in known and known[name].op not in PRODUCTS else ()

        for measured in self._suspects(nodes):
            narrow = self._narrow(measured)
            chain = tuple(
                pattern_for(name, self._followers) for name in reached(_own(measured), sources)
            )
            sets = dict.fromkeys(
                (narrow, chain, *((scope,) for scope in scope_patterns(measured.name)))
            )
            better = (
                some for some in sets if _harm(self._outputs_with(some)) < _harm(self._outputs)
            )
            chosen = next(better, narrow)
            yield _Part(chosen, measured, self._outputs_with(chosen))
            if self._is_right(chosen):
                break  # the remaining ones have smaller local errors

    def _grow(self, parts: tuple[_Part, ...]) -> tuple[_Part, ...]:
        """Parts that suffice on all batches; none where not even all nodes in float32 do."""
        for _ in range(_LOOKS):
            if self._holds(_patterns_of(parts)):
                return parts
            _, furthest, scale = self._run(_patterns_of(parts), self._watched)
            rewritten = self._work.rewritten(self._config_with(_patterns_of(parts))).graph
            nodes = self._suspects(self._work.measure_nodes(rewritten, furthest[0], scale, None))
            if not nodes:
                break
            parts += tuple(_Part(self._narrow(measured), measured) for measured in nodes)
        names = (
            node.name
            for node in self._work.rewritten(self._config).report.nodes
            if node.precision.is_f16
        )
        everything = tuple(_Part((layer,)) for layer in dict.fromkeys(map(_scope_pattern, names)))
        return next((some for some in (parts, everything) if self._holds(_patterns_of(some))), ())

    def _reduced(self, parts: tuple[_Part, ...]) -> tuple[_Part, ...]:
        """The parts without patterns that the trials find needless: each pattern in its first part,
        each node once.
        """
        needed = _patterns_of(parts)
        for _ in range(_REDUCTIONS):
            fewer = reduce(needed, self._is_right, _TRIALS)
            if self._holds(fewer):
                needed = fewer
                break
        left, found = set(needed), []
        names = [part.measured.name if part.measured else part.patterns[0] for part in parts]
        for name in dict.fromkeys(names):
            same = [part for part, own_name in zip(parts, names, strict=True) if own_name == name]
            own = tuple(pattern for pattern in _patterns_of(same) if pattern in left)
            left.difference_update(own)
            if own:
                found.append(dataclasses.replace(same[0], patterns=own))
        return tuple(found)

    def _shortest(self, patterns: Patterns) -> Patterns:
        """Returns patterns with a shorter text that hold as ``patterns`` do; these where none is
        found.

        Candidates are single layers or name scopes around the nodes that ``patterns`` keep in
        float32, those around most of them first and of these the outermost; then the same patterns
        for any number in a name.
        """
        length = _length(patterns)
        if length <= _SHORT:
            return patterns
        least_share = self._share_in_f16(patterns) - _SHARE_FOR_SHORTER
        candidates: list[Patterns] = []
        for place in self._places_around(patterns)[:_PLACES_PRICED]:
            if len(candidates) == _PLACES:
                break
            if self._share_in_f16((place,)) >= least_share:
                candidates.append((place,))
        candidates.append(_for_any_number(patterns))
        for candidate in candidates:
            if _length(candidate) < length and self._holds(candidate):
                return candidate
        return patterns

    def _places_around(self, patterns: Patterns) -> list[str]:
        """Returns patterns for the layers and scopes of the nodes that some patterns keep; the most
        common first.
        """
        tests = [matcher(pattern) for pattern in patterns]
        counts: collections.Counter[str] = collections.Counter()
        for node in self._work.rewritten(self._config).report.nodes:
            if node.precision.is_f16 and any(test(node.name) for test in tests):
                counts.update(places_of(node.name))
        return sorted(
            counts, key=lambda place: -counts[place]
        )  # stable: of equals the outermost comes first

    def _share_in_f16(self, patterns: Patterns) -> float:
        """Returns the share of the products' work that is 16 bit with patterns; of their number if
        that is unknown.
        """
        graphs = self._work.rewritten(self._config_with(patterns)).report.graphs
        products = functools.reduce(
            Products.plus, (graph.products for graph in graphs), NO_PRODUCTS
        )
        if products.share is not None:
            return products.share
        return products.nodes[0] / max(products.nodes[-1], 1)

    def _suspects(self, nodes: Sequence[NodeMeasurement]) -> list[NodeMeasurement]:
        """The nodes with larger local errors than products of a healthy model have, or else any
        error; the worst first.

        A node that may be fused with a worse product is left out, because the product's pattern
        keeps both in float32.
        """
        local = [
            one
            for one in nodes
            if one.local is not None and has_truth(one.local, self._work.precision)
        ]
        worst = list(filter(self._is_suspicious, local)) or local
        # Stable. Ops that only pass values on come after their readers, because a reader in float32
        # fixes both.
        order = sorted(filter(_added, worst), key=lambda one: (-_added(one), one.op in HANDING_ON))
        chosen: dict[Patterns, NodeMeasurement] = {}
        fused: set[str] = set()
        for measured in order:
            own = _own(measured)
            if own and not fused.issuperset(own):
                chosen.setdefault(own, measured)
                fused.update(*(self._followers.get(name, ()) for name in own))
        return list(chosen.values())[:_MOST]

    def _is_suspicious(self, measured: NodeMeasurement | None) -> bool:
        return measured is not None and _added(measured) > SUSPICIOUS * roundoff(
            self._work.precision
        )

    def _ranked(self, tried: Sequence[_Part]) -> list[_Part]:
        """The most helpful suspects first; last, those that may help only together with others.

        These are nodes whose local error is not larger than that of others, and nodes that do not
        help alone.
        """

        def rank(one: _Part) -> tuple[bool, bool, tuple[float, float, float]]:
            is_wide = one.patterns != self._narrow(one.measured)
            return not self._is_suspicious(one.measured), is_wide, _harm(one.after)

        return sorted(tried, key=rank)

    def _narrow(self, measured: NodeMeasurement | None) -> Patterns:
        return tuple(
            pattern_for(name, self._followers) for name in (_own(measured) if measured else ())
        )

    def _finding(self, tried: _Part) -> Finding:
        measured = tried.measured
        assert measured is not None
        assert measured.local is not None
        local, name = measured.local, measured.name
        roundings = SUSPICIOUS * roundoff(self._work.precision)
        kind = ROUNDING
        if local.nonfinite:
            kind = OVERFLOW
        elif local.underflow > UNDERFLOWN:
            kind = UNDERFLOW
        elif (
            local.error > roundings
            and local.error * local.largest <= roundings * measured.largest_input
        ):
            kind = CANCELLATION
        return Finding(
            node=name,
            op=measured.op,
            layer=path_of(name) or scope_of(name),
            kind=kind,
            local_error=local.distance,
            accumulated_error=measured.accumulated.distance,
            nonfinite=local.nonfinite,
            underflow=local.underflow,
            largest=local.largest,
            largest_input=measured.largest_input,
            rounded=measured.rounded,
            patterns=tried.patterns,
            ratio=max((output.ratio for output in tried.after), default=0.0),
            mends=all(output.is_good for output in tried.after),
            forced_by=next(
                (pattern for pattern in self._config.force_f16 if matcher(pattern)(name)), ""
            ),
        )

    def _outputs_with(self, patterns: Patterns) -> Sequence[Output]:
        return self._run(patterns, self._watched)[0]

    def _is_right(self, patterns: Patterns) -> bool:
        return all(output.is_good for output in self._outputs_with(patterns))

    def _holds(self, patterns: Patterns) -> bool:
        """Whether all outputs are good on all batches; if not, the worst batch is watched from now
        on.
        """
        if not self._is_right(patterns):
            return False
        outputs, furthest, _ = self._run(patterns, tuple(range(len(self._work.flat.batches))))
        is_right = all(output.is_good for output in outputs)
        if not is_right:
            self._watched += tuple(number for number in furthest if number not in self._watched)[:1]
        return is_right

    def _config_with(self, patterns: Patterns) -> AmpConfig:
        return dataclasses.replace(
            self._config, keep_float32=(*self._config.keep_float32, *patterns)
        )

    def _run(
        self, patterns: Patterns, numbers: Sequence[int]
    ) -> tuple[Sequence[Output], Sequence[int], float]:
        """The outputs, the batches with the largest errors first, and the loss scale."""
        key = frozenset(patterns), tuple(sorted(numbers))
        if key not in self._known:
            self.trials += 1
            config = self._config_with(patterns)
            what = f"a trial with {', '.join(patterns)} in float32"
            measured, scale = self._work.measure(self._work.rewritten(config).graph, what, numbers)
            if measured.is_cut:
                raise KeyboardInterrupt
            yardstick = self._yardstick
            if any(
                one.nonfinite for one in yardstick.ideal
            ):  # as a product is that may be in float32 now
                ideal = self._work.measure_ideal(config, yardstick.numbers, scale).pooled()
                yardstick = dataclasses.replace(yardstick, ideal=ideal)
            self._known[key] = (
                self._work.judge(measured, yardstick),
                measured.furthest(len(numbers)),
                scale,
            )
        return self._known[key]


def _length(patterns: Patterns) -> int:
    return len(",".join(patterns))


def places_of(node: str) -> list[str]:
    """Returns patterns for the layers around a node, outermost first; where none is recorded, for
    its scopes.
    """
    path = path_of(node).split("/")
    if path != [""]:
        return [f"{LAYER}{'/'.join(path[:end])}" for end in range(1, len(path) + 1)]
    places: dict[str, None] = {}
    for scope in scopes(without_calls(node)):
        # The name of a loss, such as compile_loss, needs no slash: with it, dense_1 does not find
        # dense_10.
        end = "/" if scope[-1].isdigit() else ""
        places[f"{re.escape(scope)}{end}"] = None
    return list(places)


def _for_any_number(patterns: Patterns) -> Patterns:
    """Returns one pattern in place of those that differ only in numbers, as those of block_1 and
    block_12 do.
    """
    groups: dict[str, list[str]] = {}
    for pattern in patterns:
        groups.setdefault(_NUMBER.sub(_ANY_NUMBER, pattern), []).append(pattern)
    return tuple(general if len(group) > 1 else group[0] for general, group in groups.items())


def _patterns_of(parts: Sequence[_Part]) -> Patterns:
    return tuple(dict.fromkeys(pattern for part in parts for pattern in part.patterns))


def _harm(outputs: Sequence[Output]) -> tuple[float, float, float]:
    """How bad outputs are, as a sort key: the number of nonfinite ones, of bad ones, and the sum of
    their ratios.
    """
    bad = [output for output in outputs if not output.is_good]
    infinite = sum(output.error == float("inf") for output in bad)
    return infinite, len(bad), sum(min(output.ratio, 1e9) for output in bad)


def _own(measured: NodeMeasurement) -> Patterns:
    """The nodes to keep in float32 so that nothing is lost at a node: itself, or the sources of its
    16-bit inputs.
    """
    return (measured.name,) if measured.is_f16 else measured.rounded


def _added(measured: NodeMeasurement) -> float:
    return 0.0 if measured.local is None else measured.local.distance


def scope_patterns(node: str) -> list[str]:
    """Patterns for the scope of a gradient's forward node, which may be a function's, and for that
    of its layer.
    """
    names = (re.sub(".*?(gradient_tape|gradients)/", "", node), node)
    return [_scope_pattern(name) for name in names if scope_of(name)]


def _scope_pattern(node: str) -> str:
    """A regular expression for all nodes of a node's scope; for the node alone where it has none."""
    scope = scope_of(without_calls(node)) or scope_of(node)
    return f"(^|/){re.escape(scope)}/" if scope else f"^{re.escape(node)}$"


def scope_of(node: str) -> str:
    """The name scope of a node, as it is in the graph; for a node of a gradient, the scope of the
    forward node.
    """
    for scope in _GRADIENT_SCOPES if is_gradient(node) else ():
        if inner := node.partition(scope)[2]:
            above, _, name = inner.rpartition("/")
            outer, _, forward = above.rpartition("/")
            grad = _GRADIENT_OP.fullmatch(name)
            # dense/MatMul/MatMul_1 and dense/BiasAdd/BiasAddGrad are below the forward node,
            # dense/TanhGrad beside it.
            is_beside = grad is not None and not re.fullmatch(
                rf"{re.escape(grad[1])}(_\d+)?", forward
            )
            return above if is_beside else outer or above
    return node.rpartition("/")[0]
