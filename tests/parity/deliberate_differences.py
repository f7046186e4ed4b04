"""Where amp_tf differs from TensorFlow's pass on purpose, as a table: a name and the reason.

A difference that is not in this table is a bug. Each row's name is also the name of a test in
test_deliberate_differences.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.oracle import Mode
from tests.parity.random_graphs import RandomGraph


@dataclasses.dataclass(frozen=True)
class DeliberateDifference:
    """One difference.

    Attributes:
        name: its name.
        reason: why amp_tf does better so.
        concerns: whether it can show in a graph and a mode; such a graph is left out of the differential test, and the
            difference has a test of its own. ``None`` where the differential test never meets it.
    """

    name: str
    reason: str
    concerns: Callable[[RandomGraph, Mode], bool] | None = None


# The CPU has no kernel in the 16-bit type of the mode; TensorFlow paints these without looking.
_WITHOUT_KERNEL = {
    Mode.BFLOAT16: frozenset[str](),
    Mode.CUDA_LISTS: frozenset({"AvgPool3D", "AvgPool3DGrad"}),
    Mode.CUDA: frozenset[str](),
}


def _has_an_op_without_kernel(graph: RandomGraph, mode: Mode) -> bool:
    return any(node.op in _WITHOUT_KERNEL[mode] or node.op.startswith("CudnnRNN") for node in graph.graph_def.node)


DELIBERATE_DIFFERENCES = (
    DeliberateDifference(
        "kernel-missing",
        "TensorFlow paints allow-list nodes, and infer nodes that directly follow one, without asking whether the op "
        "has a 16-bit kernel on the node's device; the graph then fails at run time. amp_tf leaves it in float32.",
        _has_an_op_without_kernel,
    ),
    DeliberateDifference(
        "infer-follow-order",
        "TensorFlow paints infer nodes that follow an allow node in one sweep in the order of the node list, so the "
        "result depends on that order. amp_tf repeats the sweep until nothing changes, so it does not. On graphs in "
        "topological order, as Grappler delivers them, the two agree.",
    ),
    DeliberateDifference(
        "fused-ops",
        "The plugin hook runs after Grappler's remapper, TensorFlow's pass before it: amp_tf's lists also hold the "
        "fused ops (_FusedMatMul, _FusedConv2D, …), which TensorFlow's pass never meets.",
    ),
    DeliberateDifference(
        "force-all-fixed",
        "TensorFlow's UNSAFE_FORCE_ALL gives up on the whole graph when one node has an argument of fixed type "
        "float32, and in bfloat16 mode always. amp_tf forces what can be forced.",
    ),
)


def is_comparable(graph: RandomGraph, mode: Mode) -> bool:
    """Whether no deliberate difference can show in the graph."""
    return not any(row.concerns and row.concerns(graph, mode) for row in DELIBERATE_DIFFERENCES)
