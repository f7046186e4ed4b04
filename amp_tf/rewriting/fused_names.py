"""Under which names TensorFlow may run a product: its remapper fuses what follows a product with it.

The fused node has the name of the last one: ``dense/MatMul``, ``dense/BiasAdd`` and ``dense/Relu`` become a
``_FusedMatMul`` called ``dense/Relu``. So a pattern for one of them has to find those behind it as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from amp_tf.graph.names import without_calls
from amp_tf.oplists.table import PRODUCTS
from amp_tf.reporting.reports import RewriteReport

_LONGEST = 3  # bias, normalization, activation

Followers = Mapping[str, tuple[str, ...]]


def find_followers(graph: Any) -> Followers:
    """For each product, and each node that may be fused with it, those behind it in its scope that may be, in order."""
    nodes = {node.name: node for node in (graph.node_def if hasattr(graph, "node_def") else graph.node)}
    readers: dict[str, list[str]] = {}
    for node in nodes.values():
        for text in node.input:
            if not text.startswith("^"):
                readers.setdefault(text.partition(":")[0], []).append(node.name)
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes.values():
        if node.op in PRODUCTS:
            chain, last = list[str](), node.name
            while len(chain) < _LONGEST and len(readers.get(last, ())) == 1:
                last = readers[last][0]
                if nodes[last].op in PRODUCTS or _scope(last) != _scope(node.name):
                    break
                chain.append(last)
            found |= {name: tuple(chain[place:]) for place, name in enumerate([node.name, *chain])}
    return found


def count_products(report: RewriteReport) -> int:
    """How many products a rewrite converted."""
    return sum(node.precision.is_f16 and node.op in PRODUCTS for node in report.nodes)


def pattern(node: str, followers: Followers) -> str:
    """A regular expression that finds a node under all these names, in whatever function it is inlined into."""
    names = [re.escape(name.rpartition("/")[2]) for name in (node, *followers.get(node, ()))]
    scope = _scope(without_calls(node)) or _scope(node)  # a file that is converted has it in its function
    scope = f"{re.escape(scope)}/" if scope else ""
    return f"(^|/){scope}{names[0] if len(names) == 1 else f'({chr(124).join(names)})'}$"


def _scope(node: str) -> str:
    return node.rpartition("/")[0]
