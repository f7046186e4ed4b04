"""Where 16-bit kernels are slow, or fast only together: what the kernels of a CPU ask of the paint."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Container, Iterator, Mapping

import numpy as np

from amp_tf.graph.datatypes import Mask, Node
from amp_tf.graph.sizes import Shape, Shapes
from amp_tf.graph.view import Edges, GraphView
from amp_tf.oplists import costs, fusions
from amp_tf.oplists.table import BIASES, MATRIX_PRODUCT, SQUEEZING
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.gelus import find_gelus
from amp_tf.painting.prices import input_shapes
from amp_tf.painting.reasons import FORCED, Rule
from amp_tf.painting.work import filter_shape

_UNMATCHED = "a pooling or normalization and its gradient are slow in two types, and one of them stays in float32"


def drop_slow_kernels(canvas: Canvas, shapes: Shapes) -> None:
    """Leaves in float32 what has a 16-bit kernel that never pays."""
    view = canvas.view

    def kernel(node: int) -> Shape | None:
        return filter_shape(view.ops[node], input_shapes(view, node, shapes), shapes.output_shapes(view.names[node]))

    for row in costs.SLOW_KERNELS:
        of_op = [node for node, op in enumerate(view.ops) if op == row.op]
        nodes = [node for node in of_op if row.applies(view.protos[node], kernel(node))]
        units = [unit for node in nodes for unit in view.units(node) if canvas.allow[unit]]
        units = [unit for unit in units if canvas.rule[unit] not in FORCED]
        canvas.unpaint_allow(units, Rule.DOES_NOT_PAY)
        canvas.weighed.update(dict.fromkeys(units, row.why))


def kernel_pairs(canvas: Canvas) -> Iterator[list[int]]:
    """The units of gradient ops and of their forward ops that are fast only if they have one type."""
    view = canvas.view
    edges = _edges_into(view, costs.KERNEL_PAIRS)
    for source, node, position in edges.rows("src_node", "dst_node", "dst_position"):
        pair = costs.KERNEL_PAIRS.get(view.ops[node])
        if pair == (view.ops[source], position):
            first, second = view.signatures[source].outputs[0], view.signatures[node].outputs[0]
            yield [view.base[source] + first, view.base[node] + second]


def drop_unmatched_pairs(canvas: Canvas) -> None:
    """Leaves a forward op or gradient op in float32 where the other of the two stays there.

    Their 16-bit kernels are fast only together.
    """
    for pair in kernel_pairs(canvas):
        painted = [unit for unit in pair if canvas.allow[unit] and canvas.rule[unit] not in FORCED]
        if len(painted) == 1 and not all(canvas.allow[unit] for unit in pair):
            canvas.unpaint_allow(painted, Rule.DOES_NOT_PAY)
            canvas.weighed.update(dict.fromkeys(painted, _UNMATCHED))


def fused_with_products(canvas: Canvas) -> dict[int, int]:
    """The painted units of ops that TensorFlow computes together with a painted product, each with one of the product.

    They cost nothing of their own, if both have one type.
    """
    return _painted(canvas, computed_with_products)


def fused_with_gradients(canvas: Canvas) -> dict[int, int]:
    """Those of them that are computed with the gradient of a filter."""
    return _painted(canvas, lambda view, is_f16: dict(_beside_products(view, is_f16)))


def _painted(canvas: Canvas, find: Callable[[GraphView, Mask], Mapping[Node, Node]]) -> dict[int, int]:
    view = canvas.view
    is_f16 = np.zeros(view.node_count, np.bool_)
    is_f16[np.asarray(canvas.node_of, np.int32)[np.flatnonzero(canvas.allow)]] = True
    pairs = find(view, is_f16)
    first = {node: next(iter(view.units(node))) for pair in pairs.items() for node in pair if is_f16[node]}
    return {first[node]: first[product] for node, product in pairs.items() if node in first}


def computed_with_products(view: GraphView, is_f16: Mask) -> dict[Node, Node]:
    """The nodes that TensorFlow computes together with a product, each with the product.

    Those are bias gradients that read what a filter gradient reads, and biases and activations behind a product. Where
    something else reads what lies between, where one of them waits for something, and where they do not have one type,
    they are computed alone. (So they are where something waits for one of them, which is not asked: it is rare, and to
    read all control edges takes a sixth of a rewrite.)

    Args:
        view: the graph.
        is_f16: the nodes that are 16 bit.

    Sources of the patterns (TensorFlow 2.21): ``MergeConv2DBackpropFilterWithBiasAddGrad`` of
    core/common_runtime/mkl_layout_pass.cc; ``FindContractionWithBias``, ``FindContractionWithBiasAndActivation``,
    ``FindMatMulBiasAddAndGelu`` and ``FindConv2DWithSqueezeAndBias`` of core/grappler/optimizers/remapper.cc.
    """
    return dict(itertools.chain(_beside_products(view, is_f16), _behind_products(view, is_f16)))


def _beside_products(view: GraphView, is_f16: Mask) -> Iterator[tuple[Node, Node]]:
    """The nodes of :data:`fusions.FUSED_WITH` and the products that read the same tensor."""
    if not any(op in view.ops for op in fusions.FUSED_WITH):
        return
    products = set(fusions.FUSED_WITH.values())
    edges = _edges_into(view, {*fusions.FUSED_WITH, *(product for product, _ in products)})
    read_by: dict[tuple[str, int, Node, int, bool], Node] = {}
    beside: list[tuple[Node, Node, int]] = []
    for source, port, node, position in edges.rows("src_node", "src_port", "dst_node", "dst_position"):
        op = view.ops[node]
        if (op, position) in products:
            read_by[op, position, source, port, is_f16[node]] = node
        elif op in fusions.FUSED_WITH:
            beside.append((node, source, port))
    for node, source, port in beside:
        product = read_by.get((*fusions.FUSED_WITH[view.ops[node]], source, port, is_f16[node]))
        if product is not None:
            yield node, product


def _behind_products(view: GraphView, is_f16: Mask) -> Iterator[tuple[Node, Node]]:
    """Biases that are added to a product, and the activations of these, each with the product."""
    yield from _gelus(view, is_f16)
    if not any(op in view.ops for op in BIASES):
        return
    edges = view.edges
    may_lie_between = np.bincount(edges.src_node, minlength=view.node_count) == 1
    has_one_type = is_f16[edges.src_node] == is_f16[edges.dst_node]
    edges = edges.at((edges.dst_position == 0) & may_lie_between[edges.src_node] & has_one_type)

    waits = functools.cache(functools.partial(_waits, view))

    def behind(sources: Container[Node], ops: Container[str]) -> dict[Node, Node]:
        """The nodes of some ops that alone read one of the sources, each with it."""
        rows = edges.at(view.mask_with(ops)[edges.dst_node]).rows("src_node", "dst_node")
        found = ((source, node) for source, node in rows if source in sources)
        return {node: source for source, node in found if not (waits(source) or waits(node))}

    for fusion in fusions.FUSIONS:
        if not fusion.activations or not (products := {*view.nodes_with({fusion.product.op})}):
            continue
        biases = behind(products, BIASES)
        yield from biases.items()
        yield from ((node, biases[bias]) for node, bias in behind(biases, fusion.activations).items())
        squeezed = behind(products, SQUEEZING) if fusion.squeezed else {}
        yield from ((bias, squeezed[squeeze]) for bias, squeeze in behind(squeezed, BIASES).items())


def _gelus(view: GraphView, is_f16: Mask) -> Iterator[tuple[Node, Node]]:
    """The nodes of Gelus behind a product of matrices and its bias, each with the product."""
    for gelu in find_gelus(view):
        product = gelu.biased
        if view.ops[product] in BIASES:
            product = view.inputs(product)[0][0]
            is_alone = np.count_nonzero(view.edges.src_node == product) == 1
            if (
                not is_alone or view.ops[product] not in MATRIX_PRODUCT
            ):  # it may be an argument, which has no attributes
                continue
        attributes = view.protos[product].attr
        fused, transposed = attributes.get("fused_ops"), attributes.get("transpose_a")
        if fused is not None and fused.list.s != [b"BiasAdd"]:
            continue
        if transposed is not None and transposed.b:  # TensorFlow has no such kernel
            continue
        nodes = [product, gelu.biased, *gelu.nodes]
        if is_f16[nodes].min() == is_f16[nodes].max() and not any(_waits(view, node) for node in nodes):
            yield from ((node, product) for node in gelu.nodes)


def _waits(view: GraphView, node: Node) -> bool:
    """Whether a node waits for something besides what it reads."""
    return any(name.startswith("^") for name in view.protos[node].input)


def _edges_into(view: GraphView, ops: Container[str]) -> Edges:
    """The edges that go to nodes of some ops."""
    return view.edges.at(view.mask_with(ops)[view.edges.dst_node])
