"""The result of a comparison: data, and a text of one screen."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterable

from amp_tf.config import variable_of
from amp_tf.graph.names import matcher
from amp_tf.precision import Precision
from amp_tf.reporting.files import AnyPath, Document, Row
from amp_tf.reporting.text import plural
from amp_tf.tools import keeping, some
from amp_tf.tools.comparing.findings import Finding
from amp_tf.tools.comparing.nodes import NodeError
from amp_tf.tools.comparing.verdicts import LIMIT, Output, are_good, error_text, roundoff
from amp_tf.tools.keeping import Patterns

_SHOWN = 5


@dataclasses.dataclass(frozen=True, repr=False)
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
    #: where it goes wrong, the largest errors first; empty if the model is healthy
    findings: tuple[Finding, ...] = ()
    #: for ``AmpConfig.keep_float32``, those of the settings first: with these all outputs were good
    #: on all batches, but for inherent ones; empty if no such patterns were found
    patterns: Patterns = ()
    products: int = 0  #: matrix products and convolutions in 16 bit, from which the speed comes
    products_kept: int = 0  #: how many of them would stay in float32 with the patterns
    #: titles of outputs that stay wrong because the ideal program is as far off
    inherent: tuple[str, ...] = ()
    is_cut: bool = False  #: whether the user interrupted the search for patterns
    notes: tuple[str, ...] = ()  #: further notes
    #: what to do before anything else, such as to scale the loss; empty for nothing
    headline: str = ""

    @property
    def is_healthy(self) -> bool:
        """Tells whether every output is as accurate as 16 bit can be."""
        return are_good(self.outputs)

    @property
    def has_fix(self) -> bool:
        """Tells whether patterns were found that fix all outputs but inherent ones."""
        return bool(self.patterns) and not self.is_healthy

    @property
    def worst(self) -> NodeError | None:
        """The node with the largest local error; ``None`` where none was measured."""
        measured = [node for node in self.nodes if node.has_truth and node.local is not None]
        return max(measured, key=lambda node: node.local or 0.0, default=None)

    @property
    def line(self) -> str:
        """Returns the line of the environment variable with which all outputs are good.

        It is empty where none is needed, or where nothing fixes all outputs.
        """
        if not self.patterns:
            return ""
        return f"{variable_of('keep_float32')}={shlex.quote(','.join(self.patterns))}"

    @property
    def worth(self) -> str:
        """The use and the price of the line, as text; empty where there is no line."""
        if not self.has_fix:
            return ""
        price = f"{self.products_kept} of {self.products} products in float32"
        if self.products_kept == self.products:
            price += ", so that 16 bit gains nothing"
        fixed = "all outputs"
        if self.inherent:
            fixed = f"all outputs but {len(self.inherent)}"
        return f"fixes {fixed}; {price}"

    def to_plain(self) -> Row:
        """Returns the comparison as plain data, for another process of the same amp_tf."""
        return dataclasses.asdict(self) | {"precision": self.precision.value}

    @classmethod
    def of_plain(cls, plain: Document) -> Comparison:
        """Makes a comparison of what :meth:`to_plain` gave."""
        parts = {**plain, "precision": Precision(plain["precision"])}
        for field, kind in (("outputs", Output), ("nodes", NodeError), ("findings", Finding)):
            parts[field] = tuple(kind(**row) for row in plain[field])
        for field in ("patterns", "inherent", "notes"):
            parts[field] = tuple(plain[field])
        return cls(**parts)

    def write(self, path: AnyPath) -> None:
        """Writes the patterns to a file, with comments on what was compared; see :attr:`has_fix`.

        Raises:
            FileError: it cannot be written.
        """
        verdict = self.worth
        if self.is_healthy:
            verdict = "healthy, so nothing has to stay in float32"
            if self.patterns:
                verdict = "healthy with what is below in float32, as it was compared"
        compared = f"amp-tf compare: {self.name} in {self.precision.value}; {self._setting}"
        keeping.write(path, self.patterns, [compared, verdict], self.why(self.patterns))

    def why(self, patterns: Iterable[str]) -> dict[str, str]:
        """Returns the first finding at a node of each pattern, in words."""
        found = {}
        for pattern in patterns:
            is_for = matcher(pattern)
            for finding in self.findings:
                if is_for(finding.node):
                    found[pattern] = f"{finding.kind} at {finding.node}: {finding.why}"
                    break
        return found

    def __repr__(self) -> str:
        bad = [output for output in self.outputs if not output.is_good]
        verdict = "healthy"
        if bad:
            verdict = f"{len(bad)} of {len(self.outputs)} outputs go wrong"
        counts = f"{self.converted} of {self.total} nodes in 16 bit; {self._setting}"
        lines = []
        if self.headline:
            lines.append(self.headline)
        lines.append(f"{self.name}: {verdict} in {self.precision.value} ({counts})")
        if bad:
            lines += self._table(bad)
            lines += self._places()
            lines += self._advice()
        else:
            lines += self._margins()
        lines += [f"Note: {note}" for note in self.notes]
        return "\n".join(lines)

    @property
    def _setting(self) -> str:
        """Such as ``3 batches, loss scale 2^15``."""
        batches = "1 batch"
        if self.batches > 1:
            batches = f"{self.batches} batches"
        if self.loss_scale == 1:
            return batches
        return f"{batches}, loss scale 2^{round(math.log2(self.loss_scale))}"

    def _margins(self) -> list[str]:
        """Tells how near the outputs of a healthy model are to what would be wrong."""
        lines = []
        if self.patterns:
            lines.append(f"It was compared with {some(self.patterns)} in float32.")
        judged = [output for output in self.outputs if output.has_truth]
        if judged:
            nearest = max(judged, key=lambda output: (output.ratio, output.error))
            lines.append(
                f"The output closest to its limit is the {nearest.title}: its error is "
                f"{error_text(nearest.error)}, a ratio of {nearest.ratio:.2g}; above {LIMIT:g} it "
                "would be wrong."
            )
        if blind := len(self.outputs) - len(judged):
            lines.append(
                f"{plural(blind, 'output')} could only be checked for inf and nan: float32 itself "
                "does not get two digits of them right."
            )
        if worst := self.worst:
            unit = error_text(roundoff(self.precision))
            lines.append(
                f"The node with the largest error of its own is {worst.name} ({worst.op}): "
                f"{error_text(worst.local or 0.0)}, where one rounding is at most {unit}."
            )
        return lines

    def _table(self, bad: list[Output]) -> list[str]:
        """Lists the outputs that go wrong, the worst first."""
        lines = ["", f"{'error':>9} {'products':>9} {'noise':>9} {'ratio':>7}  output"]
        bad = sorted(bad, key=lambda output: -output.ratio)
        for output in bad[:_SHOWN]:
            errors = f"{error_text(output.error):>9} {error_text(output.ideal):>9}"
            noise = f"{error_text(output.noise):>9}"
            lines.append(f"{errors} {noise} {output.ratio:7.3g}  {output.title}")
        if len(bad) > _SHOWN:
            lines.append(f"{'':39}and {len(bad) - _SHOWN} more")
        return lines

    def _places(self) -> list[str]:
        """Lists the places where errors arise."""
        lines = []
        for number, finding in enumerate(self.findings[:_SHOWN], 1):
            op = finding.op
            if finding.layer:
                op += f", layer {finding.layer}"
            alone = error_text(finding.local_error)
            in_run = error_text(finding.accumulated_error)
            lines += [
                "",
                f"{number}. {finding.kind}: {finding.node} ({op})",
                f"   {finding.why}",
                f"   its own error is {alone}; with the errors of its inputs it is {in_run}",
            ]
        if len(self.findings) > _SHOWN:
            lines += ["", f"and {len(self.findings) - _SHOWN} more"]
        return lines

    def _advice(self) -> list[str]:
        """Names the setting to write, unless something else has to be done first."""
        if self.headline:
            return []
        if self.is_cut:
            return ["", "It was interrupted before a setting was found that fixes it."]
        lines = []
        if self.has_fix:
            lines += ["", f"What to write ({self.worth}):", f"  {self.line}"]
        if self.inherent:
            count = plural(len(self.inherent), "output")
            lines += [
                "",
                f"The rounding of products alone puts {count} as far off (the column products), "
                "as happens with random weights or few examples. No setting but float32 products "
                "fixes that. Compare trained weights with larger batches, or judge by a metric: "
                "amp-tf tune",
            ]
        wrong = [output for output in self.outputs if not output.is_good]
        if not self.has_fix and len(wrong) > len(self.inherent):
            name = self.precision.value
            outputs = f"some outputs stay wrong even with every {name} node in float32"
            lines += ["", f"No setting fixes it: {outputs}."]
        return lines
