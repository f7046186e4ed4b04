"""TensorFlow's remapper: finds the nodes that it will fuse into one kernel after the rewrite.

Nodes that are computed together are rounded once, and nearly all cost nothing of their own. They
must have one type, and nothing else may read or wait for what lies between them. The op names of
the patterns stand in :mod:`amp_tf.oplists.fusions`.

*Gelus.* ``tf.nn.gelu`` makes five nodes (with an Erf in TensorFlow 2.16, with an Erfc later), or
nine with ``approximate=True``. If they have the type of the product before them, they cost nothing:
oneDNN's kernel computes them in float32 and rounds once. Without oneDNN, or with the remapper off,
they round five or nine times.

Sources of the patterns (TensorFlow 2.21): ``MergeConv2DBackpropFilterWithBiasAddGrad`` of
core/common_runtime/mkl_layout_pass.cc; ``FindContractionWithBias``,
``FindContractionWithBiasAndActivation``, ``FindContractionWithBiasAddAndAdd``,
``FindContractionWithBiasAndAddActivation``, ``FindMatMulBiasAddAndGelu``,
``FindConv2DWithSqueezeAndBias`` and ``FindSigmoidAndMul`` of core/grappler/optimizers/remapper.cc.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from amp_tf.graph.attributes import CONST_OP, floats
from amp_tf.graph.datatypes import Mask, Node, mask_of
from amp_tf.graph.edits import Tensor
from amp_tf.graph.sizes import Shapes
from amp_tf.graph.view import GraphView
from amp_tf.oplists import fusions, table
from amp_tf.painting.work import input_shapes

_LONGEST_GELU = 9  #: nodes


def computed_with_products(view: GraphView, is_f16: Mask, shapes: Shapes) -> dict[Node, Node]:
    """The nodes that TensorFlow computes together with a product, each with the product.

    They are bias gradients that read what a filter gradient reads, and biases, residual sums and
    activations behind a product. They are computed alone if another node reads a value between
    them, if one of them has a control input, or if their types differ. (Control edges from them
    have the same effect, but are rare, and not looked at.)

    Args:
        is_f16: for each node, whether it becomes 16 bit.
    """
    gelus = _gelus_of_products(view, is_f16)
    behind = _behind_products(view, is_f16, shapes)
    return dict(itertools.chain(beside_products(view, is_f16), gelus, behind))


def costs_nothing(view: GraphView, node: Node, product: Node) -> bool:
    """Tells whether a node that is computed together with a product adds nothing to its time.

    A bias behind a product of matrices takes as long there as alone, .5 ns an element in bfloat16
    and .4 in float32 (MatMul with and without BiasAdd, on a Xeon with AMX). A convolution adds it
    while the result is in registers.
    """
    is_bias = view.ops[node] in table.BIASES
    return not is_bias or view.ops[product] not in table.MATRIX_PRODUCT


def beside_products(view: GraphView, is_f16: Mask) -> Iterator[tuple[Node, Node]]:
    """The nodes of :data:`fusions.FUSED_WITH`, each with the product that reads the same tensor."""
    for op, (product, place) in fusions.FUSED_WITH.items():
        read_by: dict[tuple[Tensor, bool], Node] = {}
        for node in view.nodes_with({product}):
            read_by[view.inputs(node)[place], is_f16[node]] = node
        for node in view.nodes_with({op}):
            for tensor in view.inputs(node):
                if (tensor, is_f16[node]) in read_by:
                    yield node, read_by[tensor, is_f16[node]]


def _behind_products(view: GraphView, is_f16: Mask, shapes: Shapes) -> Iterator[tuple[Node, Node]]:
    """The biases, residual sums and activations behind a product, each with the product."""
    if not view.nodes_with(table.BIASES):
        return
    edges = view.edges
    is_alone = np.bincount(edges.src_node, minlength=view.node_count) == 1
    has_one_type = is_f16[edges.src_node] == is_f16[edges.dst_node]
    waits = _waiting(view)
    is_free = is_alone & ~waits
    edges = edges.at(is_free[edges.src_node] & ~waits[edges.dst_node] & has_one_type)

    def behind(
        product_of: Mapping[Node, Node], ops: Container[str], position: int = 0
    ) -> dict[Node, Node]:
        """Returns the nodes of some ops that are the only reader of one of some nodes, with its
        product.
        """
        read = edges.at(view.mask_with(ops)[edges.dst_node] & (edges.dst_position == position))
        ends = read.rows("src_node", "dst_node")
        return {node: product_of[source] for source, node in ends if source in product_of}

    for fusion in fusions.FUSIONS:
        products = {node: node for node in view.nodes_with({fusion.product.op})}
        if not fusion.activations or not products:
            continue
        found = behind(products, table.BIASES)
        sums = behind(found, fusion.sums, 1) | behind(found, fusion.sums)
        for node, product in sums.items():
            if _is_of_one_shape(view, node, shapes):
                found[node] = product
        yield from found.items()
        yield from behind(found, fusion.activations).items()
        if fusion.squeezed:
            squeezed = behind(products, table.SQUEEZING)
            yield from behind(squeezed, table.BIASES).items()


def _waiting(view: GraphView) -> Mask:
    """Returns the nodes that wait for something besides what they read."""
    return mask_of(view.controls[:, 1], view.node_count)


def _is_of_one_shape(view: GraphView, node: Node, shapes: Shapes) -> bool:
    """Returns whether a node reads two values of the same shape."""
    first, *others = input_shapes(view, node, shapes)
    return first is not None and others == [first]


def _gelus_of_products(view: GraphView, is_f16: Mask) -> Iterator[tuple[Node, Node]]:
    """The nodes of Gelus behind a product of matrices and its bias, each with the product."""
    waits = _waiting(view)
    for gelu in find_gelus(view):
        product = gelu.biased
        if view.ops[product] in table.BIASES:
            product, _ = view.inputs(product)[0]
            if view.ops[product] not in table.MATRIX_PRODUCT:
                continue
        nodes = [product, gelu.biased, *gelu.nodes]
        has_one_type = is_f16[nodes].min() == is_f16[nodes].max()
        if has_one_type and not waits[nodes].any():
            yield from zip(gelu.nodes, itertools.repeat(product))


class Gelu(NamedTuple):
    """One Gelu.

    Attributes:
        biased: the node that gives the biased value: a BiasAdd, or a product that adds the bias
            itself.
        nodes: those that the Gelu consists of; the last gives its result.
    """

    biased: Node
    nodes: Sequence[Node]


def find_gelus(view: GraphView) -> Iterator[Gelu]:
    """Yields the Gelus of biased values.

    There is none if another node, such as a gradient, reads the biased value or one within.
    """
    if not view.nodes_with(fusions.GELU_CORES):
        return
    for biased in view.nodes_with(set(fusions.GELUS.values())):
        gelu = _gelu_behind(view, biased)
        if gelu is not None:
            yield gelu


def _gelu_behind(view: GraphView, biased: Node) -> Gelu | None:
    """Finds the Gelu of a biased value.

    A set of nodes grows by readers that read only the set and constants, until its terms are those
    of a Gelu.
    """
    found = [biased]
    terms: list[str] = []
    ready = [reader for reader, _ in view.readers(biased)]
    while ready and len(found) <= _LONGEST_GELU:
        node = ready.pop()
        others = {source for source, _ in view.inputs(node)}.difference(found)
        is_within = all(view.ops[source] == CONST_OP for source in others)
        if node in found or view.ops[node] not in fusions.GELU_PARTS or not is_within:
            continue
        terms.append(view.ops[node])
        terms += (_term(view.protos[source]) for source in others)
        found.append(node)
        is_gelu = fusions.GELUS.get(" ".join(sorted(terms))) == view.ops[biased]
        readers = (reader for inner in found[:-1] for reader, _ in view.readers(inner))
        if is_gelu and all(reader in found for reader in readers):
            return Gelu(biased, found[1:])
        ready += (reader for reader, _ in view.readers(node))
    return None


def _term(constant: object) -> str:
    """Renders a number as the patterns of Gelus write it.

    A tensor of several numbers is a question mark.
    """
    values = floats(constant)
    return f"{values[0]:.3g}" if len(values) == 1 else "?"


def find_swishes(view: GraphView) -> list[tuple[Node, Node]]:
    """The nodes that become one swish: the Sigmoid and the multiplication of its input by it."""
    found = []
    for gate in view.nodes_with({fusions.SIGMOID}):
        product = view.only_reader(gate)
        if product is None or view.ops[product] != fusions.GATING:
            continue
        if sorted(view.inputs(product)) == sorted([*view.inputs(gate), (gate, 0)]):
            found.append((gate, product))
    return found
