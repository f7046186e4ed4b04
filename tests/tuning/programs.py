"""A program that trains nothing: its metric is lower where certain nodes are 16 bit, as its report
says they are.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from amp_tf.graph.names import matcher
from amp_tf.precision import Precision
from amp_tf.tools.comparing.comparison import Comparison
from amp_tf.tools.comparing.findings import Finding
from amp_tf.tools.tuning.result import Outcome
from amp_tf.tools.tuning.tuning import Way

GOOD = 0.9
BAD = 0.4


def node(name: str, operations: float = 1e6, **more: Any) -> dict[str, Any]:
    """A row of a report; ``layer`` is the path in Keras."""
    return {"name": name, "op": "MatMul", "precision": "bfloat16", "operations": operations, **more}


def report(*paths: str, casts: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Makes a report of layers: each has a product, its gradient, and an activation."""
    nodes = [
        row
        for path in paths
        for row in (
            node(f"{path}/MatMul"),
            node(f"{path}/Tanh", 1e3),
            node(f"gradient_tape/{path}/MatMul/MatMul"),
        )
    ]
    graph = {"nodes": nodes, "inserted_casts": list(casts)}
    return {"converted": len(nodes), "graphs": [graph]}


@dataclasses.dataclass
class Weak:
    """A program that is good if all of its weak nodes are in float32.

    Attributes:
        paths: its layers.
        weak: names of nodes.
        comparison: what comparing its step says.
        runs: how often it was run.
    """

    paths: tuple[str, ...]
    weak: tuple[str, ...]
    comparison: Comparison | None = None
    runs: int = 0
    nothing: float = GOOD

    def run(self, way: Way, patterns: tuple[str, ...]) -> Outcome:
        self.runs += 1
        if way is Way.FLOAT32:
            return Outcome(GOOD)
        nodes = {row["name"] for row in report(*self.paths)["graphs"][0]["nodes"]}
        tests = [matcher(pattern) for pattern in patterns]
        kept = {name for name in nodes if any(test(name) for test in tests)}
        if way is Way.NOTHING:
            kept = nodes
        is_good = kept.issuperset(self.weak)
        value = self.nothing if way is Way.NOTHING else GOOD if is_good else BAD
        share = 1 - len(kept) / max(1, len(nodes))
        return Outcome(value, share, 10.0, report=report(*self.paths))

    def compare(self) -> Comparison | None:
        return self.comparison


def findings(*nodes: str) -> Comparison:
    """What a comparison says that finds roundings at some nodes."""
    found = []
    for node in nodes:
        row = Finding(
            node,
            op="MatMul",
            layer="",
            kind="rounding",
            why="it is rounded",
            local_error=0.1,
            accumulated_error=0.1,
        )
        found.append(row)
    return Comparison(
        "weak",
        Precision.BFLOAT16,
        batches=1,
        loss_scale=1.0,
        converted=len(nodes),
        total=len(nodes),
        outputs=(),
        nodes=(),
        findings=tuple(found),
    )
