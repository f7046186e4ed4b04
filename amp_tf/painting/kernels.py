"""What kernels do with a type: those that lose more than a rounding, and those that compute several
nodes at once.

*Inexact kernels.* A sum that is kept in the 16-bit type stops growing: 256 and 1 are 256 in
bfloat16. Elu and Selu compute exp(x) - 1 in 16 bit, LogSoftmax the logarithm of a sum that is
rounded to 1. ``tests/oplists/test_kernel_accuracy.py`` asks all elementwise kernels for every
number: no other that may be 16 bit loses more than 8 units on CPUs.

*Gelus.* ``tf.nn.gelu`` makes five nodes (with an Erf in TensorFlow 2.16, with an Erfc later), or
nine where it approximates. With the type of the product before them they cost nothing, because
oneDNN's kernel computes them in float32, before it rounds once; without oneDNN, or with the
remapper off, they round five or nine times instead.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from amp_tf.graph.attributes import floats
from amp_tf.graph.datatypes import Mask, Node
from amp_tf.graph.sizes import Shapes
from amp_tf.graph.view import Edges, GraphView
from amp_tf.oplists import fusions, table
from amp_tf.oplists.targets import CPU_DEVICE, Target
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.reasons import Rule
from amp_tf.painting.work import input_shapes

_LONGEST_GELU = 9  #: nodes


#: Ops whose 16-bit kernels lose more than a rounding, what they lose, and for which targets.
INEXACT: tuple[tuple[frozenset[str], Rule, Callable[[Target], bool]], ...] = (
    (table.SUMS_IN_ITS_TYPE, Rule.SUMS, lambda target: target.device_type == CPU_DEVICE),
    # On CPUs the kernel of AvgPool has a sum of float32 where it is oneDNN's: for bfloat16, and on
    # some CPUs alone.
    (table.SUMS_IN_EIGEN, Rule.SUMS, lambda target: target.runs_eigen),
    (table.INACCURATE, Rule.INACCURATE, lambda _: True),
)


def take_inexact_off_lists(canvas: Canvas) -> None:
    """Takes ops off their list whose 16-bit kernels lose more than one rounding, and exponentials
    of values up to zero.

    Such an exponential lies between zero and one, and may be rounded once. It is computed in
    float32, and what uses it is judged without it. So the gradient of an exact Gelu, the sum of one
    by the error function and one by the input, may be 16 bit as its products are.

    Difference "inexact-kernel": TensorFlow has ScatterNd among the ops that move values, AvgPool,
    Elu, Selu and LogSoftmax on its infer list, and all exponentials on its deny list, for the
    range. In bfloat16 the Elu of -1e-4 is 0, and so is the logarithm of a probability of 0.996.

    Example (bfloat16)::

        allow1 = MatMul(x, x)                                  f16
        sums = ScatterNd(cells, allow1, shape) Tindices=int32  f16 → float32
        allow2 = MatMul(sums, x)                               f16
        elu1 = Elu(allow2)                                     f16 → float32
        allow3 = MatMul(elu1, x)                               f16

    Example (bfloat16)::

        allow1 = MatMul(x, x)          f16
        square = Square(x)
        negative = Neg(square)
        bounded = Exp(negative)
        infer1 = Mul(allow1, bounded)  float32 → f16
        infer2 = Mul(infer1, x)        float32 → f16
        allow2 = MatMul(infer2, x)     f16
    """
    view, edges = canvas.view, canvas.view.edges
    for ops, reason, applies in INEXACT:
        if applies(canvas.target):
            listed = canvas.on_clear | canvas.on_infer
            units = [unit for unit in canvas.float32_units(view.nodes_with(ops)) if listed[unit]]
            canvas.on_clear[units] = canvas.on_infer[units] = 0
            canvas.rule[units] = reason
    unsigned, negative = view.mask_with(table.UNSIGNED), view.mask_with(("Neg",))
    negative[edges.dst_node[negative[edges.dst_node] & ~unsigned[edges.src_node]]] = False
    bounded = view.mask_with(("Exp",))[edges.dst_node] & negative[edges.src_node]
    canvas.on_deny[edges.dst_unit[bounded]] = 0


def computed_with_products(view: GraphView, is_f16: Mask, shapes: Shapes) -> dict[Node, Node]:
    """The nodes that TensorFlow computes together with a product, each with the product.

    Those are bias gradients that read what a filter gradient reads, and biases, residual sums and
    activations behind a product. Where something else reads what lies between, where one of them
    waits for something, and where they do not have one type, they are computed alone. (So they are
    where something waits for one of them, which is not asked: it is rare, and to read all control
    edges takes a sixth of a rewrite.)

    Sources of the patterns (TensorFlow 2.21): ``MergeConv2DBackpropFilterWithBiasAddGrad`` of
    core/common_runtime/mkl_layout_pass.cc; ``FindContractionWithBias``,
    ``FindContractionWithBiasAndActivation``, ``FindContractionWithBiasAddAndAdd``,
    ``FindContractionWithBiasAndAddActivation``, ``FindMatMulBiasAddAndGelu`` and
    ``FindConv2DWithSqueezeAndBias`` of core/grappler/optimizers/remapper.cc.
    """
    return dict(
        itertools.chain(beside_products(view, is_f16), _behind_products(view, is_f16, shapes))
    )


def beside_products(view: GraphView, is_f16: Mask) -> Iterator[tuple[Node, Node]]:
    """The nodes of :data:`fusions.FUSED_WITH` and the products that read the same tensor."""
    if not any(op in view.ops for op in fusions.FUSED_WITH):
        return
    columns = "src_node", "src_port", "dst_node", "dst_position"
    for op, (product, place) in fusions.FUSED_WITH.items():
        rows = _edges_into(view, {product}).rows(*columns)
        read_by = {
            (source, port, is_f16[node]): node
            for source, port, node, position in rows
            if position == place
        }
        for source, port, node, _ in _edges_into(view, {op}).rows(*columns):
            if (source, port, is_f16[node]) in read_by:
                yield node, read_by[source, port, is_f16[node]]


def _behind_products(view: GraphView, is_f16: Mask, shapes: Shapes) -> Iterator[tuple[Node, Node]]:
    """Biases that are added to a product, what is added to these, and the activations behind, each
    with the product.
    """
    yield from _gelus(view, is_f16)
    if not any(op in view.ops for op in table.BIASES):
        return
    edges = view.edges
    may_lie_between = np.bincount(edges.src_node, minlength=view.node_count) == 1
    has_one_type = is_f16[edges.src_node] == is_f16[edges.dst_node]
    edges = edges.at(may_lie_between[edges.src_node] & has_one_type)
    waits = functools.cache(functools.partial(_waits, view))

    def behind(
        sources: Container[Node], ops: Container[str], position: int = 0
    ) -> dict[Node, Node]:
        """The nodes of some ops that alone read one of the sources, each with it."""
        rows = edges.at(view.mask_with(ops)[edges.dst_node] & (edges.dst_position == position))
        found = (
            (source, node)
            for source, node in rows.rows("src_node", "dst_node")
            if source in sources
        )
        return {node: source for source, node in found if not (waits(source) or waits(node))}

    for fusion in fusions.FUSIONS:
        if not fusion.activations or not (products := {*view.nodes_with({fusion.product.op})}):
            continue
        found = behind(products, table.BIASES)
        sums = behind(found, fusion.sums, 1) | behind(found, fusion.sums)
        found |= {
            node: found[bias] for node, bias in sums.items() if _is_of_one_shape(view, node, shapes)
        }
        yield from found.items()
        yield from (
            (node, found[before]) for node, before in behind(found, fusion.activations).items()
        )
        squeezed = behind(products, table.SQUEEZING) if fusion.squeezed else {}
        yield from (
            (bias, squeezed[squeeze]) for bias, squeeze in behind(squeezed, table.BIASES).items()
        )


def _is_of_one_shape(view: GraphView, node: Node, shapes: Shapes) -> bool:
    """Whether a node reads two values of the same shape."""
    first, *others = input_shapes(view, node, shapes)
    return first is not None and others == [first]


def _gelus(view: GraphView, is_f16: Mask) -> Iterator[tuple[Node, Node]]:
    """The nodes of Gelus behind a product of matrices and its bias, each with the product."""
    for gelu in find_gelus(view):
        product = gelu.biased
        if view.ops[product] in table.BIASES:
            product = view.inputs(product)[0][0]
            is_alone = np.count_nonzero(view.edges.src_node == product) == 1
            if (
                not is_alone or view.ops[product] not in table.MATRIX_PRODUCT
            ):  # an argument has no attributes
                continue
        attributes = view.protos[product].attr
        fused, transposed = attributes.get("fused_ops"), attributes.get("transpose_a")
        if fused is not None and fused.list.s != [b"BiasAdd"]:
            continue
        if transposed is not None and transposed.b:  # TensorFlow has no such kernel
            continue
        nodes = [product, gelu.biased, *gelu.nodes]
        if is_f16[nodes].min() == is_f16[nodes].max() and not any(
            _waits(view, node) for node in nodes
        ):
            yield from ((node, product) for node in gelu.nodes)


def _waits(view: GraphView, node: Node) -> bool:
    """Whether a node waits for something besides what it reads."""
    return any(name.startswith("^") for name in view.protos[node].input)


def _edges_into(view: GraphView, ops: Container[str]) -> Edges:
    return view.edges.at(view.mask_with(ops)[view.edges.dst_node])


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
    """The Gelus of biased values where nothing else reads what is biased or what lies within; a
    gradient reads both.

    Source of the patterns: ``FindMatMulBiasAddAndGelu`` of core/grappler/optimizers/remapper.cc
    (TensorFlow 2.21).
    """
    parts, constants = view.mask_with(fusions.GELU_PARTS), view.mask_with(("Const",))
    for biased in (
        view.nodes_with(set(fusions.GELUS.values())) if view.nodes_with(fusions.GELU_CORES) else ()
    ):
        found, terms = [biased], list[str]()
        ready = [reader for reader, _ in view.readers(biased)]
        while ready and len(found) <= _LONGEST_GELU:
            node = ready.pop()
            sources = [source for source, _ in view.inputs(node)]
            if (
                node in found
                or not parts[node]
                or not all(each in found or constants[each] for each in sources)
            ):
                continue
            numbers = (floats(view.protos[source]) for source in sources if constants[source])
            terms += (
                view.ops[node],
                *(f"{values[0]:.3g}" if len(values) == 1 else "?" for values in numbers),
            )
            found.append(node)
            is_gelu = fusions.GELUS.get(" ".join(sorted(terms))) == view.ops[biased]
            if is_gelu and all(
                reader in found for each in found[:-1] for reader, _ in view.readers(each)
            ):
                yield Gelu(biased, found[1:])
                break
            ready += (reader for reader, _ in view.readers(node))
