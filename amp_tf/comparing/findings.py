"""Ranks what went wrong by its effect on the outputs: each suspect is kept in float32 once, and the step run again.

For each suspect, more and more is kept in float32 until an output gets better. Then a set of patterns is searched that
fixes all outputs together (``remedies``).
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated

from amp_tf.comparing.remedies import Part, find_remedy, patterns_of
from amp_tf.comparing.running import NodeMeasurement
from amp_tf.comparing.suspects import SUSPICIOUS, Patterns, choices, is_suspicious, narrow, scope_of, suspects
from amp_tf.comparing.trials import Trials
from amp_tf.comparing.verdicts import Output, roundoff
from amp_tf.graph.names import matches, path_of
from amp_tf.precision import Precision
from amp_tf.rewriting.fused_names import Followers
from amp_tf.values import LAYER

OVERFLOW = "overflow"
UNDERFLOW = "underflow"
CANCELLATION = "cancellation"
ROUNDING = "rounding"

KEEP_VAR = "AMP_TF_KEEP_FLOAT32"
_UNDERFLOWN = 0.1  # of the numbers

Harm = tuple[float, float, float]
Rank = tuple[bool, Harm]  # whether more than the node had to be kept in float32, and the remaining harm


@dataclasses.dataclass(frozen=True)
class Finding:
    """One place where the model goes wrong in 16 bit.

    Attributes:
        node, op: where.
        layer: the path of its layer in Keras where it was recorded, else its name scope; also of a gradient.
        kind: ``"overflow"``, ``"underflow"``, ``"cancellation"`` (one rounding of its inputs, which is large beside
            its result) or ``"rounding"``.
        local_error: relative L2 error that it adds on exact inputs.
        accumulated_error: that of its result in the run.
        nonfinite: share of its result that is inf or nan on exact inputs, and finite in float32.
        underflow: share that is zero on exact inputs, and not in float32.
        largest, largest_input: the largest size of a number of its result, and of its inputs, in float32.
        rounded: the nodes whose 16-bit results it reads.
        patterns: for ``AmpConfig.keep_float32``: what was kept in float32 to try it.
        ratio: the worst ratio of an output then.
        mends: whether all outputs are good then, in the batches that were judged.
        forced_by: the pattern of ``AmpConfig.force_f16`` that made it 16 bit; empty if none did.
    """

    node: str
    op: str
    layer: str
    kind: Annotated[str, (OVERFLOW, UNDERFLOW, CANCELLATION, ROUNDING)]
    local_error: float
    accumulated_error: float
    nonfinite: float
    underflow: float
    largest: float
    largest_input: float
    rounded: tuple[str, ...]
    patterns: Patterns
    ratio: float
    mends: bool
    forced_by: str = ""

    @property
    def line(self) -> str:
        """The environment variable to set."""
        return keep_line(self.patterns)


def worth_alone(finding: Finding) -> str:
    """What a finding's line does without the others, as text."""
    if finding.mends:
        return "alone, it fixes all outputs of the batches that were judged"
    return f"alone, some outputs stay wrong, worst ratio {finding.ratio:.2g}"


def keep_line(patterns: Patterns) -> str:
    """The environment variable that keeps nodes in float32."""
    return f"{KEEP_VAR}={shlex.quote(','.join(patterns))}" if patterns else ""


def keep_call(patterns: Patterns) -> str:
    """The call that does so in Python."""
    return f"amp_tf.enable(keep_float32={list(patterns)!r})" if patterns else ""


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The result of the search for what goes wrong.

    Attributes:
        findings: what the patterns are there for, the most helpful first; where no patterns help, the suspects that
            make outputs better, or the first one.
        patterns: those with which all outputs are good on all batches, as was tried; none where there are none.
        trials: how often the step was run with patterns.
        is_cut: whether the user interrupted the search.
    """

    findings: tuple[Finding, ...] = ()
    patterns: Patterns = ()
    trials: int = 0
    is_cut: bool = False


@dataclasses.dataclass(frozen=True)
class _Tried:
    """A suspect, the patterns that make outputs better or else the smallest set, and the outputs with them."""

    measured: NodeMeasurement
    patterns: Patterns
    least: Patterns
    after: Sequence[Output]

    @property
    def rank(self) -> Rank:
        return self.patterns != self.least, harm(self.after)


def find(
    nodes: Sequence[NodeMeasurement],
    outputs: Sequence[Output],
    precision: Precision,
    forced: Patterns,
    followers: Followers,
    trials: Trials,
) -> SearchResult:
    """Tries the suspects one by one, and searches for patterns that fix all outputs.

    Args:
        nodes: what was measured, sources before their readers.
        outputs: the verdicts, of which one is bad at least.
        precision: the 16-bit type.
        forced: ``AmpConfig.force_f16``.
        followers: what may be fused with each product.
        trials: run the step with further patterns in ``keep_float32``.
    """
    tried: list[_Tried] = []
    parts: Sequence[Part] = ()
    patterns: Patterns = ()
    explained: list[_Tried] = []
    is_cut = False
    try:
        for one in _alone(nodes, outputs, precision, followers, trials):
            tried.append(one)
        remedy = find_remedy(_first_parts(tried, precision), precision, followers, trials)
        parts, is_cut = remedy.parts, remedy.is_cut
        patterns = _as_layers(parts, trials) or patterns_of(parts)
        for part in parts:
            if part.measured is not None:
                least = narrow(part.measured, followers)
                explained.append(_Tried(part.measured, part.patterns, least, trials.outputs(part.patterns)))
    except KeyboardInterrupt:
        is_cut = True
    ranked = _ranked(explained or tried, precision)
    helpful = [one for one in ranked if explained or harm(one.after) < harm(outputs)] or ranked[:1]
    findings = tuple(_finding(one, precision, forced) for one in helpful)
    return SearchResult(findings, patterns, trials.count, is_cut)


def _as_layers(parts: Sequence[Part], trials: Trials) -> Patterns:
    """The layers of the nodes, which are easier to read, where they suffice on all batches as well; else nothing."""
    paths = [path_of(part.measured.probe.name) if part.measured else "" for part in parts]
    layers = tuple(dict.fromkeys(f"{LAYER}{path}" for path in paths))
    is_shorter = all(paths) and 0 < len(layers) < len(patterns_of(parts))
    return layers if is_shorter and trials.holds(layers) else ()


def _alone(
    nodes: Sequence[NodeMeasurement],
    outputs: Sequence[Output],
    precision: Precision,
    followers: Followers,
    trials: Trials,
) -> Iterator[_Tried]:
    """Tries each suspect alone, until one suffices."""
    known = {measured.probe.name: measured for measured in nodes}
    for measured in suspects(nodes, precision, followers):
        sets = list(dict.fromkeys(choices(measured, known, followers)))
        better = (patterns for patterns in sets if harm(trials.outputs(patterns)) < harm(outputs))
        patterns = next(better, sets[0])
        yield _Tried(measured, patterns, sets[0], trials.outputs(patterns))
        if trials.is_right(patterns):
            break  # the remaining ones have smaller local errors


def _first_parts(tried: Sequence[_Tried], precision: Precision) -> list[Part]:
    """Where the search begins: the suspect that suffices alone; else all, each with its smallest set first."""
    if not tried:
        return []
    if all(output.is_good for output in tried[-1].after):
        return [Part(tried[-1].patterns, tried[-1].measured)]
    ranked = _ranked(tried, precision)
    wide = [one for one in ranked if one.patterns != one.least]
    return [*(Part(one.least, one.measured) for one in ranked), *(Part(one.patterns, one.measured) for one in wide)]


def _ranked(tried: Sequence[_Tried], precision: Precision) -> list[_Tried]:
    """The most helpful suspects first; last, those that may help only together with others.

    These are nodes whose local error is not larger than that of others, and nodes that do not help alone.
    """
    return sorted(tried, key=lambda one: (not is_suspicious(one.measured, precision), one.rank))


def harm(outputs: Sequence[Output]) -> Harm:
    """How bad outputs are, as a sort key: the number of nonfinite ones, of bad ones, and the sum of their ratios."""
    bad = [output for output in outputs if not output.is_good]
    infinite = sum(output.error == float("inf") for output in bad)
    return infinite, len(bad), sum(min(output.ratio, 1e9) for output in bad)


def _finding(tried: _Tried, precision: Precision, forced: Patterns) -> Finding:
    measured = tried.measured
    local, name = measured.local, measured.probe.name
    assert local is not None
    return Finding(
        node=name,
        op=measured.probe.op,
        layer=path_of(name) or scope_of(name),
        kind=_kind(measured, precision),
        local_error=local.distance,
        accumulated_error=measured.accumulated.distance,
        nonfinite=local.nonfinite,
        underflow=local.underflow,
        largest=local.largest,
        largest_input=measured.largest_input,
        rounded=measured.probe.rounded,
        patterns=tried.patterns,
        ratio=max((output.ratio for output in tried.after), default=0.0),
        mends=all(output.is_good for output in tried.after),
        forced_by=next((pattern for pattern in forced if matches(pattern, name)), ""),
    )


def _kind(measured: NodeMeasurement, precision: Precision) -> str:
    local = measured.local
    assert local is not None
    if local.nonfinite:
        return OVERFLOW
    if local.underflow > _UNDERFLOWN:
        return UNDERFLOW
    one_rounding = roundoff(precision) * measured.largest_input
    is_large = local.error > SUSPICIOUS * roundoff(precision)
    return CANCELLATION if is_large and local.error * local.largest <= SUSPICIOUS * one_rounding else ROUNDING
