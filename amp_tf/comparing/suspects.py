"""Chooses the nodes that may be what goes wrong, and the patterns that keep them in float32.

Suspects are the nodes with the largest local errors: first those that make numbers infinite that are finite in float32,
in the order of the graph, then the others by local error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from amp_tf.comparing.running import NodeMeasurement
from amp_tf.comparing.verdicts import has_truth, roundoff
from amp_tf.oplists.table import HANDING_ON, PRODUCTS
from amp_tf.precision import Precision
from amp_tf.rewriting.fused_names import Followers, pattern

SUSPICIOUS = 4.0  #: times the roundoff; a product in a healthy model adds about one
_MOST = 8  # each costs at least a rewrite and a run of the batches
_GRADIENT_SCOPES = ("gradient_tape/", "gradients/")
_GRADIENT_OP = re.compile(r"(\w+?)Grad(V\d)?(_\d+)?")

Patterns = tuple[str, ...]


def suspects(nodes: Sequence[NodeMeasurement], precision: Precision, followers: Followers) -> list[NodeMeasurement]:
    """The nodes with larger local errors than products of a healthy model have, or else any error; the worst first.

    A node that may be fused with a worse product is left out, because the product's pattern keeps both in float32.

    Args:
        nodes: what was measured, sources before their readers.
        precision: the 16-bit type.
        followers: what may be fused with each product.
    """
    local = [measured for measured in nodes if measured.local is not None and has_truth(measured.local, precision)]
    worst = [measured for measured in local if is_suspicious(measured, precision)] or local
    # Stable. Ops that only pass values on come after their readers, because a reader in float32 fixes both.
    order = sorted(filter(_added, worst), key=lambda measured: (-_added(measured), measured.probe.op in HANDING_ON))
    chosen: dict[Patterns, NodeMeasurement] = {}
    fused: set[str] = set()
    for measured in order:
        own = _own(measured)
        if own and not fused.issuperset(own):
            chosen.setdefault(own, measured)
            fused.update(*(followers.get(name, ()) for name in own))
    return list(chosen.values())[:_MOST]


def is_suspicious(measured: NodeMeasurement, precision: Precision) -> bool:
    """Whether a node's local error is larger than that of a product in a healthy model."""
    return _added(measured) > SUSPICIOUS * roundoff(precision)


def narrow(measured: NodeMeasurement, followers: Followers) -> Patterns:
    """The smallest set of patterns with which nothing is lost at a node."""
    return tuple(pattern(name, followers) for name in _own(measured))


def choices(
    measured: NodeMeasurement, known: Mapping[str, NodeMeasurement], followers: Followers
) -> Iterator[Patterns]:
    """Sets of patterns for a node, each larger than the one before.

    First the node, or the sources of its 16-bit inputs; then the chain back to the products before it, these included;
    then its layer.

    Args:
        measured: the node.
        known: all nodes, by name.
        followers: what may be fused with each product.
    """
    yield narrow(measured, followers)
    own = _own(measured)
    chain, waiting = dict.fromkeys(own), list(own)
    while waiting:
        name = waiting.pop()
        sources = known[name].probe.rounded if name in known and known[name].probe.op not in PRODUCTS else ()
        waiting += [source for source in sources if source not in chain]
        chain.update(dict.fromkeys(sources))
    yield tuple(pattern(name, followers) for name in chain)
    if scope_of(measured.probe.name):
        yield (scope_pattern(measured.probe.name),)


def scope_pattern(node: str) -> str:
    """A regular expression for all nodes of a node's scope; for the node alone where it has none."""
    scope = scope_of(node)
    return f"(^|/){re.escape(scope)}/" if scope else f"^{re.escape(node)}$"


def scope_of(node: str) -> str:
    """The name scope of a node; for a node of a gradient, the scope of the forward node."""
    for scope in _GRADIENT_SCOPES:
        inner = node.partition(scope)[2]
        if inner:
            above, _, name = inner.rpartition("/")
            outer, _, forward = above.rpartition("/")
            grad = _GRADIENT_OP.fullmatch(name)
            # dense/MatMul/MatMul_1 and dense/BiasAdd/BiasAddGrad are below the forward node, dense/TanhGrad is beside
            # it.
            is_beside = grad is not None and not re.fullmatch(rf"{re.escape(grad[1])}(_\d+)?", forward)
            return above if is_beside else outer or above
    return node.rpartition("/")[0]


def _own(measured: NodeMeasurement) -> Patterns:
    """The nodes to keep in float32 so that nothing is lost at a node: itself, or the sources of its 16-bit inputs."""
    return (measured.probe.name,) if measured.probe.is_f16 else measured.probe.rounded


def _added(measured: NodeMeasurement) -> float:
    """The local error of a node."""
    return 0.0 if measured.local is None else measured.local.distance
