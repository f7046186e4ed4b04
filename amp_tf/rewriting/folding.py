"""Folds batch normalization into the convolution before it, for inference.

Keras normalizes in inference as ``y * s + b`` with vectors of one value a channel, two passes over the activations in
float32. Where ``y`` is the result of a convolution that nobody else reads, the scale is multiplied into the filter
instead, ``conv(x, w) * s = conv(x, w * s)``, and the sum becomes a BiasAdd. TensorFlow's remapper, which runs after
amp_tf once more, then computes convolution, bias, a residual sum and the activation in one kernel.

The multiplication node itself moves: it scaled the result, now it scales the filter, in float32 and once a step. What
it read is read by others no more, so a training graph in which the scale is learned is not touched: there the gradient
reads the convolution's result too.

Where a residual sum stands between scale and bias, ``(y * s + z) + b``, which TensorFlow's arithmetic optimizer makes
of ``(y * s + b) + z``, the two sums change places again.

Names and counts stay; only depthwise filters get a Const and a Reshape. It is done only where amp_tf chooses the
precision, only in GraphDefs (XLA fuses by itself), and dropped where nothing becomes 16 bit. A filter is scaled once:
it must come from a variable, constant, argument, placeholder or Identity, which also makes the rewrite idempotent. It
pays where two float32 passes over the result cost more than one over the filter; an unknown batch counts as one
example, so that serving single examples never loses. Biases, residual sums and activations behind a fold are free in
the cost model and have the product's type, or the remapper cannot fuse.

Refused: another reader of the convolution, control edges, preserved nodes, wishes of the user, NCHW; a vector that
comes from a product as a scale, because that product's result may be scaled and move itself; a depthwise convolution
with two sums behind its scale, of which TensorFlow's remapper makes a node without an op. FusedBatchNormV3 of older
Keras is left to the remapper. A new constant in a graph with loops gets a control input from the tensor beside it, or
it would stand outside the loop's frame. All biases are found before what follows them, so the order of nodes does not
matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import TypeGuard

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import control_links
from amp_tf.graph.attributes import is_channels_last
from amp_tf.graph.datatypes import Node, Port
from amp_tf.graph.edits import Edits, NewNode, Reop, Rewire, attribute
from amp_tf.graph.names import FreshNames
from amp_tf.graph.sizes import SHAPES_ATTR, Shape, Shapes, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.cost_tables import CostTable
from amp_tf.oplists.fusions import FUSED_ACTIVATIONS
from amp_tf.oplists.table import BIAS_SUMS, FILTER_SOURCES, FOLDED_AWAY, LOOP_ENTRIES, SCALABLE
from amp_tf.painting.folded import Folded
from amp_tf.rewriting.form import Form, Job

SUFFIX = "AmpTfFold"  #: ends the names of new nodes


def fold(form: Form, job: Job) -> Form:
    """Folds all batch normalization for which it is right and pays; the form itself where there is none.

    Only where amp_tf chooses the precision: naming one means TensorFlow's own conversion. Without shapes nothing is
    folded.
    """
    if not job.resolution.uses_cost_model or not _has_candidates(form.view):
        return form
    obstacles = job.obstacles(form)
    search = _Search(form.view, form.shapes, {*obstacles.rule_of, *obstacles.forced}, job.resolution.costs)
    search.run()
    if not search.scales:
        return form
    folded = form.then(search.edits(), job.templates, search.resized())
    return dataclasses.replace(folded, folded=search.folded())


def _has_candidates(view: GraphView) -> bool:
    """Whether any convolution is read by a multiplication."""
    products = [node for node, op in enumerate(view.ops) if op in SCALABLE]
    if not products:
        return False
    readers = view.edges.dst_node[np.isin(view.edges.src_node, products)]
    return any(view.ops[reader] == "Mul" for reader in readers.tolist())


class _Search:
    """Goes over the graph and collects the moves. Methods return nothing and do nothing where something is amiss."""

    def __init__(self, view: GraphView, shapes: Shapes, kept: Collection[int], costs: CostTable) -> None:
        self._view = view
        self._shapes = shapes
        self._costs = costs
        self._untouchable = set(kept).union(*control_links(view))  # who waits, and who is waited for
        self._inputs: dict[tuple[int, int], tuple[int, int]] = {}  # after the moves
        self._biased: list[int] = []  # sums that become BiasAdd
        self._new: list[NewNode] = []
        self._names = FreshNames(view.names, SUFFIX)
        self._fused: set[int] = set()
        self._biases: list[int] = []  # the sums that add them, of those behind which the kernel may go on
        self.scales: dict[int, int] = {}  # product to the node that scales its filter

    def run(self) -> None:
        """Finds all moves: of scales, then of biases, then what follows these."""
        for product, op in enumerate(self._view.ops):
            if op in SCALABLE:
                self._fold_scale(product)
        for product in self.scales:
            self._fold_bias(product)
        for node in self._biases:  # once it is known which sums are biases
            self._follow(node)

    def edits(self) -> Edits:
        """What was found."""
        rewires = tuple(Rewire(*place, *source) for place, source in sorted(self._inputs.items()))
        biases = (Reop(node, "BiasAdd", {"data_format": attribute(s=b"NHWC"), "N": None}) for node in self._biased)
        return Edits((*biases, *self._reshapings()), rewires=rewires, new=tuple(self._new))

    def folded(self) -> Folded:
        """The nodes that the edits give another meaning."""
        return Folded(frozenset(self.scales.values()), frozenset(self._fused))

    def resized(self) -> dict[str, Sequence[Shape | None]]:
        """The shapes of the results that have another one afterwards: a scale has that of the filter."""
        names, shapes = self._view.names, self._shapes
        return {names[scale]: shapes.output_shapes(names[kernel]) for scale, kernel in self._kernels()}

    def _fold_scale(self, product: Node) -> None:
        """Moves the multiplication of a convolution's result to its filter."""
        scale = self._only_reader(product)
        if scale is None or self._view.ops[scale] != "Mul" or not self._may_change(product, scale):
            return
        if scale in self.scales.values():
            return  # it multiplies the results of two convolutions, and scales the other one's filter
        is_depthwise = SCALABLE[self._view.ops[product]]
        if is_depthwise and self._has_two_sums_behind(scale):
            return
        kernel = self._view.inputs(product)[1]
        position = [source for source, _ in self._view.inputs(scale)].index(product)
        vector = self._view.inputs(scale)[1 - position]
        result, filter_shape = self._shape(product, 0), self._shape(*kernel)
        if not _is_known(result, 4) or not _is_known(filter_shape, 4):
            return
        if not _is_channel_vector(self._shape(*vector), result):
            return
        if self._view.ops[kernel[0]] not in FILTER_SOURCES or not is_channels_last(self._view.protos[product]):
            return
        if not _pays(result, filter_shape, self._costs):
            return
        if any(self._view.ops[source] in SCALABLE for source, _ in self._view.inputs(vector[0])):
            return  # perhaps a scaled result too, which moves away
        if is_depthwise:
            vector = self._reshaped(vector, filter_shape[2:], scale)
        for reader, place in self._view.readers(scale):
            self._inputs[reader, place] = (product, 0)
        self._inputs[scale, position] = kernel
        self._inputs[scale, 1 - position] = vector
        self._inputs[product, 1] = (scale, 0)
        self.scales[product] = scale

    def _fold_bias(self, product: Node) -> None:
        """Makes the sum behind a convolution that was scaled a BiasAdd directly behind it."""
        scale = self.scales[product]
        first = self._only_reader(scale)
        if first is None or not self._is_sum(first) or first in self._fused:
            return
        other = self._other_input(first, scale)
        if _is_channel_vector(self._shape(*other), self._shape(product, 0), rank=1):
            self._make_bias(first, product, other)
            self._biases.append(first)
            return
        product_of = {node: number for number, node in self.scales.items()}
        moved = (product_of[other[0]], 0) if other[0] in product_of else other
        second = self._only_reader(first)
        if second is None or not self._is_sum(second) or self._shape(first, 0) != self._shape(product, 0):
            return
        bias = self._other_input(second, first)
        if self._shape(*other) == self._shape(first, 0) and _is_channel_vector(
            self._shape(*bias), self._shape(product, 0), rank=1
        ):
            place = self._view.inputs(second).index(bias)
            self._make_bias(first, product, bias)
            self._inputs[second, place] = moved
            self._fused.add(second)
            self._follow_activation(second)

    def _reshapings(self) -> Iterator[Reop]:
        """The shapes that scales carry themselves."""
        for scale, kernel in self._kernels():
            if SHAPES_ATTR in self._view.protos[scale].attr:
                shapes = self._view.protos[kernel].attr.get(SHAPES_ATTR) or attribute()
                yield Reop(scale, self._view.ops[scale], {SHAPES_ATTR: shapes})

    def _kernels(self) -> Iterator[tuple[int, int]]:
        """The scales, each with the node of the filter that it scales."""
        for product, scale in self.scales.items():
            yield scale, self._view.inputs(product)[1][0]

    def _make_bias(self, node: Node, product: Node, bias: tuple[int, int]) -> None:
        self._inputs[node, 0] = (product, 0)
        self._inputs[node, 1] = bias
        self._biased.append(node)
        self._fused.add(node)

    def _follow(self, node: Node) -> None:
        """Notes a residual sum and an activation behind a bias."""
        after = self._only_reader(node)
        if after is not None and self._is_sum(after) and after not in self._fused:
            other = self._other_input(after, node)
            if self._shape(*other) == self._shape(node, 0):
                self._fused.add(after)
                node = after
        self._follow_activation(node)

    def _follow_activation(self, node: Node) -> None:
        after = self._only_reader(node)
        if after is not None and self._view.ops[after] in FUSED_ACTIVATIONS:
            self._fused.add(after)

    def _reshaped(self, tensor: tuple[int, int], shape: tuple[int, ...], beside: int) -> tuple[int, int]:
        view = self._view
        stem, device = view.names[beside], view.devices[beside]
        # Without a control input a constant stands outside the loop that the tensor may be in.
        after = () if LOOP_ENTRIES.isdisjoint(view.ops) else (tensor[0],)
        number = view.node_count + len(self._new)
        self._new.append(NewNode.shape(self._names.make(f"{stem}-Shape"), shape, device, after))
        self._new.append(NewNode.reshape(self._names.make(stem), tensor, number, device))
        return number + 1, 0

    def _may_change(self, *nodes: int) -> bool:
        view = self._view
        types = {view.dtypes[unit] for node in nodes for unit in view.units(node)}
        devices = {view.devices[node] for node in nodes}
        return types == {datatypes.FLOAT} and len(devices) == 1 and self._untouchable.isdisjoint(nodes)

    def _has_two_sums_behind(self, node: Node) -> bool:
        """Whether a bias and a residual sum may follow.

        For a depthwise convolution with both, TensorFlow's remapper makes a node without an op, and the graph then runs
        as it was before all optimizers.
        """
        sums = [reader for reader, _ in self._view.readers(node) if self._view.ops[reader] in BIAS_SUMS]
        return any(self._view.ops[reader] in BIAS_SUMS for first in sums for reader, _ in self._view.readers(first))

    def _is_sum(self, node: Node) -> bool:
        return self._view.ops[node] in BIAS_SUMS and len(self._view.inputs(node)) == 2 and self._may_change(node)

    def _other_input(self, node: Node, known: int) -> tuple[int, int]:
        first, second = self._view.inputs(node)
        return second if first[0] == known else first

    def _only_reader(self, node: Node) -> int | None:
        return None if node in self._untouchable else self._view.only_reader(node)

    def _shape(self, node: Node, port: Port) -> Shape | None:
        return shape_of(self._shapes, self._view.names[node], port)


def _is_known(shape: Shape | None, rank: int) -> TypeGuard[Shape]:
    """Whether a shape has this rank and all its sizes are known, but perhaps the first."""
    return shape is not None and len(shape) == rank and all(size >= 0 for size in shape[1:])


def _is_channel_vector(shape: Shape | None, result: Shape | None, rank: int = 0) -> bool:
    """Whether a shape is that of one value for each channel of a convolution's result, channels last."""
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
    saved = sum(costs.of_op(op, elements)[0] for op in FOLDED_AWAY)
    return saved > costs.of_op("Mul", float(np.prod(filter_shape)))[0]
