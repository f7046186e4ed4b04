"""Merging: a product of many matrices becomes one large product, if only the results' sum is read.

The gradient of a weight that all examples of a batch share is such a sum. Keras' attention layers
multiply sequences by their weights as a BatchMatMulV2, so TensorFlow's gradient multiplies each
example's matrices, writes a matrix of the weight's size for each, and sums them. In 16 bit all
these matrices are cast to float32 besides, because sums are float32. The same numbers are the
product of two matrices in which the examples stand below each other:

    before:  BatchMatMulV2(x, dy; adj_x) → Sum over the examples
    after:   MatMul(Reshape x, Reshape dy; transpose_a)

where ``x`` is [examples, n, k] and ``dy`` [examples, n, m]. The product sums in float32 and rounds
once.

Done only where amp_tf chooses the precision, only in GraphDefs, and dropped where nothing becomes
16 bit. Refused: examples that may be broadcast, because their number is not known to be the same; a
product with another reader; control edges, preserved nodes and what the user's settings name.
"""

from __future__ import annotations

from typing import Any

from amp_tf.graph.attributes import value_of, whole_number
from amp_tf.graph.datatypes import Node
from amp_tf.graph.edits import Edits, NewNode, Reop, Tensor, attribute
from amp_tf.graph.names import FreshNames
from amp_tf.graph.sizes import SHAPES_ATTR, Shape, shape_of
from amp_tf.oplists.cost_tables import BATCHED
from amp_tf.rewriting.folding import kept_nodes, may_change, reshaping
from amp_tf.rewriting.form import Form

SUFFIX = "AmpTfMerge"  #: ends the names of new nodes
#: The attributes of a BatchMatMulV2 that a MatMul lacks.
_BATCHED_ONLY = ("adj_x", "adj_y", "grad_x", "grad_y")
#: The attributes of a Sum that an Identity lacks.
_SUM_ONLY = ("keep_dims", "Tidx")


def merge(form: Form) -> Form:
    """Merges all batched products of which only the sum over the examples is read."""
    view = form.view
    edges = view.edges
    is_sum = view.mask_with(("Sum",))
    summed = edges.at(view.mask_with(BATCHED)[edges.src_node] & is_sum[edges.dst_node])
    if not len(summed):
        return form
    kept = kept_nodes(form)
    merging = _Merging(form)
    for product, total in summed.rows("src_node", "dst_node"):
        if view.only_reader(product) is None:
            continue
        if may_change(view, kept, product, total) and _sums_examples(form, product, total):
            merging.merge(product, total)
    return form.then(merging.edits(), merging.models)


def _sums_examples(form: Form, product: Node, total: Node) -> bool:
    """Tells whether a product is ``x`` transposed times ``dy``, example by example, and ``total``
    the sum over the examples.
    """
    view = form.view
    proto = view.protos[product]
    if not value_of(proto, "adj_x").b or value_of(proto, "adj_y").b:
        return False
    if value_of(view.protos[total], "keep_dims").b:
        return False
    if not _is_first_axis(form, total):
        return False
    first, second = (
        shape_of(form.shapes, view.names[node], port) for node, port in view.inputs(product)
    )
    return _have_equal_examples(first, second)


def _is_first_axis(form: Form, total: Node) -> bool:
    """Tells whether a sum of three-dimensional values is over their first dimension.

    TensorFlow's gradient asks BroadcastGradientArgs for the dimensions that were broadcast: the
    first, where a weight has no examples. A single example may be left in the sum; then the Reshape
    to the weight's shape, which must be its only reader, takes it away.
    """
    view = form.view
    axis, port = view.inputs(total)[1]
    if view.ops[axis] != "BroadcastGradientArgs":
        return whole_number(view.protos[axis]) == 0
    reader = view.only_reader(total)
    if reader is None or view.ops[reader] != "Reshape":
        return False
    ranks = [shape_of(form.shapes, view.names[node], at) for node, at in view.inputs(axis)]
    return ranks[port] == (0,) and ranks[1 - port] == (1,)


def _have_equal_examples(first: Shape | None, second: Shape | None) -> bool:
    """Tells whether two tensors are [examples, n, …], alike but for a known last dimension.

    Grappler gives unknown dimensions numbers below -1; those that are equal have the same number.
    """
    if first is None or second is None or len(first) != 3 or len(second) != 3:
        return False
    if first[2] <= 0 or second[2] <= 0 or -1 in first:
        return False
    return first[:2] == second[:2]


class _Merging:
    """Collects the edits of all products.

    Attributes:
        models: by the name of each node that is new or has another shape, a node whose result has
            as many elements.
    """

    def __init__(self, form: Form) -> None:
        self.models: dict[str, Node] = {}
        self._form = form
        self._names = FreshNames(form.view.names, SUFFIX)
        self._reops: list[Reop] = []
        self._new: list[NewNode] = []
        self._rows: dict[Tensor, Tensor] = {}

    def edits(self) -> Edits:
        """What changes in the graph."""
        return Edits(reops=tuple(self._reops), new=tuple(self._new))

    def merge(self, product: Node, total: Node) -> None:
        """Makes a batched product one of two matrices, and the sum of its results an Identity."""
        view = self._form.view
        rows = tuple(self._as_rows(tensor) for tensor in view.inputs(product))
        attributes: dict[str, Any] = dict.fromkeys(_BATCHED_ONLY)
        attributes["transpose_a"] = attribute(b=True)
        attributes["transpose_b"] = attribute(b=False)
        attributes[SHAPES_ATTR] = view.protos[total].attr.get(SHAPES_ATTR)
        self._reops.append(Reop(product, "MatMul", attributes, rows))
        self._reops.append(Reop(total, "Identity", dict.fromkeys(_SUM_ONLY), ((product, 0),)))
        # The Reshape behind has a shape, too, where the dimensions of the sum are computed.
        readers = view.readers(total)
        is_known = shape_of(self._form.shapes, view.names[total]) is not None
        self.models[view.names[product]] = readers[0][0] if readers and not is_known else total

    def _as_rows(self, tensor: Tensor) -> Tensor:
        """Returns the tensor, [examples, n, k], as [examples · n, k]; made once for each tensor."""
        if tensor not in self._rows:
            view = self._form.view
            source, port = tensor
            shape = shape_of(self._form.shapes, view.names[source], port)
            assert shape is not None
            number = view.node_count + len(self._new)
            rows = (-1, shape[-1])
            self._new += reshaping(view, self._names, tensor, rows, source, number)
            if port == 0:
                self.models[self._new[-1].name] = source
            self._rows[tensor] = (number + 1, 0)
        return self._rows[tensor]
