"""Finds where inf and nan arise that float32 does not have, and where they disappear again.

A minimum, a mask or a division may hide them: outputs then only look right, or a part of the model no longer learns.
Numerical debuggers (GPU-FPX, FPChecker) track such exceptions through a program; here they are tracked through the
nodes of a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from amp_tf.comparing.regions import nodes_run_once
from amp_tf.comparing.running import NodeMeasurement
from amp_tf.precision import Precision

_SHOWN = 3


def describe(measured: Sequence[NodeMeasurement], graph: Any, precision: Precision) -> Iterator[str]:
    """A sentence on the first nodes with new inf or nan, and on the first nodes behind which they disappear.

    Args:
        measured: what was measured at each node.
        graph: the step's GraphDef. Nodes without a measurement pass on what they read.
        precision: the 16-bit type.
    """
    known = {one.probe.name: one for one in measured}
    reads = {node.name: [text.lstrip("^").partition(":")[0] for text in node.input] for node in graph.node}
    reached: set[str] = set()
    first: list[NodeMeasurement] = []
    ends: list[NodeMeasurement] = []
    for name in nodes_run_once(graph) if any(one.accumulated.nonfinite for one in measured) else ():
        one, is_reached = known.get(name), not reached.isdisjoint(reads[name])
        is_bad = is_reached if one is None else one.accumulated.nonfinite > 0
        if is_bad:
            reached.add(name)
        if one is not None and is_bad != is_reached:
            (first if is_bad else ends).append(one)
    if first:
        begins = _named([f"{_of(one)}, {100 * one.accumulated.nonfinite:.3g}% of its numbers" for one in first])
        hidden = f"; hidden again behind {_named([_of(one) for one in ends])}" if ends else ""
        yield f"inf or nan that float32 does not have first appears in {precision.value} at {begins}{hidden}"


def _of(one: NodeMeasurement) -> str:
    return f"{one.probe.name} ({one.probe.op})"


def _named(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{'; '.join(texts[:_SHOWN])}{more}"
