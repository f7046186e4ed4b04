"""Whether this process' own run decided as the comparison did: the same products in 16 bit.

TensorFlow may hand over another graph in a run than the one that is compared: of another batch size, fused, or of a
function that calls the step. What is judged is then not quite what runs, and the answer says where.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amp_tf.graph.names import whole_of
from amp_tf.oplists.table import PRODUCTS
from amp_tf.precision import Precision
from amp_tf.reporting.schema import NodeReport, RewriteReport
from amp_tf.rewriting.fused_names import find_followers

_SHOWN = 3


def describe(compared: RewriteReport, graph: Any, run: RewriteReport, precision: Precision) -> Iterator[str]:
    """A sentence if there are products that every graph of the run has in another precision.

    Args:
        compared: the step as it is compared.
        graph: the step's GraphDef.
        run: what this process rewrote so far.
        precision: the 16-bit type; graphs that were rewritten for another one are left out.
    """
    in_run: dict[str, list[NodeReport]] = {}
    for rewritten in run.graphs:
        for node in rewritten.nodes if rewritten.precision is precision else ():
            if node.op in PRODUCTS:
                in_run.setdefault(_last(node.name), []).append(node)
    followers = find_followers(graph)
    known, others = 0, []
    for node in compared.nodes if in_run else ():
        if node.op in PRODUCTS and not node.function:
            names = (node.name, *followers.get(node.name, ()))
            found = [other for name in names for other in in_run.get(_last(name), ()) if _is_within(name, other.name)]
            known += bool(found)
            if found and all(other.precision.is_f16 != node.precision.is_f16 for other in found):
                others.append(f"{node.name} ({found[0].precision.value} there, {node.precision.value} here)")
    if others:
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        named = ", ".join(others[:_SHOWN]) + more
        yield f"the run of this process has {len(others)} of {known} products otherwise: {named}"


def _last(name: str) -> str:
    return whole_of(name).rpartition("/")[2]


def _is_within(name: str, other: str) -> bool:
    """Whether a node of the run is this one, in whatever function it was inlined into."""
    return f"/{whole_of(other)}".endswith(f"/{name}")
