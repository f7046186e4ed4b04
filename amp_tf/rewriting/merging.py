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

from collections.abc import Mapping
from typing import Any

from amp_tf.graph.attributes import value_of, whole_number
from amp_tf.graph.datatypes import Node
from amp_tf.graph.edits import Edits, Reop, Tensor, attribute
from amp_tf.graph.sizes import SHAPES_ATTR, Shape, shape_of
from amp_tf.oplists.cost_tables import BATCHED
from amp_tf.rewriting.folding import kept_nodes, may_change, reshape
from amp_tf.rewriting.form import Form, NewNodes

SUFFIX = "AmpTfMerge"  #: ends the names of new nodes
#: The attributes of the product of matrices; those of a BatchMatMulV2 that it lacks go.
_OF_MATRICES: Mapping[str, Any] = {
    **dict.fromkeys(("adj_x", "adj_y", "grad_x", "grad_y")),
    "transpose_a": attribute(b=True),
    "transpose_b": attribute(b=False),
}
#: The attributes of a Sum that an Identity lacks.
_SUM_ONLY = ("keep_dims", "Tidx")


def merge(form: Form) -> Form:
    """Merges all batched products of which only the sum over the examples is read."""
    view = form.view
    summed = []
    for total in view.nodes_with(("Sum",)):
        product, _ = view.inputs(total)[0]
        if view.ops[product] in BATCHED:
            summed.append((product, total))
    if not summed:
        return form
    kept = kept_nodes(form)
    new = NewNodes(view, SUFFIX)
    rows: dict[Tensor, Tensor] = {}  # by the tensor of which they are made
    reops: list[Reop] = []
    # Nodes that give another shape, each with a node whose result has as many elements.
    models: dict[str, Node] = {}
    for product, total in summed:
        if view.only_reader(product) is None or not may_change(view, kept, product, total):
            continue
        if not _sums_examples(form, product, total):
            continue
        for tensor in view.inputs(product):
            if tensor not in rows:
                rows[tensor] = _as_rows(form, new, tensor)
        inputs = tuple(rows[tensor] for tensor in view.inputs(product))
        shapes = view.protos[total].attr.get(SHAPES_ATTR)
        reops.append(Reop(product, "MatMul", {**_OF_MATRICES, SHAPES_ATTR: shapes}, inputs))
        reops.append(Reop(total, "Identity", dict.fromkeys(_SUM_ONLY), ((product, 0),)))
        # The Reshape behind has a shape, too, where the dimensions of the sum are computed.
        model = total
        readers = view.readers(total)
        if readers and shape_of(form.shapes, view.names[total]) is None:
            model, _ = readers[0]
        models[view.names[product]] = model
    edits = Edits(reops=tuple(reops), new=tuple(new.nodes))
    return form.then(edits, {**models, **new.models})


def _as_rows(form: Form, new: NewNodes, tensor: Tensor) -> Tensor:
    """Returns a tensor, [examples, n, k], as [examples · n, k]."""
    source, port = tensor
    shape = shape_of(form.shapes, form.view.names[source], port)
    assert shape is not None
    model = source if port == 0 else None
    return reshape(form.view, new, tensor, (-1, shape[-1]), source, model)


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
