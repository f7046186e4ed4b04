"""What went wrong, ranked by what it does to the outputs: each suspect is kept in float32 once, and the step run again.

Suspects are the nodes that add most by themselves: first those that make numbers infinite that are finite in float32,
in the order of the graph, then by local error. For each, what is kept grows until an output gets better: the node (or
what gives it 16-bit values); all that leads there from the products behind it, these included; its layer.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from amp_tf.comparing.running import Looked
from amp_tf.comparing.verdicts import Output, has_truth, roundoff
from amp_tf.precision import Precision
from amp_tf.rewriting.fused_names import PRODUCTS, Followers, pattern

OVERFLOW = "overflow"
UNDERFLOW = "underflow"
CANCELLATION = "cancellation"
ROUNDING = "rounding"

KEEP_VAR = "AMP_TF_KEEP_FLOAT32"
_SUSPECTS = 8  # each costs a rewrite and a run of the batches, or a few
_SUSPICIOUS = 4.0  # times the roundoff; a product of a healthy model adds about one
_UNDERFLOWN = 0.1  # of the numbers
_GRADIENT_SCOPES = ("gradient_tape/", "gradients/")

Patterns = tuple[str, ...]
Harm = tuple[float, float, float]
NO_HARM: Harm = (0, 0, 0)
Rank = tuple[bool, Harm]  # whether more than the node had to be kept in float32, and the harm that is left then
Trial = Callable[[Patterns], Sequence[Output]]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One place where the model goes wrong in 16 bit.

    Attributes:
        node, op: where.
        layer: the name scope in which it lies; of a gradient the scope of the layer.
        kind: ``"overflow"``, ``"underflow"``, ``"cancellation"`` (one rounding of its inputs, which is large beside
            its result) or ``"rounding"``.
        local_error: relative L2 error that it adds on exact inputs.
        accumulated_error: that of its result in the run.
        nonfinite: share of its result that is inf or nan on exact inputs, and finite in float32.
        underflow: share that is zero on exact inputs, and not in float32.
        largest, largest_input: the largest size of a number of its result, and of its inputs, in float32.
        patterns: for ``AmpConfig.keep_float32``: what was kept in float32 to try it.
        ratio: the worst ratio of an output then.
        mends: whether all outputs are good then.
        forced_by: the pattern of ``AmpConfig.force_f16`` that made it 16 bit; empty if none did.
    """

    node: str
    op: str
    layer: str
    kind: str
    local_error: float
    accumulated_error: float
    nonfinite: float
    underflow: float
    largest: float
    largest_input: float
    patterns: Patterns
    ratio: float
    mends: bool
    forced_by: str = ""

    @property
    def line(self) -> str:
        """The environment variable to set."""
        return keep_line(self.patterns)


def keep_line(patterns: Patterns) -> str:
    """The environment variable that keeps nodes in float32."""
    return f"{KEEP_VAR}={shlex.quote(','.join(patterns))}" if patterns else ""


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        findings: what helps to keep in float32, the most helpful first; where nothing helps, the first suspect.
        patterns: those that make the outputs better together.
        mends: whether all outputs are good with them.
        is_cut: whether the user interrupted the search: findings are those so far, and patterns the best one's.
    """

    findings: tuple[Finding, ...] = ()
    patterns: Patterns = ()
    mends: bool = False
    is_cut: bool = False


def find(
    nodes: Sequence[Looked],
    outputs: Sequence[Output],
    precision: Precision,
    forced: Patterns,
    followers: Followers,
    trial: Trial,
) -> Diagnosis:
    """Tries the suspects one by one, then together, the most helpful first.

    Args:
        nodes: what was measured, sources before their readers.
        outputs: the verdicts, of which one is bad at least.
        precision: the 16-bit type.
        forced: ``AmpConfig.force_f16``.
        followers: what may be fused with each product.
        trial: gives the verdicts with further patterns in ``keep_float32``.
    """
    trial = functools.cache(trial)
    known = {looked.probe.name: looked for looked in nodes}
    found: list[tuple[Rank, Finding]] = []
    try:
        for looked in _suspects(nodes, precision):
            choices = list(dict.fromkeys(_choices(looked, known, followers)))
            patterns = _mend(choices, harm(outputs), trial)
            after = trial(patterns)
            rank = patterns != choices[0], harm(after)
            found.append((rank, _finding(looked, precision, patterns, after, forced)))
            if found[-1][1].mends:
                break  # those behind add less by themselves
        return _together(_ranked(found, precision), harm(outputs), trial)
    except KeyboardInterrupt:
        helpful = _ranked([row for row in found if row[0][1] < harm(outputs)], precision)
        mends = bool(helpful) and helpful[0].mends
        return Diagnosis(tuple(helpful or _ranked(found, precision)[:1]), _patterns(helpful[:1]), mends, is_cut=True)


def _ranked(found: Sequence[tuple[Rank, Finding]], precision: Precision) -> list[Finding]:
    """The most helpful first; behind are those that may help only by what is kept in float32 with them.

    These are nodes that add no more by themselves than others do, and nodes that alone do not help.
    """
    usual = _SUSPICIOUS * roundoff(precision)
    return [finding for _, finding in sorted(found, key=lambda row: (row[1].local_error <= usual, row[0]))]


def _together(ranked: Sequence[Finding], before: Harm, trial: Trial) -> Diagnosis:
    """What the findings do together."""
    helpful = _adding(ranked, before, trial)
    if harm(trial(_patterns(helpful))) != NO_HARM:
        helpful = _leaving_out(ranked, helpful, trial)
    mends = harm(trial(_patterns(helpful))) == NO_HARM
    return Diagnosis(tuple(helpful or ranked[:1]), _patterns(helpful), mends)


def _adding(ranked: Sequence[Finding], before: Harm, trial: Trial) -> list[Finding]:
    """The findings of which each makes the outputs better still."""
    helpful: list[Finding] = []
    for finding in ranked:
        harmed = harm(trial(_patterns([*helpful, finding])))
        if harmed < before:
            before, helpful = harmed, [*helpful, finding]
        if before == NO_HARM:
            break
    return helpful


def _leaving_out(ranked: Sequence[Finding], helpful: list[Finding], trial: Trial) -> list[Finding]:
    """The findings without which the outputs are worse than with all: where one overflows, so do those behind it."""
    goal = harm(trial(_patterns(ranked)))
    if goal >= harm(trial(_patterns(helpful))):
        return helpful
    needed = list(ranked)
    for finding in reversed(ranked):
        rest = [other for other in needed if other is not finding]
        if harm(trial(_patterns(rest))) <= goal:
            needed = rest
    return needed


def _patterns(findings: Sequence[Finding]) -> Patterns:
    return tuple(dict.fromkeys(pattern for finding in findings for pattern in finding.patterns))


def harm(outputs: Sequence[Output]) -> Harm:
    """How bad outputs are, to be compared: how many are not finite, how many are bad, and the sum of their ratios."""
    bad = [output for output in outputs if not output.is_good]
    infinite = sum(output.error == float("inf") for output in bad)
    return infinite, len(bad), sum(min(output.ratio, 1e9) for output in bad)


def _suspects(nodes: Sequence[Looked], precision: Precision) -> list[Looked]:
    local = [looked for looked in nodes if looked.local is not None and has_truth(looked.local, precision)]
    order = sorted(local, key=lambda looked: -looked.local.distance if looked.local else 0.0)  # ties: of the graph
    chosen: dict[Patterns, Looked] = {}
    for looked in order:
        chosen.setdefault(_own(looked), looked)
    return list(chosen.values())[:_SUSPECTS]


def _own(looked: Looked) -> Patterns:
    """What to keep in float32 so that nothing is lost at a node: itself, or what gives it 16-bit values."""
    return (looked.probe.name,) if looked.probe.is_f16 else looked.probe.rounded


def _mend(choices: Sequence[Patterns], before: Harm, trial: Trial) -> Patterns:
    """The smallest set of patterns that makes outputs better; the first set where none does."""
    return next((patterns for patterns in choices if harm(trial(patterns)) < before), choices[0])


def _choices(looked: Looked, known: dict[str, Looked], followers: Followers) -> Iterator[Patterns]:
    own = _own(looked)
    yield tuple(pattern(name, followers) for name in own)
    chain, waiting = dict.fromkeys(own), list(own)
    while waiting:
        name = waiting.pop()
        sources = known[name].probe.rounded if name in known and not _is_product(known[name]) else ()
        waiting += [source for source in sources if source not in chain]
        chain.update(dict.fromkeys(sources))
    yield tuple(pattern(name, followers) for name in chain)
    if scope := layer_of(looked.probe.name):
        yield (f"(^|/){re.escape(scope)}/",)


def _is_product(looked: Looked) -> bool:
    return looked.probe.op in PRODUCTS


def _finding(
    looked: Looked, precision: Precision, patterns: Patterns, after: Sequence[Output], forced: Patterns
) -> Finding:
    local, name = looked.local, looked.probe.name
    assert local is not None
    return Finding(
        node=name,
        op=looked.probe.op,
        layer=layer_of(name),
        kind=_kind(looked, precision),
        local_error=local.distance,
        accumulated_error=looked.accumulated.distance,
        nonfinite=local.nonfinite,
        underflow=local.underflow,
        largest=local.largest,
        largest_input=looked.largest_input,
        patterns=patterns,
        ratio=max((output.ratio for output in after), default=0.0),
        mends=all(output.is_good for output in after),
        forced_by=next((pattern for pattern in forced if re.search(pattern, name)), ""),
    )


def _kind(looked: Looked, precision: Precision) -> str:
    local = looked.local
    assert local is not None
    if local.nonfinite:
        return OVERFLOW
    if local.underflow > _UNDERFLOWN:
        return UNDERFLOW
    one_rounding = roundoff(precision) * looked.largest_input
    is_large = local.error > _SUSPICIOUS * roundoff(precision)
    return CANCELLATION if is_large and local.error * local.largest <= _SUSPICIOUS * one_rounding else ROUNDING


def layer_of(node: str) -> str:
    """The name scope of a node; of a gradient's node that of what it is the gradient of."""
    for scope in _GRADIENT_SCOPES:
        inner = node.partition(scope)[2]
        if inner:
            return inner.rpartition("/")[0].rpartition("/")[0] or inner.rpartition("/")[0]
    return node.rpartition("/")[0]
