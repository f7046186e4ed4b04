"""Finds tensors that would leave float16's range, in a run in float32 alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.graph.names import path_of
from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision
from amp_tf.tools import Progress, silent
from amp_tf.tools.comparing import verdicts
from amp_tf.tools.comparing.comparison import batches_text, without_infinities
from amp_tf.tools.comparing.findings import scope_of
from amp_tf.tools.comparing.flattening import OWN_SCOPE
from amp_tf.tools.comparing.joining import FLOAT32, JointGraph, tensor_name
from amp_tf.tools.comparing.nodes import nodes_run_once
from amp_tf.tools.comparing.steps import check_settings, flat_step, name_of
from amp_tf.tools.comparing.work import reference_conditions

_SCALE = 2.0**15  # at which dynamic loss scaling begins
_UNDERFLOWN = 0.1  # of the numbers
_SHOWN = 10
_F16 = Precision.FLOAT16


@dataclasses.dataclass(frozen=True)
class NodeRange:
    """The magnitudes of a node's numbers in float32."""

    name: str  #: the node's
    op: str  #: the node's
    is_f16: bool  #: whether its result would be float16: amp_tf would convert it, or what reads it
    over: float  #: share of its numbers that are above 65,504, inf or nan
    under: float  #: share of its numbers that are not zero, and would be in float16: below 2^-25
    largest: float  #: the largest finite size
    smallest: float  #: the smallest size that is not zero

    @property
    def leaves(self) -> bool:
        """Whether it leaves float16's range: at the top with any number, at the bottom with a tenth of them."""
        return self.over > 0 or self.under > _UNDERFLOWN

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
        over = f"{100 * self.over:.3g}% of it above 65,504, up to {self.largest:.3g} ({times:.3g} times)"
        under = f"{100 * self.under:.3g}% of it so small that it becomes zero, down to {self.smallest:.1g}"
        parts = [*([over] if self.over else []), *([under] if self.under > _UNDERFLOWN else [])]
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

    @property
    def is_healthy(self) -> bool:
        """Whether nothing that amp_tf would convert leaves the range."""
        return not any(node.is_f16 for node in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """The ranges as plain data, in the form of ``ranges-1.schema.json``."""
        head = {"schema": "amp_tf.ranges", "schema_version": 1, "is_healthy": self.is_healthy}
        plain: dict[str, Any] = without_infinities({**head, **dataclasses.asdict(self)})
        return plain

    def __str__(self) -> str:
        """One screen: how many leave the range, and how far."""
        bad = [node for node in self.nodes if node.is_f16]
        outside = f"{len(bad)} of {self.seen} tensors would leave float16's range"
        verdict = outside if bad else "float16 reaches far enough"
        lines = [f"{self.name}: {verdict} (float32 alone; {batches_text(self.batches, self.loss_scale)})"]
        lines += [f"  {node}" for node in bad[:_SHOWN]]
        if len(bad) > _SHOWN:
            lines.append(f"  and {len(bad) - _SHOWN} more")
        if kept := len(self.nodes) - len(bad):
            lines.append(f"{kept} more leave{'s' * (kept == 1)} it, which amp_tf keeps in float32.")
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    for_command = __str__  #: the text for who typed a command


@reference_conditions()
def find_ranges(
    model_or_function: Any,
    batches: Iterable[Any],
    config: AmpConfig | None = None,
    *,
    steps: int = 8,
    hardware: Hardware | None = None,
    progress: Progress = silent,
    notes: Sequence[str] = (),
) -> Ranges:
    """Finds the tensors that would leave float16's range, and how far, by the arguments of :func:`amp_tf.compare`.

    The step runs in float32 only. The loss of a compiled model is multiplied by 2^15, where dynamic loss scaling
    begins.
    """
    config = dataclasses.replace(check_settings(config, steps), precision="float16")
    try:
        progress("tracing the step")
        flat = flat_step(model_or_function, batches, steps)
        report = flat.rewritten(config, hardware).report
        converted = {node.name for node in report.nodes if node.precision.is_f16}
        scale = _SCALE if flat.step.is_scaled else 1.0
        progress("building the graph")
        joint = JointGraph(flat, {FLOAT32: flat.graph})
        names = []
        for name in nodes_run_once(flat.graph):
            if not name.startswith(f"{OWN_SCOPE}/") and name not in flat.variables:
                operation = joint.graph.get_operation_by_name(tensor_name(FLOAT32, name, flat).removesuffix(":0"))
                results = [] if operation.type == "Const" else [tensor.dtype.name for tensor in operation.outputs]
                names += [name] if results[:1] == ["float32"] else []
        measure = verdicts.rows_in(joint.graph, verdicts.range_row, _F16.smallest)
        rows = [measure([tensor], tensor) for tensor in (joint.tensor(FLOAT32, name) for name in names)]
        found = []
        for number in range(len(flat.step.batches)):
            progress(f"float32: batch {number + 1} of {len(flat.step.batches)}")
            found.append(np.concatenate(joint.fetch(rows, number, scale)))
        joint.close()
    finally:
        progress("")
    nodes = {node.name: node for node in flat.graph.node}
    inputs = (text for name in converted if name in nodes for text in nodes[name].input if not text.startswith("^"))
    in_float16 = {*converted, *(text.partition(":")[0] for text in inputs)}
    ranges = []
    for name, table in zip(names, np.stack(found, axis=1).astype(np.float64), strict=True):  # (nodes, batches, columns)
        size, over, under, largest, smallest = table.T
        count = max(float(size.sum()), 1.0)
        shares = float(over.sum()) / count, float(under.sum()) / count
        extremes = float(largest.max()), float(smallest.min())
        ranges.append(NodeRange(name, nodes[name].op, name in in_float16, *shares, *extremes))
    leaving = sorted((node for node in ranges if node.leaves), key=lambda node: (not node.is_f16, -node.distance))
    return Ranges(name_of(model_or_function), len(found), scale, tuple(leaving), len(names), tuple(notes))
