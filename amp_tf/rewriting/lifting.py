"""Lifts a bias and its activation over the reshaping before them, so that TensorFlow computes them with the product.

Keras 3 multiplies sequences as one large matrix and adds the bias to what was shaped back. TensorFlow's remapper, which
runs after amp_tf once more, computes a bias with a product only directly behind it, and leaves a pass of its own over
the result, which takes 3 to 7 % of the kernels' time in the inference of transformers and mixers (``python -m
benchmarks.step_time.profile mlp_mixer --way predict``).

    before:  MatMul → Reshape → BiasAdd → Relu → …
    after:   MatMul → BiasAdd → Relu → Reshape → …

An exact Gelu (:mod:`amp_tf.painting.gelus`), five nodes that all keep the shape, goes with its bias as an activation
does.

A reshaping that keeps the last dimension and a bias along that dimension may change places: each value gets what it
got. No node comes or goes, and none changes its name, type or op. As folding (:mod:`amp_tf.rewriting.folding`) it is
done only where amp_tf chooses the precision, only in GraphDefs, and dropped where nothing becomes 16 bit. What was
lifted costs nothing in the cost model and has the product's type, or the remapper cannot fuse. A second rewrite finds
nothing to lift.

Refused: another reader of the product or the reshaping; control edges, preserved nodes, wishes of the user; a bias
along another dimension; a last dimension that is unknown. A bias that others read too is lifted without its activation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import control_links
from amp_tf.graph.attributes import is_channels_last
from amp_tf.graph.datatypes import Node
from amp_tf.graph.edits import Edits, Reop, Rewire, attribute
from amp_tf.graph.sizes import SHAPES_ATTR, Shape, Shapes, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.fusions import MATRIX_ACTIVATIONS
from amp_tf.oplists.table import BIASES, MATRIX_PRODUCT, RESHAPING
from amp_tf.painting.gelus import find_gelus
from amp_tf.rewriting.form import Form, Job


def lift(form: Form, job: Job) -> Form:
    """Lifts all biases for which it is right; the form itself where there is none.

    Only where amp_tf chooses the precision: naming one means TensorFlow's own conversion. Without shapes nothing is
    lifted.
    """
    if not job.resolution.uses_cost_model:
        return form
    candidates = _find_candidates(form.view)
    if not candidates:
        return form
    gelus = {gelu.biased: gelu.nodes for gelu in find_gelus(form.view)}
    obstacles = job.obstacles(form)
    kept = {*obstacles.rule_of, *obstacles.forced}.union(*control_links(form.view))
    moves = [move for nodes in candidates if (move := _move(form.view, form.shapes, kept, gelus, *nodes))]
    if not moves:
        return form
    lifted = form.then(_edits(form.view, moves), job.templates, _resized(form.view, form.shapes, moves))
    over = frozenset(node for move in moves for node in move.followers)
    return dataclasses.replace(lifted, folded=dataclasses.replace(form.folded, lifted=over))


@dataclasses.dataclass(frozen=True)
class _Move:
    """A product, the reshaping behind it, and the bias, perhaps with an activation, that will stand between them.

    Nothing but the followers reads a follower, but for the last.
    """

    product: Node
    reshaping: Node
    followers: Sequence[Node]
    readers: Sequence[tuple[Node, int]]  # of the last follower: nodes, and the numbers of their inputs


def _find_candidates(view: GraphView) -> list[tuple[Node, Node, Node]]:
    """Products, reshapings that read them, and biases that are added to these."""
    edges = view.edges
    is_product, is_reshaping, is_bias = map(view.mask_with, (MATRIX_PRODUCT, RESHAPING, BIASES))
    first = edges.dst_position == 0
    behind = edges.at(first & is_product[edges.src_node] & is_reshaping[edges.dst_node])
    product_of = {reshaping: product for product, reshaping in behind.rows("src_node", "dst_node")}
    added = edges.at(first & is_reshaping[edges.src_node] & is_bias[edges.dst_node])
    pairs = added.rows("src_node", "dst_node")
    return [(product_of[reshaping], reshaping, bias) for reshaping, bias in pairs if reshaping in product_of]


def _move(
    view: GraphView,
    shapes: Shapes,
    kept: Container[Node],
    gelus: Mapping[Node, Sequence[Node]],
    product: Node,
    reshaping: Node,
    bias: Node,
) -> _Move | None:
    nodes = (product, reshaping, bias)
    before, after = (shape_of(shapes, view.names[node]) for node in (product, reshaping))
    if any(node in kept for node in nodes) or any(view.only_reader(node) is None for node in (product, reshaping)):
        return None
    types = {view.dtypes[view.base[node] + slot] for node in nodes for slot in view.signatures[node].outputs}
    if types != {datatypes.FLOAT} or len({view.devices[node] for node in nodes}) != 1:
        return None
    if not before or not after or before[-1] != after[-1] or before[-1] <= 0 or not is_channels_last(view.protos[bias]):
        return None
    readers = view.readers(bias)
    is_activation = len(readers) == 1 and view.ops[readers[0][0]] in MATRIX_ACTIVATIONS
    activation = [readers[0][0]] if is_activation else gelus.get(bias, [])
    if any(node in kept for node in activation):
        activation = []
    followers = [bias, *activation]
    return _Move(product, reshaping, followers, view.readers(followers[-1]))


def _edits(view: GraphView, moves: Sequence[_Move]) -> Edits:
    rewires: list[Rewire] = []
    for move in moves:
        rewires.append(Rewire(move.followers[0], 0, move.product, 0))
        rewires.append(Rewire(move.reshaping, 0, move.followers[-1], 0))
        rewires += [Rewire(node, position, move.reshaping, 0) for node, position in move.readers]
    return Edits(tuple(_reshapings(view, moves)), rewires=tuple(rewires))


def _reshapings(view: GraphView, moves: Sequence[_Move]) -> Iterator[Reop]:
    """The shapes that followers carry themselves."""
    for move in moves:
        for node in move.followers:
            if SHAPES_ATTR in view.protos[node].attr:
                shapes = view.protos[move.product].attr.get(SHAPES_ATTR) or attribute()
                yield Reop(node, view.ops[node], {SHAPES_ATTR: shapes})


def _resized(view: GraphView, shapes: Shapes, moves: Sequence[_Move]) -> dict[str, Sequence[Shape | None]]:
    """The shapes of the results that have another one afterwards: a follower has that of the product."""
    names = view.names
    return {names[node]: shapes.output_shapes(names[move.product]) for move in moves for node in move.followers}
