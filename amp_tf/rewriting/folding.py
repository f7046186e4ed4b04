"""Moves what follows products to where TensorFlow computes it with them: normalization into
filters, biases up.

TensorFlow's remapper, which runs again after amp_tf, computes convolution, bias, a residual sum and
the activation in one kernel, and a matrix product with the bias and the activation directly behind
it.

*Folding*, for inference. Keras normalizes in inference as ``y * s + b`` with vectors of one value a
channel: two passes over the activations in float32. Where ``y`` is the result of a convolution that
nothing else reads, the scale is multiplied into the filter instead, ``conv(x, w) * s = conv(x, w *
s)``, and the sum becomes a BiasAdd. The multiplication node itself moves: it scales the filter, in
float32 and once a step. Training graphs are not touched, because the gradient of a learned scale
reads the convolution's result too. Where a residual sum stands between scale and bias, ``(y * s +
z) + b``, which TensorFlow's arithmetic optimizer makes of ``(y * s + b) + z``, the two sums change
places again.

The convolution may have a bias of its own, as Keras' layers have by default. It is scaled too, and
both biases become one: ``(conv(x, w) + c) * s + b = conv(x, w * s) + (c * s + b)``. The BiasAdd
stays, the sum of the normalization adds the two vectors, and one small multiplication is new. By
then TensorFlow's remapper has fused such a convolution with its bias; it is split first, and the
remapper, when it runs again, fuses it with both and the activation.

    before:  _FusedConv2D(x, w, c) → Mul s → AddV2 b → Relu
    after:   Conv2D(x, w * s) → BiasAdd (c * s + b) → Relu

It is faster where two float32 passes over the result cost more than one over the filter; an unknown
batch counts as one example. Refused: a filter that may be scaled already; a scale that comes from a
product, which may be scaled and move itself; a depthwise convolution with two sums behind its
scale, for which TensorFlow's remapper makes a node without an op; NCHW. FusedBatchNormV3 of older
Keras is left to the remapper.

*Lifting*. Keras 3 multiplies sequences as one large matrix, and adds the bias after reshaping the
result. A reshaping that keeps the last dimension and a bias along that dimension may change places:
each value gets the bias that it got. An exact Gelu moves with its bias as an activation does.

    before:  MatMul → Reshape → BiasAdd → Relu → …
    after:   MatMul → BiasAdd → Relu → Reshape → …

Refused: a bias along another dimension; an unknown last dimension. A bias with other readers is
lifted without its activation.

Both are done only where amp_tf chooses the precision, only in GraphDefs (XLA fuses by itself), and
dropped where nothing becomes 16 bit; a second rewrite finds nothing to do. Whatever is fused so is
free in the cost model and has the product's type. Both need shapes, and refuse a product or
reshaping with another reader, control edges, preserved nodes and what the user's settings name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeGuard

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import control_links
from amp_tf.graph.datatypes import Node, Port
from amp_tf.graph.edits import Edits, NewNode, Reop, Rewire, Tensor, attribute, having
from amp_tf.graph.names import FreshNames
from amp_tf.graph.sizes import SHAPES_ATTR, Shape, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.oplists.cost_tables import CostTable
from amp_tf.oplists.fusions import MATRIX_ACTIVATIONS, SPLIT_PRODUCTS
from amp_tf.oplists.kernels import has_channels_first
from amp_tf.painting.eligibility import Folded
from amp_tf.painting.remapper import find_gelus
from amp_tf.rewriting.form import Form
from amp_tf.rewriting.splitting import Part, parts_of, with_parts

SUFFIX = "AmpTfFold"  #: ends the names of new nodes
#: Fused products whose convolution can be scaled.
_SPLITTABLE = frozenset(
    fused for fused, product in SPLIT_PRODUCTS.items() if product.op in table.SCALABLE
)
_NO_MODELS: Mapping[str, Node] = MappingProxyType({})


def fold(form: Form) -> Form:
    """Folds all batch normalization for which it is right and pays."""
    view = form.view
    sources = view.mask_with({*table.SCALABLE, *table.BIASES, *_SPLITTABLE})
    readers = view.edges.dst_node[sources[view.edges.src_node]]
    if not view.mask_with(("Mul",))[readers].any():
        return form
    fused = _find_fused(form)
    search = _FoldSearch(with_parts(form, fused))
    search.run()
    folded = {node: parts for node, parts in fused.items() if node in search.biases}
    if len(folded) < len(fused):  # what is not folded stays fused
        search = _FoldSearch(with_parts(form, folded))
        search.run()
    return search.folded()


def _find_fused(form: Form) -> dict[Node, Sequence[Part]]:
    """The convolutions that are fused with a bias alone and that a multiplication alone reads, with
    their parts.
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


def _kept(form: Form) -> set[Node]:
    """The nodes that must stay where they are; who waits, and who is waited for, are among them."""
    return {*form.obstacles.rule_of, *form.obstacles.forced}.union(
        control_links(form.view).ravel().tolist()
    )


def _may_change(view: GraphView, kept: set[Node], *nodes: Node) -> bool:
    """Whether some nodes that give float32 on one device may change together."""
    types = {
        view.dtypes[view.base[node] + slot]
        for node in nodes
        for slot in view.signatures[node].outputs
    }
    return (
        types == {datatypes.FLOAT}
        and len({view.devices[node] for node in nodes}) == 1
        and kept.isdisjoint(nodes)
    )


def _then(
    form: Form,
    edits: Edits,
    models: Mapping[Node, Node],
    folded: Folded,
    new: Mapping[str, Node] = _NO_MODELS,
) -> Form:
    """The form with more edits, after which the results of some nodes, and new ones, have the
    shapes of others'.
    """
    view = form.view
    reops = [
        Reop(
            node,
            view.ops[node],
            {SHAPES_ATTR: view.protos[model].attr.get(SHAPES_ATTR) or attribute()},
        )
        for node, model in models.items()
        if SHAPES_ATTR in view.protos[node].attr
    ]
    of_names = {view.names[node]: model for node, model in models.items()} | dict(new)
    return form.then(dataclasses.replace(edits, reops=(*edits.reops, *reops)), of_names, folded)


class _FoldSearch:
    """Goes over the graph and collects the moves. Methods return nothing and do nothing where
    something is amiss.

    Attributes:
        biases: the BiasAdd nodes of convolutions that are scaled, each with its scaled bias.
    """

    def __init__(self, form: Form) -> None:
        self.biases: dict[Node, Tensor] = {}
        self._form, self._view = form, form.view
        self._untouchable = _kept(form)
        self._inputs: dict[tuple[Node, int], Tensor] = {}  # after the moves
        self._values: dict[
            tuple[Node, int], Tensor
        ] = {}  # tensors of before, whose values are read after the moves
        self._instead: dict[Node, Node] = {}  # nodes that moved, to those that have their value now
        self._biased: list[Node] = []  # sums that become BiasAdd
        self._vectors: dict[
            Node, Node
        ] = {}  # sums that add two biases now, each with where its first bias is from
        self._new: list[NewNode] = []
        self._models: dict[str, Node] = {}  # new nodes to nodes whose results have their shapes
        self._names = FreshNames(form.view.names, SUFFIX)
        self._scales: dict[Node, Node] = {}  # product to the node that scales its filter
        self._tops: dict[
            Node, Node
        ] = {}  # product to the node that gives its result with its own bias

    def run(self) -> None:
        """Finds all moves: of scales, then of biases."""
        for product, op in enumerate(self._view.ops):
            if op in table.SCALABLE:
                self._fold_scale(product)
        for product in self._scales:
            self._fold_bias(product)

    def folded(self) -> Form:
        """The form with all moves."""
        inputs = {
            place: (self._value_of(node), port) for place, (node, port) in self._values.items()
        }
        inputs |= self._inputs
        for node in self._instead:
            for reader in self._view.readers(node):
                inputs.setdefault(reader, (self._value_of(node), 0))
        rewires = tuple(Rewire(*place, *source) for place, source in sorted(inputs.items()))
        biases = (
            Reop(node, "BiasAdd", {"data_format": attribute(s=b"NHWC"), "N": None})
            for node in self._biased
        )
        # A scale has the shape of the filter afterwards.
        filters = {
            scale: self._view.inputs(product)[1][0] for product, scale in self._scales.items()
        }
        edits = Edits(tuple(biases), rewires=rewires, new=tuple(self._new))
        return _then(
            self._form, edits, filters | self._vectors, Folded(frozenset(filters)), self._models
        )

    def _value_of(self, node: Node) -> Node:
        """The node that gives, after the moves, the value that a node gave before."""
        while node in self._instead:
            node = self._instead[node]
        return node

    def _fold_scale(self, product: Node) -> None:
        """Moves the multiplication of a convolution's result to its filter, and to the bias before
        it.
        """
        top = self._find_top(product)
        scale = self._view.only_reader(top)
        if (
            scale is None
            or self._view.ops[scale] != "Mul"
            or not _may_change(self._view, self._untouchable, product, top, scale)
        ):
            return
        if scale in self._scales.values():
            # it multiplies the results of two convolutions, and scales the other one's filter
            return
        kernel = self._view.inputs(product)[1]
        position = [source for source, _ in self._view.inputs(scale)].index(top)
        vector = self._view.inputs(scale)[1 - position]
        result, filter_shape = self._shape(product, 0), self._shape(*kernel)
        if not _is_known(result, 4) or not _is_known(filter_shape, 4):
            return
        if not _is_channel_vector(self._shape(*vector), result, rank=0 if top == product else 1):
            return
        if self._view.ops[kernel[0]] not in table.FILTER_SOURCES or has_channels_first(
            self._view.protos[product].attr
        ):
            return
        if not _pays(result, filter_shape, self._form.job.resolution.costs):
            return
        if any(
            self._view.ops[source] in table.SCALABLE for source, _ in self._view.inputs(vector[0])
        ):
            return  # perhaps a scaled result too, which moves away
        if top != product:
            bias = self._view.inputs(top)[1]
            if not _is_channel_vector(self._shape(*bias), result, rank=1):
                return
        factor = vector
        if table.SCALABLE[self._view.ops[product]]:
            if self._has_sum_too_many(scale, has_bias=top != product):
                return
            factor = self._reshaped(vector, filter_shape[2:], scale)
        self._instead[scale] = top
        self._inputs[scale, position] = kernel
        self._inputs[scale, 1 - position] = factor
        self._inputs[product, 1] = (scale, 0)
        self._scales[product] = scale
        self._tops[product] = top
        if top != product:
            self._scale_bias(top, bias, vector)

    def _find_top(self, product: Node) -> Node:
        """The BiasAdd that alone reads a convolution's result; else the convolution."""
        reader = self._view.only_reader(product)
        if reader is None or self._view.ops[reader] not in table.BIASES:
            return product
        reads_bias = self._view.inputs(reader)[1][0] == product
        return (
            product if reads_bias or has_channels_first(self._view.protos[reader].attr) else reader
        )

    def _scale_bias(self, top: Node, bias: Tensor, vector: Tensor) -> None:
        """Multiplies the bias that a BiasAdd reads by a vector, in a new node."""
        name = self._names.make(self._view.names[top])
        number = self._view.node_count + len(self._new)
        types = having(T=attribute(type=datatypes.FLOAT))
        self._new.append(NewNode(name, "Mul", self._view.devices[top], (bias, vector), (), types))
        self._models[name] = bias[0]
        self._inputs[top, 1] = (number, 0)
        self.biases[top] = (number, 0)

    def _fold_bias(self, product: Node) -> None:
        """Makes the sum behind a convolution that was scaled its bias, or a part of that."""
        scale = self._scales[product]
        first = self._view.only_reader(scale)
        if (
            first is None
            or not self._is_sum(first)
            or first in self._biased
            or first in self._vectors
        ):
            return
        other = self._other_input(first, scale)
        if _is_channel_vector(self._shape(*other), self._shape(product, 0), rank=1):
            if product != self._tops[product]:
                self._add_to_bias(first, product, other, self._tops[product])
            else:
                self._make_bias(first, product, other)
            return
        second = self._view.only_reader(first)
        if (
            second is None
            or not self._is_sum(second)
            or self._shape(first, 0) != self._shape(product, 0)
        ):
            return
        bias = self._other_input(second, first)
        if (
            second in self._vectors
            or self._shape(*other) != self._shape(first, 0)
            or not _is_channel_vector(self._shape(*bias), self._shape(product, 0), rank=1)
        ):
            return
        if product != self._tops[product]:
            self._add_to_bias(second, product, bias, first)
            return
        place = self._view.inputs(second).index(bias)
        self._make_bias(first, product, bias)
        self._values[second, place] = other

    def _make_bias(self, node: Node, product: Node, bias: Tensor) -> None:
        """Has a sum add a bias to a convolution's result."""
        self._inputs[node, 0] = (product, 0)
        self._inputs[node, 1] = bias
        self._biased.append(node)

    def _add_to_bias(self, node: Node, product: Node, bias: Tensor, before: Node) -> None:
        """Has a sum add a bias to the one that a convolution has; its readers read what it added
        the bias to.
        """
        top = self._tops[product]
        self._inputs[node, 0] = self.biases[top]
        self._inputs[node, 1] = bias
        self._inputs[top, 1] = (node, 0)
        self._instead[node] = before
        self._vectors[node] = self._view.inputs(top)[1][0]

    def _reshaped(
        self, tensor: tuple[int, int], shape: tuple[int, ...], beside: int
    ) -> tuple[int, int]:
        view = self._view
        stem, device, number = (
            view.names[beside],
            view.devices[beside],
            view.node_count + len(self._new),
        )
        # Without a control input a constant stands outside the loop that the tensor may be in.
        after = () if table.LOOP_ENTRIES.isdisjoint(view.ops) else (tensor[0],)
        value, whole, real = (
            attribute(),
            attribute(type=datatypes.INT32),
            attribute(type=datatypes.FLOAT),
        )
        value.tensor.dtype = datatypes.INT32
        value.tensor.tensor_shape.dim.add().size = len(shape)
        value.tensor.int_val.extend(shape)
        const, types = having(dtype=whole, value=value), having(T=real, Tshape=whole)
        self._new.append(
            NewNode(self._names.make(f"{stem}-Shape"), "Const", device, (), after, const)
        )
        self._new.append(
            NewNode(self._names.make(stem), "Reshape", device, (tensor, (number, 0)), (), types)
        )
        return number + 1, 0

    def _has_sum_too_many(self, scale: Node, *, has_bias: bool) -> bool:
        """Whether a bias and a residual sum may follow a depthwise convolution once its scale is
        moved.

        For one with both, TensorFlow's remapper makes a node without an op, and the graph then runs
        as it was before all optimizers.
        """
        for first in self._sums_behind(scale):
            if self._sums_behind(first):
                return True
            shapes = [
                self._shape(*source) or ()
                for source in self._view.inputs(first)
                if source[0] != scale
            ]
            if has_bias and any(len(shape) != 1 for shape in shapes):
                return True
        return False

    def _sums_behind(self, node: Node) -> list[Node]:
        return [
            reader
            for reader, _ in self._view.readers(node)
            if self._view.ops[reader] in table.BIAS_SUMS
        ]

    def _is_sum(self, node: Node) -> bool:
        is_sum = self._view.ops[node] in table.BIAS_SUMS and len(self._view.inputs(node)) == 2
        return is_sum and _may_change(self._view, self._untouchable, node)

    def _other_input(self, node: Node, known: int) -> Tensor:
        first, second = self._view.inputs(node)
        return second if first[0] == known else first

    def _shape(self, node: Node, port: Port) -> Shape | None:
        return shape_of(self._form.shapes, self._view.names[node], port)


def _is_known(shape: Shape | None, rank: int) -> TypeGuard[Shape]:
    """Whether a shape has this rank and all its sizes are known, but perhaps the first."""
    return shape is not None and len(shape) == rank and all(size >= 0 for size in shape[1:])


def _is_channel_vector(shape: Shape | None, result: Shape | None, rank: int = 0) -> bool:
    """Whether a shape is that of one value for each channel of a convolution's result, channels
    last.
    """
    if shape is None or not _is_known(result, 4) or not 1 <= len(shape) <= 4:
        return False
    return shape[-1] == result[-1] and set(shape[:-1]) <= {1} and rank in (0, len(shape))


def _pays(result: Shape, filter_shape: Shape, costs: CostTable) -> bool:
    """Whether two passes over the result take longer than one over the filter.

    A batch that is not known counts as one example: then it pays for every batch.
    """
    if filter_shape[0] < 0:
        return False
    elements = float(np.prod([max(result[0], 1), *result[1:]]))
    saved = sum(costs.of_op(op, elements)[0] for op in table.FOLDED_AWAY)
    return saved > costs.of_op("Mul", float(np.prod(filter_shape)))[0]


def lift(form: Form) -> Form:
    """Lifts all biases for which it is right."""
    view, edges = form.view, form.view.edges
    is_product, is_reshaping, is_bias = map(
        view.mask_with, (table.MATRIX_PRODUCT, table.RESHAPING, table.BIASES)
    )
    first = edges.dst_position == 0
    behind = edges.at(first & is_product[edges.src_node] & is_reshaping[edges.dst_node])
    product_of = {reshaping: product for product, reshaping in behind.rows("src_node", "dst_node")}
    added = edges.at(first & is_reshaping[edges.src_node] & is_bias[edges.dst_node])
    pairs = [pair for pair in added.rows("src_node", "dst_node") if pair[0] in product_of]
    if not pairs:
        return form
    kept, gelus = _kept(form), {gelu.biased: gelu.nodes for gelu in find_gelus(view)}
    rewires: list[Rewire] = []
    models: dict[Node, Node] = {}
    for reshaping, bias in pairs:
        product = product_of[reshaping]
        before, after = (shape_of(form.shapes, view.names[node]) for node in (product, reshaping))
        if not before or not after or before[-1] != after[-1] or before[-1] <= 0:
            continue
        is_alone = all(view.only_reader(node) is not None for node in (product, reshaping))
        may_change = is_alone and _may_change(view, kept, product, reshaping, bias)
        if not may_change or has_channels_first(view.protos[bias].attr):
            continue
        readers = view.readers(bias)
        is_activation = len(readers) == 1 and view.ops[readers[0][0]] in MATRIX_ACTIVATIONS
        activation = [readers[0][0]] if is_activation else gelus.get(bias, [])
        followers = [bias, *(() if any(node in kept for node in activation) else activation)]
        rewires += [Rewire(bias, 0, product, 0), Rewire(reshaping, 0, followers[-1], 0)]
        rewires += [
            Rewire(node, position, reshaping, 0) for node, position in view.readers(followers[-1])
        ]
        models.update(dict.fromkeys(followers, product))
    folded = dataclasses.replace(form.folded, lifted=frozenset(models))
    return _then(form, Edits(rewires=tuple(rewires)), models, folded)
