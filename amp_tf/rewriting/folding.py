"""Folds the scales of batch normalization into the filters of convolutions, for inference.

TensorFlow's remapper, which runs again after amp_tf, computes convolution, bias, a residual sum and
the activation in one kernel. There Keras normalizes as ``y * s + b``, with vectors of one value a
channel: two passes over the activations in float32. If ``y`` is the result of a convolution and has
no other reader, the scale is multiplied into the filter instead, ``conv(x, w) * s = conv(x, w *
s)``, and the sum becomes a BiasAdd. The multiplication node itself moves: it scales the filter, in
float32 and once a step. Training graphs are not touched, because the gradient of a learned scale
reads the convolution's result too. TensorFlow's arithmetic optimizer makes ``(y * s + z) + b`` of
``(y * s + b) + z``, with a residual sum between scale and bias; the two sums change places again.

The convolution may have a bias of its own, as Keras' layers have by default. It is scaled too, and
both biases become one: ``(conv(x, w) + c) * s + b = conv(x, w * s) + (c * s + b)``. The BiasAdd
stays, the sum of the normalization adds the two vectors, and one small multiplication is new. By
then TensorFlow's remapper has fused such a convolution with its bias; it is split first, and the
remapper, when it runs again, fuses it with both and the activation.

    before:  _FusedConv2D(x, w, c) → Mul s → AddV2 b → Relu
    after:   Conv2D(x, w * s) → BiasAdd (c * s + b) → Relu

It is faster where two float32 passes over the result cost more than one over the filter; an unknown
batch counts as one example. Refused: a filter that may be scaled already; a depthwise convolution
with two sums behind its scale, for which TensorFlow's remapper makes a node without an op; NCHW.
FusedBatchNormV3 of older Keras is left to the remapper. Filters are not scaled where variables will
be stored in 16 bit, because a scaled filter is read in float32.

Folding and lifting (:mod:`amp_tf.rewriting.lifting`) are done only where amp_tf chooses the
precision, in graphs and in the functions that they call, such as those of a SavedModel. They are
not done for XLA, which fuses by itself. They are dropped where nothing becomes 16 bit; a second
rewrite finds nothing to do. A node that is fused in this way is free in the cost model and has the
product's type. Both need shapes, and refuse products and reshapings with another reader, control
edges, preserved nodes and nodes that the user's settings name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeGuard

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Node, Port
from amp_tf.graph.edits import Edits, Reader, Reop, Rewire, Tensor, attribute
from amp_tf.graph.sizes import SHAPES_ATTR, Shape, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.oplists.cost_tables import CostTable
from amp_tf.oplists.fusions import SPLIT_PRODUCTS
from amp_tf.oplists.kernels import has_channels_first
from amp_tf.painting.eligibility import Folded
from amp_tf.rewriting.form import Form, NewNodes
from amp_tf.rewriting.splitting import Part, parts_of, with_parts

SUFFIX = "AmpTfFold"  #: ends the names of new nodes
#: Fused products whose convolution can be scaled.
_SPLITTABLE = frozenset(
    fused for fused, product in SPLIT_PRODUCTS.items() if product.op in table.SCALABLE
)
_NO_MODELS: Mapping[str, Node] = MappingProxyType({})


def fold(form: Form) -> Form:
    """Folds each batch normalization if that is correct and faster."""
    view = form.view
    sources = view.mask_with({*table.SCALABLE, *table.BIASES, *_SPLITTABLE})
    readers = view.edges.dst_node[sources[view.edges.src_node]]
    if not view.mask_with(("Mul",))[readers].any():
        return form
    # All fused products are split, to find those whose scale can be folded.
    fused = _find_fused(form)
    search = _FoldSearch(with_parts(form, fused))
    search.run()
    folded = {node: parts for node, parts in fused.items() if node in search.biases}
    # The others stay fused, so the search begins anew without their parts.
    if len(folded) < len(fused):
        search = _FoldSearch(with_parts(form, folded))
        search.run()
    return search.folded()


def _find_fused(form: Form) -> dict[Node, Sequence[Part]]:
    """Finds the convolutions that are fused with a bias and whose only reader is a multiplication.

    Returns the parts of each.
    """
    view = form.view
    found: dict[Node, Sequence[Part]] = {}
    for node in view.nodes_with(_SPLITTABLE):
        reader = view.only_reader(node)
        if reader is None or view.ops[reader] != "Mul":
            continue
        parts = parts_of(form, node)
        if len(parts) == 2 and parts[-1].step.op in table.BIASES:
            found[node] = parts
    return found


def kept_nodes(form: Form) -> set[Node]:
    """Returns the nodes that must not move, the ends of control edges among them."""
    waiting = form.view.controls.ravel().tolist()
    return {*form.obstacles.code_of, *form.obstacles.forced, *waiting}


def may_change(view: GraphView, kept: set[Node], *nodes: Node) -> bool:
    """Tells whether nodes may change together: all give float32, on one device."""
    if not kept.isdisjoint(nodes):
        return False
    kinds = set()
    for node in nodes:
        for unit in view.output_units(node):
            kinds.add((view.dtypes[unit], view.devices[node]))
    return kinds == {(datatypes.FLOAT, view.devices[nodes[0]])}


def _reshape(view: GraphView, new: NewNodes, tensor: Tensor, shape: Shape, beside: Node) -> Tensor:
    """Reshapes a float32 tensor in two new nodes: the shape, and the Reshape.

    Args:
        view: the graph.
        new: gets the nodes.
        tensor: the tensor.
        shape: its new shape, of which one dimension may be -1, for what is left.
        beside: a node after which they are named, and on whose device they are.
    """
    stem = view.names[beside]
    after = []
    if not table.LOOP_ENTRIES.isdisjoint(view.ops):
        after.append(tensor[0])  # it puts the constant into the loop in which the tensor may be
    whole = attribute(type=datatypes.INT32)
    of_vector = {"dim": [{"size": len(shape)}]}
    value = {"dtype": datatypes.INT32, "tensor_shape": of_vector, "int_val": shape}
    constant = {"dtype": whole, "value": attribute(tensor=value)}
    size = new.add(f"{stem}-Shape", "Const", (), constant, beside=beside, after=after)
    types = {"T": attribute(type=datatypes.FLOAT), "Tshape": whole}
    inputs = [tensor, (size, 0)]
    return new.add(stem, "Reshape", inputs, types, beside=beside), 0


def with_moves(
    form: Form,
    edits: Edits,
    models: Mapping[Node, Node],
    folded: Folded,
    new: Mapping[str, Node] = _NO_MODELS,
) -> Form:
    """Returns the form with the edits of some moves, and the shapes of what they move.

    Args:
        form: the form before.
        edits: the edits of the moves.
        models: nodes that change, each with a node whose result has its new shape.
        folded: the nodes with another meaning.
        new: the names of new nodes, each with a node of its shape.
    """
    view = form.view
    reops = []
    named = dict(new)
    for node, model in models.items():
        named[view.names[node]] = model
        if SHAPES_ATTR in view.protos[node].attr:
            shapes = view.protos[model].attr.get(SHAPES_ATTR) or attribute()
            reops.append(Reop(node, view.ops[node], {SHAPES_ATTR: shapes}))
    edits = dataclasses.replace(edits, reops=(*edits.reops, *reops))
    return form.then(edits, named, folded)


class _FoldSearch:
    """Collects the moves of a graph. A method that finds an obstacle does nothing.

    Attributes:
        biases: the BiasAdd nodes of convolutions that are scaled, each with its scaled bias.
    """

    def __init__(self, form: Form) -> None:
        self.biases: dict[Node, Tensor] = {}
        self._form = form
        self._view = form.view
        self._untouchable = kept_nodes(form)
        # The tensors that inputs read after the moves.
        self._inputs: dict[Reader, Tensor] = {}
        # Inputs that will read the value that a tensor has now, each with this tensor.
        self._values: dict[Reader, Tensor] = {}
        # Nodes that move, each with the node that will have its value.
        self._instead: dict[Node, Node] = {}
        # Sums that become a BiasAdd.
        self._biased: list[Node] = []
        # Sums that will add two biases, each with the node that gives the first bias.
        self._vectors: dict[Node, Node] = {}
        self._new = NewNodes(form.view, SUFFIX)
        # Products, each with the node that scales its filter.
        self._scales: dict[Node, Node] = {}
        # Products, each with the node that adds its own bias, or itself.
        self._tops: dict[Node, Node] = {}

    def run(self) -> None:
        """Finds all moves: first those of scales, then those of biases."""
        for product, op in enumerate(self._view.ops):
            if op in table.SCALABLE:
                self._fold_scale(product)
        for product in self._scales:
            self._fold_bias(product)

    def folded(self) -> Form:
        """Returns the form with all moves."""
        inputs = {}
        for place, (node, port) in self._values.items():
            inputs[place] = (self._value_of(node), port)
        inputs |= self._inputs
        for node in self._instead:
            for reader in self._view.readers(node):
                inputs.setdefault(reader, (self._value_of(node), 0))
        rewires = tuple(Rewire(*place, *source) for place, source in sorted(inputs.items()))
        of_bias = {"data_format": attribute(s=b"NHWC"), "N": None}
        biases = tuple(Reop(node, "BiasAdd", of_bias) for node in self._biased)
        new = []
        for added in self._new.nodes:
            read = tuple((self._value_of(node), port) for node, port in added.inputs)
            new.append(added._replace(inputs=read))
        models = dict(self._vectors)
        for product, scale in self._scales.items():
            models[scale] = self._view.inputs(product)[1][0]  # it has the filter's shape
        edits = Edits(biases, rewires=rewires, new=tuple(new))
        folded = Folded(frozenset(self._scales.values()))
        return with_moves(self._form, edits, models, folded, self._new.models)

    def _value_of(self, node: Node) -> Node:
        """Returns the node that will have a node's present value after the moves."""
        while node in self._instead:
            node = self._instead[node]
        return node

    def _fold_scale(self, product: Node) -> None:
        """Moves the multiplication of a convolution's result to its filter.

        The bias of the convolution is multiplied, too, if it has one.
        """
        view = self._view
        top = self._find_top(product)
        scale = view.only_reader(top)
        if scale is None or view.ops[scale] != "Mul":
            return
        if scale in self._scales.values():  # it multiplies the results of two convolutions
            return
        if not may_change(view, self._untouchable, product, top, scale):
            return
        position = [source for source, _ in view.inputs(scale)].index(top)
        vector = view.inputs(scale)[1 - position]
        filter_shape = self._scalable_filter(product, top, vector)
        if filter_shape is None:
            return
        factor = vector
        if table.SCALABLE[view.ops[product]]:
            if self._has_sum_too_many(scale, has_bias=top != product):
                return
            factor = _reshape(view, self._new, vector, filter_shape[2:], scale)
        self._instead[scale] = top
        self._inputs[scale, position] = view.inputs(product)[1]
        self._values[scale, 1 - position] = factor
        self._inputs[product, 1] = (scale, 0)
        self._scales[product] = scale
        self._tops[product] = top
        if top != product:
            self._scale_bias(top, vector)

    def _scalable_filter(self, product: Node, top: Node, vector: Tensor) -> Shape | None:
        """Returns the shape of a convolution's filter, or ``None`` if a vector must not scale it.

        Args:
            product: the convolution.
            top: the node that adds its own bias, or the convolution.
            vector: the tensor that multiplies the result of ``top``.
        """
        view = self._view
        kernel = view.inputs(product)[1]
        result = self._shape(product, 0)
        filter_shape = self._shape(*kernel)
        if not _is_known(result) or not _is_known(filter_shape):
            return None
        # A bias is scaled and joined with the other one, so then both have one dimension.
        has_bias = top != product
        if not _is_channel_vector(self._shape(*vector), result, rank=int(has_bias)):
            return None
        if has_bias and not _is_channel_vector(self._shape(*view.inputs(top)[1]), result, rank=1):
            return None
        if view.ops[kernel[0]] not in table.FILTER_SOURCES:
            return None
        if has_channels_first(view.protos[product].attr):
            return None
        if not _is_faster(result, filter_shape, self._form.job.resolution.costs):
            return None
        return filter_shape

    def _find_top(self, product: Node) -> Node:
        """Returns the BiasAdd that is the only reader of a convolution, or else the convolution."""
        view = self._view
        reader = view.only_reader(product)
        if reader is None or view.ops[reader] not in table.BIASES:
            return product
        is_bias = view.inputs(reader)[1][0] == product
        if is_bias or has_channels_first(view.protos[reader].attr):
            return product
        return reader

    def _scale_bias(self, top: Node, vector: Tensor) -> None:
        """Multiplies the bias that a BiasAdd reads by a vector, in a new node."""
        bias = self._view.inputs(top)[1]
        types = {"T": attribute(type=datatypes.FLOAT)}
        name = self._view.names[top]
        scaled = self._new.add(name, "Mul", [bias, vector], types, beside=top, model=bias[0])
        self._inputs[top, 1] = (scaled, 0)
        self.biases[top] = (scaled, 0)

    def _fold_bias(self, product: Node) -> None:
        """Turns the sum behind a scaled convolution into its bias.

        If a bias is there, the sum is added to it.
        """
        scale = self._scales[product]
        top = self._tops[product]
        result = self._shape(product, 0)
        first = self._view.only_reader(scale)
        if first is None or not self._is_sum(first):
            return
        if first in self._biased or first in self._vectors:
            return
        other = self._other_input(first, scale)
        if _is_channel_vector(self._shape(*other), result, rank=1):
            if product == top:
                self._make_bias(first, product, other)
            else:
                self._add_to_bias(first, product, other, top)
            return
        # A residual sum may stand between; then the second sum adds the bias.
        second = self._view.only_reader(first)
        if second is None or not self._is_sum(second) or second in self._vectors:
            return
        if self._shape(first, 0) != result or self._shape(*other) != result:
            return
        bias = self._other_input(second, first)
        if not _is_channel_vector(self._shape(*bias), result, rank=1):
            return
        if product != top:
            self._add_to_bias(second, product, bias, first)
            return
        place = self._view.inputs(second).index(bias)
        self._make_bias(first, product, bias)
        self._values[second, place] = other

    def _make_bias(self, node: Node, product: Node, bias: Tensor) -> None:
        """Turns a sum into the BiasAdd of a convolution's result."""
        self._inputs[node, 0] = (product, 0)
        self._inputs[node, 1] = bias
        self._biased.append(node)

    def _add_to_bias(self, node: Node, product: Node, bias: Tensor, before: Node) -> None:
        """Lets a sum add its bias to the one that a convolution has.

        The readers of the sum then read ``before``, whose result it added the bias to.
        """
        top = self._tops[product]
        self._inputs[node, 0] = self.biases[top]
        self._inputs[node, 1] = bias
        self._inputs[top, 1] = (node, 0)
        self._instead[node] = before
        self._vectors[node] = self._view.inputs(top)[1][0]

    def _has_sum_too_many(self, scale: Node, *, has_bias: bool) -> bool:
        """Tells whether a depthwise convolution may get both a bias and a residual sum.

        If it had both, TensorFlow's remapper would make a node without an op, and TensorFlow would
        then run the graph as it was before all optimizers.
        """
        for first in self._sums_behind(scale):
            if self._sums_behind(first):
                return True
            for source in self._view.inputs(first):
                if has_bias and source[0] != scale and len(self._shape(*source) or ()) != 1:
                    return True
        return False

    def _sums_behind(self, node: Node) -> list[Node]:
        readers = [reader for reader, _ in self._view.readers(node)]
        return [reader for reader in readers if self._view.ops[reader] in table.BIAS_SUMS]

    def _is_sum(self, node: Node) -> bool:
        """Tells whether a node adds two tensors, and may change."""
        if self._view.ops[node] not in table.BIAS_SUMS or len(self._view.inputs(node)) != 2:
            return False
        return may_change(self._view, self._untouchable, node)

    def _other_input(self, node: Node, known: Node) -> Tensor:
        first, second = self._view.inputs(node)
        return second if first[0] == known else first

    def _shape(self, node: Node, port: Port) -> Shape | None:
        return shape_of(self._form.shapes, self._view.names[node], port)


def _is_known(shape: Shape | None) -> TypeGuard[Shape]:
    """Tells whether a shape has four dimensions of known size; the first may be unknown."""
    return shape is not None and len(shape) == 4 and all(size >= 0 for size in shape[1:])


def _is_channel_vector(shape: Shape | None, result: Shape | None, rank: int = 0) -> bool:
    """Tells whether a tensor of this shape has one value for each output channel.

    The channels are last.

    Args:
        shape: the shape.
        result: the shape of the convolution's result.
        rank: the rank that it must have; any where it is 0.
    """
    if shape is None or not _is_known(result) or not 1 <= len(shape) <= 4:
        return False
    if rank and len(shape) != rank:
        return False
    return shape[-1] == result[-1] and set(shape[:-1]) <= {1}


def _is_faster(result: Shape, filter_shape: Shape, costs: CostTable) -> bool:
    """Tells whether two passes over the result take longer than one over the filter.

    An unknown batch counts as one example; if folding is faster for one, it is for every batch.
    """
    if filter_shape[0] < 0:
        return False
    elements = float(np.prod([max(result[0], 1), *result[1:]]))
    saved = sum(costs.of_op(op, elements)[0] for op in table.FOLDED_AWAY)
    return saved > costs.of_op("Mul", float(np.prod(filter_shape)))[0]
