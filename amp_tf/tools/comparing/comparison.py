"""The result of a comparison, or of a search for what leaves float16's range: data, and a text of
one screen.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from amp_tf.graph.names import path_of
from amp_tf.precision import Precision
from amp_tf.reporting.text import plural
from amp_tf.tools import keeping, some
from amp_tf.tools.comparing.findings import (
    CANCELLATION,
    OVERFLOW,
    UNDERFLOW,
    UNDERFLOWN,
    Finding,
    keep_call,
    keep_line,
    scope_of,
    worth_alone,
)
from amp_tf.tools.comparing.nodes import NodeMeasurement
from amp_tf.tools.comparing.verdicts import (
    Output,
    Patterns,
    figure,
    has_truth,
    limit,
    roundoff,
    title,
    why_limit,
)

SCHEMA_VERSION = 1
_SHOWN = 5
_RANGES_SHOWN = 10
_F16 = Precision.FLOAT16


@dataclasses.dataclass(frozen=True)
class NodeError:
    """The error of one node."""

    name: str  #: the node's
    op: str  #: the node's
    is_f16: bool  #: whether its result is 16 bit
    #: relative L2 error of its result in the run; infinite where it is not finite and float32 is
    accumulated: float
    #: that of its op in 16 bit on exact inputs; ``None`` where the op reads no 16 bit and is not 16
    #: bit, or cannot be run a second time
    local: float | None
    #: whether float32 itself keeps two digits of its result; what cancels to nothing is all
    #: rounding
    has_truth: bool
    underflow: (
        float  #: share of its result in the run that is zero, and in float32 too small for 16 bit
    )
    largest: float  #: the largest size of a number of its result in float32
    smallest: float  #: the smallest one that is not zero

    @classmethod
    def of(cls, measured: NodeMeasurement, precision: Precision) -> NodeError:
        """The error of a node that was measured."""
        run, local = measured.accumulated, measured.local
        return cls(
            *(measured.name, measured.op, measured.is_f16),
            accumulated=run.distance,
            local=None if local is None else local.distance,
            has_truth=has_truth(run, precision) and (local is None or has_truth(local, precision)),
            underflow=run.underflow,
            largest=run.largest,
            smallest=run.smallest,
        )


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of a comparison: where a model goes wrong in 16 bit, or that it does not."""

    name: str  #: of the model or function
    precision: Precision  #: the 16-bit type
    batches: int  #: how many were run
    loss_scale: float  #: by which the loss was multiplied
    converted: int  #: nodes in 16 bit
    total: int  #: nodes, in 16 bit or not
    outputs: tuple[Output, ...]  #: the verdict on each output of the step
    nodes: tuple[NodeError, ...]  #: the nodes that were measured, sources before their readers
    #: where it goes wrong, ranked by the effect on the outputs; empty if the model is healthy
    findings: tuple[Finding, ...] = ()
    #: the first node whose result is further off than its inputs' roundings can explain; ``None``
    #: where the model is healthy
    first_divergence: NodeError | None = None
    #: for ``AmpConfig.keep_float32``: with these all outputs are good on all batches, which was
    #: tried; none where nothing does that
    patterns: Patterns = ()
    mends: bool = False  #: whether there are such patterns
    trials: int = 0  #: how often the step was run with patterns to find them
    products: int = (
        0  #: matrix products and convolutions in 16 bit, which is where the speed comes from
    )
    products_kept: int = 0  #: how many of them would stay in float32 with the patterns
    is_cut: bool = (
        False  #: whether the user interrupted it: not all batches, nodes or remedies were tried
    )
    notes: tuple[str, ...] = ()  #: further notes
    headline: str = (
        ""  #: what to do before anything else, such as to scale the loss; empty for nothing
    )

    @property
    def is_healthy(self) -> bool:
        """Whether every output is as accurate as 16 bit can be."""
        return all(output.is_good for output in self.outputs)

    @property
    def worst(self) -> NodeError | None:
        """The node with the largest local error; ``None`` where none was measured."""
        known = [node for node in self.nodes if node.local is not None and node.has_truth]
        return max(known, key=lambda node: node.local or 0.0, default=None)

    @property
    def line(self) -> str:
        """The environment variable to set; empty where there is nothing to set, or where nothing
        fixes all outputs.
        """
        return keep_line(self.patterns)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data, in the form of ``comparison-1.schema.json``."""
        found = {
            "schema": "amp_tf.comparison",
            "schema_version": SCHEMA_VERSION,
            "is_healthy": self.is_healthy,
            **dataclasses.asdict(self),
            "precision": self.precision.value,
            "line": self.line,
            "worth": self.worth,
            "findings": [
                {
                    **dataclasses.asdict(finding),
                    "line": finding.line,
                    "why": why(finding, self.precision),
                    "worth": worth_alone(finding),
                }
                for finding in self.findings
            ],
        }
        return dict(without_infinities(found))

    def to_json(self) -> str:
        """The comparison as JSON; infinity becomes the text ``"inf"``, because JSON has no such
        number.
        """
        return json.dumps(self.to_dict(), indent=1)

    def write(self, path: str | Path) -> None:
        """Writes the patterns to a file, with comments on what was compared; see :attr:`mends`.

        Raises:
            FileError: it cannot be written.
        """
        write_patterns(path, self.to_dict())

    def _repr_html_(self) -> str:
        from amp_tf.reporting import files

        found = {**self.to_dict(), "text": str(self), "line": keep_call(self.patterns)}
        for row, finding in zip(found["findings"], self.findings, strict=True):
            row["line"] = keep_call(finding.patterns)
        return files.fragment(found)

    def for_command(self) -> str:
        """What ``str`` gives, with variables to set instead of lines of Python: for who typed a
        command.
        """
        return self._text(keep_line)

    def __str__(self) -> str:
        return self._text(keep_call)

    def _text(self, written: Callable[[Patterns], str]) -> str:
        batches = batches_text(self.batches, self.loss_scale)
        bad = sum(not output.is_good for output in self.outputs)
        verdict = f"{bad} of {len(self.outputs)} outputs go wrong" if bad else "healthy"
        of = f"{self.converted} of {self.total} nodes in 16 bit"
        head = f"{self.name}: {verdict} in {self.precision.value} ({of}; {batches})"
        lines = [self.headline] if self.headline else []
        lines += [head, *(self._ill(written) if bad else self._healthy())]
        if self.is_cut:
            lines.append("Note: it was interrupted: not all batches, nodes or remedies were tried")
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def _healthy(self) -> list[str]:
        judged = [output for output in self.outputs if math.isfinite(limit(output, self.precision))]
        lines = []
        if judged:
            nearest = max(judged, key=lambda output: (output.ratio, output.error))
            most = figure(limit(nearest, self.precision))
            lines.append(
                f"The output closest to its limit is the {title(nearest.kind, nearest.name)}: its "
                "error is "
                f"{figure(nearest.error)}, and {most} would still be healthy "
                f"({why_limit(nearest, self.precision)})."
            )
        if blind := len(self.outputs) - len(judged):
            lines.append(
                f"{plural(blind, 'output')} could only be checked for inf and nan: float32 itself "
                "does not get two "
                "digits of them right."
            )
        if worst := self.worst:
            unit = figure(roundoff(self.precision))
            lines.append(
                f"The node with the largest error of its own is {worst.name} ({worst.op}): "
                f"{figure(worst.local or 0.0)}, where one rounding is at most {unit}."
            )
        return lines

    def _ill(self, written: Callable[[Patterns], str]) -> list[str]:
        bad = sorted(
            (output for output in self.outputs if not output.is_good),
            key=lambda output: -output.ratio,
        )
        lines = ["", f"{'error':>9} {'products':>9} {'noise':>9} {'ratio':>7}  output"]
        for output in bad[:_SHOWN]:
            error, ideal, noise = map(figure, (output.error, output.ideal, output.noise))
            name = title(output.kind, output.name)
            lines.append(f"{error:>9} {ideal:>9} {noise:>9} {output.ratio:7.3g}  {name}")
        if len(bad) > _SHOWN:
            lines.append(f"{'':39}and {len(bad) - _SHOWN} more")
        if first := self.first_divergence:
            lines += [
                "",
                f"First divergence: {first.name} ({first.op}), error {figure(first.accumulated)}",
            ]
        for number, finding in enumerate(self.findings[:_SHOWN], 1):
            layer = f", layer {finding.layer}" if finding.layer else ""
            forced = (
                f"; it is 16 bit because {finding.forced_by!r} of force_f16 matches"
                if finding.forced_by
                else ""
            )
            alone, in_run = figure(finding.local_error), figure(finding.accumulated_error)
            lines += [
                "",
                f"{number}. {finding.kind}: {finding.node} ({finding.op}{layer})",
                f"   {why(finding, self.precision)}",
                f"   its own error is {alone}; with the errors of its inputs it is "
                f"{in_run}{forced}",
                f"   {written(finding.patterns)}: {worth_alone(finding)}",
            ]
        if self.line:
            return [*lines, "", f"What to write ({self.worth}):", f"  {written(self.patterns)}"]
        if self.is_cut:
            return [*lines, "", "What would fix it was not found."]
        name = self.precision.value
        return [
            *lines,
            "",
            f"No setting fixes it: some outputs stay wrong even with every {name} node in float32.",
        ]

    @property
    def worth(self) -> str:
        """What the line does and what it costs, as text; empty where there is no line."""
        if not self.line:
            return ""
        price = f"{self.products_kept} of {self.products} products in float32"
        all_kept = ", so that 16 bit gains nothing" if self.products_kept == self.products else ""
        return f"fixes all outputs; {price}{all_kept}"


def write_patterns(path: str | Path, found: Mapping[str, Any]) -> None:
    """Writes the patterns of a comparison, given as plain data, to a file; a FileError where it
    cannot.
    """
    verdict = (
        "healthy, so nothing has to stay in float32" if found["is_healthy"] else found["worth"]
    )
    batches = batches_text(found["batches"], found["loss_scale"])
    measured = [f"amp-tf compare: {found['name']} in {found['precision']}; {batches}", verdict]
    patterns = found["patterns"]
    keeping.write(path, patterns, measured, keeping.explained(patterns, found["findings"]))


def batches_text(count: int, loss_scale: float) -> str:
    """Such as ``3 batches, loss scale 2^15``."""
    scale = f", loss scale 2^{round(math.log2(loss_scale))}" if loss_scale != 1 else ""
    return f"{count} batch{'es' * (count > 1)}{scale}"


def why(finding: Finding, precision: Precision) -> str:
    """What goes wrong at the node of a finding, as text."""
    if finding.kind == OVERFLOW:
        largest = max(finding.largest, finding.largest_input)
        return (
            f"{100 * finding.nonfinite:.3g}% of its result is inf or nan; its numbers reach "
            f"{largest:.3g}, "
            f"{precision.value} ends at {precision.max_finite:.5g}"
        )
    if finding.kind == UNDERFLOW:
        return (
            f"{finding.underflow:.0%} of its result becomes zero; its numbers reach "
            f"{finding.largest:.1g}, "
            f"{precision.value} begins at {precision.smallest:.1g}. Where it is a gradient, scale "
            "the loss (LossScaler)"
        )
    by = f" ({some(finding.rounded, 2)})" if finding.rounded else ""
    inputs = f"its inputs, up to {finding.largest_input:.3g}, are rounded{by}"
    if finding.kind == CANCELLATION:
        return f"{inputs}, and they cancel: its result is at most {finding.largest:.3g}"
    if finding.rounded:
        return f"{inputs}, and its result is up to {finding.largest:.3g}"
    return f"its result, up to {finding.largest:.3g}, is rounded"


def without_infinities(value: Any) -> Any:
    """Plain data in which numbers that JSON lacks are replaced by text."""
    if isinstance(value, dict):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_infinities(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclasses.dataclass(frozen=True)
class NodeRange:
    """The magnitudes of a node's numbers in float32."""

    name: str  #: the node's
    op: str  #: the node's
    is_f16: bool  #: whether its result would be float16: amp_tf would convert it, or what reads it
    over: (
        float  #: share of its numbers that are above 65,504, and so infinite in float16, inf or nan
    )
    under: float  #: share of its numbers that are not zero, and would be in float16: below 2^-25
    largest: float  #: the largest finite size
    smallest: float  #: the smallest size that is not zero

    @property
    def leaves(self) -> bool:
        """Whether it leaves float16's range: at the top with any number, at the bottom with a tenth
        of them.
        """
        return self.over > 0 or self.under > UNDERFLOWN

    @property
    def distance(self) -> float:
        """The factor by which it leaves the range."""
        above = self.largest / _F16.max_finite if self.over else 0.0
        return max(above, _F16.smallest / self.smallest if self.under else 0.0)

    def __str__(self) -> str:
        """Where it is, and how much of it leaves the range."""
        path = path_of(self.name) or scope_of(self.name)
        layer = f", layer {path}" if path else ""
        times = self.largest / _F16.max_finite
        over = (
            f"{100 * self.over:.3g}% of it above 65,504, up to {self.largest:.3g} ({times:.3g} "
            "times)"
        )
        under = (
            f"{100 * self.under:.3g}% of it so small that it becomes zero, down to "
            f"{self.smallest:.1g}"
        )
        parts = [*([over] if self.over else []), *([under] if self.under > UNDERFLOWN else [])]
        return f"{self.name} ({self.op}{layer}): {'; '.join(parts)}"


@dataclasses.dataclass(frozen=True)
class Ranges:
    """The tensors that would leave float16's range."""

    name: str  #: of the model or function
    batches: int  #: how many were run
    loss_scale: float  #: by which the loss was multiplied
    #: those that leave it, the furthest first; those that amp_tf would keep in float32 last
    nodes: tuple[NodeRange, ...]
    seen: int  #: how many nodes were measured
    notes: tuple[str, ...] = ()  #: further notes
    headline: str = (
        ""  #: what to do before anything else, such as to scale the loss; empty for nothing
    )

    @property
    def is_healthy(self) -> bool:
        """Whether nothing that amp_tf would convert leaves the range."""
        return not any(node.is_f16 for node in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """The ranges as plain data, in the form of ``ranges-1.schema.json``."""
        head = {"schema": "amp_tf.ranges", "schema_version": 1, "is_healthy": self.is_healthy}
        return dict(without_infinities({**head, **dataclasses.asdict(self)}))

    def __str__(self) -> str:
        bad = [node for node in self.nodes if node.is_f16]
        outside = f"{len(bad)} of {self.seen} tensors would leave float16's range"
        verdict = outside if bad else "float16 reaches far enough"
        lines = [self.headline] if self.headline else []
        lines.append(
            f"{self.name}: {verdict} (float32 alone; {batches_text(self.batches, self.loss_scale)})"
        )
        lines += [f"  {node}" for node in bad[:_RANGES_SHOWN]]
        if len(bad) > _RANGES_SHOWN:
            lines.append(f"  and {len(bad) - _RANGES_SHOWN} more")
        if kept := len(self.nodes) - len(bad):
            lines.append(
                f"{plural(kept, 'more tensor')} would leave it, but amp_tf computes with them in "
                "float32."
            )
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    for_command = __str__  #: the text for who typed a command
