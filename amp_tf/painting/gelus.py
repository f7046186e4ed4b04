"""Gelus: the ops that TensorFlow writes for one, and computes in one kernel with the product and the bias before them.

``tf.nn.gelu`` makes five nodes (with an Erf in TensorFlow 2.16, with an Erfc later), or nine where it approximates.
Left in float32 behind a 16-bit product they cost casts and as many passes over its result; with the product's type they
cost nothing, and oneDNN's kernel computes them in float32, before it rounds once. They have it where the products
around them are 16 bit; without oneDNN, or with the remapper off, they round five or nine times instead.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from amp_tf.graph.attributes import floats
from amp_tf.graph.datatypes import Node
from amp_tf.graph.view import GraphView
from amp_tf.oplists.fusions import GELU_CORES, GELU_PARTS, GELUS
from amp_tf.oplists.table import COMMUTATIVE

_MOST_TERMS = 24  #: more than any Gelu has, counted as often as they are read
_MOST_BEHIND = 4  #: as many nodes as come after the core of any at most
_BIASED = frozenset(GELUS.values())


@dataclasses.dataclass(frozen=True)
class Gelu:
    """One Gelu.

    Attributes:
        biased: the node that gives the biased value: a BiasAdd, or a product that adds the bias itself.
        nodes: those that the Gelu consists of; the last gives its result.
    """

    biased: Node
    nodes: Sequence[Node]


def find_gelus(view: GraphView) -> Iterator[Gelu]:
    """The Gelus of biased values where nothing else reads what is biased or what lies within; a gradient reads both.

    Source of the patterns: ``FindMatMulBiasAddAndGelu`` of core/grappler/optimizers/remapper.cc (TensorFlow 2.21).
    """
    cores = view.nodes_with(GELU_CORES)
    if not cores or _BIASED.isdisjoint(view.ops):
        return
    edges = view.edges
    within = edges.at(view.mask_with(GELU_PARTS)[edges.dst_node])
    readings = np.bincount(edges.src_node, minlength=view.node_count).tolist()
    reads: dict[Node, list[Node]] = {}
    reader_of: dict[Node, Node] = {}
    for source, reader in within.rows("src_node", "dst_node"):
        reads.setdefault(reader, []).append(source)
        reader_of[source] = reader
    for end in cores:
        for _ in range(_MOST_BEHIND):
            if readings[end] != 1 or end not in reader_of:
                break
            end = reader_of[end]
            if gelu := _gelu(view, reads, end):
                read = [source for node in gelu.nodes for source in reads[node]]
                if all(read.count(node) == readings[node] for node in (gelu.biased, *gelu.nodes[:-1])):
                    yield gelu


def _gelu(view: GraphView, reads: Mapping[Node, Sequence[Node]], end: Node) -> Gelu | None:
    """The Gelu that ends with a node."""
    biased: list[Node] = []
    nodes: list[Node] = []
    terms_left = itertools.repeat(None, _MOST_TERMS)

    def formula(node: Node) -> str:
        op = view.ops[node]
        if op in _BIASED:
            biased.append(node)
            return "x"
        if op == "Const":
            values = floats(view.protos[node])
            return f"{values[0]:.3g}" if len(values) == 1 else "?"
        if op not in GELU_PARTS or next(terms_left, 0) == 0:
            return "?"
        terms = [formula(source) for source in reads.get(node, ())]
        nodes.append(node)
        return f"{op}({', '.join(sorted(terms) if op in COMMUTATIVE else terms)})"

    op = GELUS.get(formula(end))
    is_one = len(set(biased)) == 1
    return Gelu(biased[0], nodes) if is_one and view.ops[biased[0]] == op else None
