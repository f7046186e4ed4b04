"""A program that trains nothing: its metric is lower where certain nodes are 16 bit, as its report
says they are.
"""

from __future__ import annotations

import dataclasses

from amp_tf.precision import Precision
from amp_tf.tools import keeping
from amp_tf.tools.comparing.comparison import Comparison
from amp_tf.tools.comparing.findings import Finding
from amp_tf.tools.tuning.result import Outcome
from amp_tf.tools.tuning.tuning import Way

GOOD = 0.9
BAD = 0.4


def node(name, operations=1e6, **more):
    """A row of a report; ``layer`` is the path in Keras."""
    return {"name": name, "op": "MatMul", "precision": "bfloat16", "operations": operations, **more}


def report(*paths):
    """Makes a report of layers: each has a product, its gradient, and an activation."""
    nodes = []
    for path in paths:
        nodes.append(node(f"{path}/MatMul"))
        nodes.append(node(f"{path}/Tanh", 1e3))
        nodes.append(node(f"gradient_tape/{path}/MatMul/MatMul"))
    return {
        "converted": len(nodes),
        "precisions": ["float16"],
        "devices": [{"type": "CPU"}, {"type": "GPU"}],
        "process": {"tensorflow": "2.20.0"},
        "graphs": [{"nodes": nodes, "inserted_casts": []}],
    }


@dataclasses.dataclass
class Weak:
    """A program that is good if all of its weak nodes are in float32.

    Attributes:
        paths: its layers.
        weak: names of nodes.
        comparison: what comparing its step says.
        runs: how often it was run.
        nothing: its metric where nothing is 16 bit.
    """

    paths: tuple[str, ...]
    weak: tuple[str, ...]
    comparison: Comparison | None = None
    runs: int = 0
    nothing: float = GOOD

    def run(self, way, patterns):
        self.runs += 1
        if way is Way.FLOAT32:
            return Outcome(GOOD)
        found = report(*self.paths)
        if way is Way.NOTHING:
            return Outcome(self.nothing, 0.0, 10.0, report=found)
        is_kept = keeping.any_matcher(patterns)
        nodes = {row["name"] for row in found["graphs"][0]["nodes"]}
        kept = set(filter(is_kept, nodes))
        value = GOOD if kept.issuperset(self.weak) else BAD
        share = 1 - len(kept) / max(1, len(nodes))
        return Outcome(value, share, 10.0, report=found)

    def compare(self):
        return self.comparison


def findings(*nodes):
    """Returns the findings of a comparison that finds roundings at some nodes."""
    found = []
    for name in nodes:
        found.append(
            Finding(name, "MatMul", "", "rounding", "it is rounded", 0.1, accumulated_error=0.1)
        )
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
