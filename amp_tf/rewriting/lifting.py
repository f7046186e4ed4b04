"""Lifts biases and activations over reshapings, next to the matrix product that they follow.

TensorFlow's remapper, which runs again after amp_tf, computes a matrix product with the bias and
the activation directly behind it in one kernel. Keras 3 multiplies sequences as one large matrix,
and adds the bias after reshaping the result. A reshaping that keeps the last dimension may change
places with a bias along it: each value still gets the same bias. An activation moves with its bias,
and so does an exact Gelu.

    before:  MatMul → Reshape → BiasAdd → Relu → …
    after:   MatMul → BiasAdd → Relu → Reshape → …

Refused: a bias along another dimension; an unknown last dimension; what :mod:`folding
<amp_tf.rewriting.folding>` refuses, too. A bias with other readers is lifted without its
activation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from amp_tf.graph.datatypes import Node
from amp_tf.graph.edits import Edits, Rewire
from amp_tf.graph.sizes import shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.oplists.fusions import MATRIX_ACTIVATIONS
from amp_tf.oplists.kernels import has_channels_first
from amp_tf.painting.remapper import find_gelus
from amp_tf.rewriting.folding import kept_nodes, may_change, with_moves
from amp_tf.rewriting.form import Form


def lift(form: Form) -> Form:
    """Lifts each bias if that is correct."""
    view = form.view
    reshaped = list(_find_reshaped(view))
    if not reshaped:
        return form
    kept = kept_nodes(form)
    gelus = {gelu.biased: gelu.nodes for gelu in find_gelus(view)}
    rewires = []
    models: dict[Node, Node] = {}
    for product, reshaping, bias in reshaped:
        before = shape_of(form.shapes, view.names[product])
        after = shape_of(form.shapes, view.names[reshaping])
        if not before or not after or before[-1] != after[-1] or before[-1] <= 0:
            continue
        if view.only_reader(product) is None or view.only_reader(reshaping) is None:
            continue
        if not may_change(view, kept, product, reshaping, bias):
            continue
        if has_channels_first(view.protos[bias].attr):
            continue
        # The activation behind the bias moves with it.
        readers = view.readers(bias)
        activation = gelus.get(bias, [])
        if len(readers) == 1 and view.ops[readers[0][0]] in MATRIX_ACTIVATIONS:
            activation = [readers[0][0]]
        if not kept.isdisjoint(activation):
            activation = []
        lifted = [bias, *activation]
        rewires.append(Rewire(bias, 0, product, 0))
        rewires.append(Rewire(reshaping, 0, lifted[-1], 0))
        for node, position in view.readers(lifted[-1]):
            rewires.append(Rewire(node, position, reshaping, 0))
        models.update(dict.fromkeys(lifted, product))
    folded = dataclasses.replace(form.folded, lifted=frozenset(models))
    return with_moves(form, Edits(rewires=tuple(rewires)), models, folded)


def _find_reshaped(view: GraphView) -> Iterator[tuple[Node, Node, Node]]:
    """Finds the matrix products whose results are reshaped and get a bias.

    Yields each product, its reshaping, and the BiasAdd.
    """
    for bias in view.nodes_with(table.BIASES):
        reshaping, _ = view.inputs(bias)[0]
        if view.ops[reshaping] not in table.RESHAPING:
            continue
        product, _ = view.inputs(reshaping)[0]
        if view.ops[product] in table.MATRIX_PRODUCT:
            yield product, reshaping, bias
