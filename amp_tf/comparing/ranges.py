"""Finds tensors that would leave float16's range, in a run in float32 alone."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from amp_tf.comparing import instruments
from amp_tf.comparing.comparison import without_infinities
from amp_tf.comparing.flattening import FlatStep
from amp_tf.comparing.joining import FLOAT32, feed_name
from amp_tf.comparing.progress import Progress, silent
from amp_tf.comparing.regions import nodes_run_once
from amp_tf.comparing.running import exact_products
from amp_tf.comparing.step_graphs import JointGraph
from amp_tf.comparing.steps import OWN_SCOPE, Step, check_settings, name_of
from amp_tf.comparing.subjects import flat_step
from amp_tf.comparing.suspects import scope_of
from amp_tf.config import AmpConfig
from amp_tf.graph.names import path_of
from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision

_SCALE = 2.0**15  # at which dynamic loss scaling begins
_UNDERFLOWN = 0.1  # of the numbers
_SHOWN = 10
_F16 = Precision.FLOAT16


@dataclasses.dataclass(frozen=True)
class NodeRange:
    """The magnitudes of a node's numbers in float32.

    Attributes:
        name, op: the node.
        is_f16: whether its result would be float16: amp_tf would convert it, or what reads it.
        over: share of its numbers that are above 65,504, inf or nan.
        under: share of its numbers that are not zero, and would be in float16: below 2^-25.
        largest: the largest finite size.
        smallest: the smallest size that is not zero.
    """

    name: str
    op: str
    is_f16: bool
    over: float
    under: float
    largest: float
    smallest: float

    @property
    def leaves(self) -> bool:
        """Whether it leaves float16's range: at the top with any number, at the bottom with a tenth of them."""
        return self.over > 0 or self.under > _UNDERFLOWN


@dataclasses.dataclass(frozen=True)
class Ranges:
    """The tensors that would leave float16's range.

    Attributes:
        name: of the model or function.
        batches: how many were run.
        loss_scale: by which the loss was multiplied.
        nodes: those that leave it, the furthest first; those that amp_tf would keep in float32 last.
        seen: how many nodes were measured.
        notes: further notes.
    """

    name: str
    batches: int
    loss_scale: float
    nodes: tuple[NodeRange, ...]
    seen: int
    notes: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether nothing that amp_tf would convert leaves the range."""
        return not any(node.is_f16 for node in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """The ranges as plain data, in the form of ``ranges-1.schema.json``."""
        head = {"schema": "amp_tf.ranges", "schema_version": 1, "is_healthy": self.is_healthy}
        plain: dict[str, Any] = without_infinities({**head, **dataclasses.asdict(self)})
        return plain

    def to_json(self) -> str:
        """The ranges as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def for_command(self) -> str:
        """The text for who typed a command, which is the same."""
        return str(self)

    def __str__(self) -> str:
        """One screen: how many leave the range, and how far."""
        bad = [node for node in self.nodes if node.is_f16]
        scale = f", loss scale 2^{round(math.log2(self.loss_scale))}" if self.loss_scale != 1 else ""
        outside = f"{len(bad)} of {self.seen} tensors would leave float16's range"
        batches = f"{self.batches} batch{'es' * (self.batches > 1)}"
        verdict = outside if bad else "float16 reaches far enough"
        lines = [f"{self.name}: {verdict} (float32 alone; {batches}{scale})"]
        lines += [f"  {_told(node)}" for node in bad[:_SHOWN]]
        if len(bad) > _SHOWN:
            lines.append(f"  and {len(bad) - _SHOWN} more")
        if kept := len(self.nodes) - len(bad):
            lines.append(f"{kept} more leave{'s' * (kept == 1)} it, which amp_tf keeps in float32.")
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])


@exact_products()
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
    """Finds the tensors that would leave float16's range, and how far.

    The step runs in float32 only. The loss of a compiled model is multiplied by 2^15, where dynamic loss scaling
    begins.

    Args:
        model_or_function, batches, config, steps, hardware, progress, notes: as for :func:`amp_tf.compare`.

    Raises:
        ConfigError, GraphError: as there.
    """
    config = dataclasses.replace(check_settings(config, steps), precision="float16")
    try:
        progress("tracing the step")
        step, flat = flat_step(model_or_function, batches, steps)
        report = flat.rewritten(config, hardware).report
        is_f16 = _in_float16(flat, {node.name for node in report.nodes if node.precision.is_f16})
        scale = _SCALE if step.is_scaled else 1.0
        names, found = _measure(step, flat, scale, progress)
    finally:
        progress("")
    ops = {node.name: node.op for node in flat.graph.node}
    tables = np.stack(found, axis=1).astype(np.float64)  # (nodes, batches, columns)
    ranges = [_range(name, ops[name], name in is_f16, table) for name, table in zip(names, tables, strict=True)]
    leaving = sorted((node for node in ranges if node.leaves), key=lambda node: (not node.is_f16, -_distance(node)))
    return Ranges(name_of(model_or_function), len(found), scale, tuple(leaving), len(names), tuple(notes))


def _measure(step: Step, flat: FlatStep, scale: float, progress: Progress) -> tuple[list[str], list[np.ndarray]]:
    """The names of the nodes, and for each batch a row of figures for each node."""
    progress("building the graph")
    joint = JointGraph(step, flat, {FLOAT32: flat.graph})
    names = _watched(flat, joint.graph)
    calls = instruments.Calls(joint.graph, instruments.range_row, _F16.smallest)
    tensors = [joint.tensor(FLOAT32, name) for name in names]
    rows = [calls.measure([tensor], tensor) for tensor in tensors]
    found = []
    for number in range(len(step.batches)):
        progress(f"float32: batch {number + 1} of {len(step.batches)}")
        found.append(np.concatenate(joint.fetch(rows, number, scale)))
    joint.close()
    return names, found


def _watched(flat: FlatStep, graph: Any) -> list[str]:
    """The nodes outside of loops that compute float32, sources before readers."""
    found = []
    for name in nodes_run_once(flat.graph):
        if name.startswith(f"{OWN_SCOPE}/") or name in flat.variables:
            continue
        operation = graph.get_operation_by_name(feed_name(FLOAT32, name, flat))
        if operation.type != "Const" and operation.outputs and operation.outputs[0].dtype.name == "float32":
            found.append(name)
    return found


def _in_float16(flat: FlatStep, converted: set[str]) -> set[str]:
    """The nodes whose results would be float16: those converted, and the sources of their inputs."""
    texts = (text for node in flat.graph.node if node.name in converted for text in node.input)
    return {*converted, *(text.partition(":")[0] for text in texts if not text.startswith("^"))}


def _range(name: str, op: str, is_f16: bool, table: np.ndarray) -> NodeRange:
    size, over, under, largest, smallest = table.T
    count = max(float(size.sum()), 1.0)
    over_share, under_share = float(over.sum()) / count, float(under.sum()) / count
    return NodeRange(name, op, is_f16, over_share, under_share, float(largest.max()), float(smallest.min()))


def _distance(node: NodeRange) -> float:
    """The factor by which a node leaves the range."""
    return max(
        node.largest / _F16.max_finite if node.over else 0.0, _F16.smallest / node.smallest if node.under else 0.0
    )


def _told(node: NodeRange) -> str:
    path = path_of(node.name) or scope_of(node.name)
    layer = f", layer {path}" if path else ""
    times = node.largest / _F16.max_finite
    over = f"{100 * node.over:.3g}% of it above 65,504, up to {node.largest:.3g} ({times:.3g} times)"
    under = f"{100 * node.under:.3g}% of it so small that it becomes zero, down to {node.smallest:.1g}"
    parts = [*([over] if node.over else []), *([under] if node.under > _UNDERFLOWN else [])]
    return f"{node.name} ({node.op}{layer}): {'; '.join(parts)}"
