"""Needs, backwards: readers that need a value more exactly than 16 bit holds it.

Each row of :data:`NEEDS` says which ops need their input exactly, and which ops pass the need back
to theirs. A need ends at a product, which stays 16 bit, except for decompositions
(:func:`keep_decomposed`). If TensorFlow has fused a bias into the product, the bias is split off
(:mod:`amp_tf.rewriting.splitting`). Only a depthwise convolution becomes float32 if a difference is
taken of its result: it gains the least from 16 bit, and measures of image quality use it, whose
E[x²] - E[x]² is near zero where an image is flat.

A value that no product uses stays float32, too: it is a gradient on its way to its variable, or a
number that somebody reads. 16 bit gains nothing there, and loses much: a gradient divided by its
loss scale in float16 is infinite above 65,504 and zero below 6e-8 whatever the scale, and a loss in
bfloat16 has three digits.

*Differences, roots, logarithms.* What is left of nearly equal values in a difference
(:mod:`amp_tf.painting.differences`) consists of their roundings, and a root or a logarithm brings
them to full size. This costs nothing in ordinary models. The need ends at sums and means, in which
roundings of either sign cancel.

*Whole numbers, phases.* A rounding is relative, and they need an absolute precision: 1,001 is 1,000
in bfloat16, and 1,000.3 loses its whole fraction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import reach
from amp_tf.graph.datatypes import Node, NodeMask, indices, mask_of
from amp_tf.oplists import table
from amp_tf.painting.decisions import NodeDecision, Verdict
from amp_tf.painting.differences import (
    LINEAR,
    find_compared_totals,
    find_comparing,
    moving_or_of,
)
from amp_tf.painting.origins import find_biases
from amp_tf.painting.reasons import Code
from amp_tf.painting.value_graph import ValueGraph, casts_of


@dataclasses.dataclass(frozen=True)
class Need:
    """A row of the table: some ops need their input exactly, and others pass that on.

    Attributes:
        asked_by: the ops that need it of their inputs, and stay in float32 themselves.
        among: finds those of their nodes that do; ``None`` where all do.
        through: the ops that pass it on to their inputs; ``None`` for all that the lists may
            convert. Nodes that only move values always do. ``LINEAR - TOTALS`` ends it at sums and
            means, in which roundings of either sign cancel.
        if_listed: those of ``through`` that pass it on only where the lists may convert them.
        products: the products that become float32, too, instead of ending it.
        staying: finds nodes that stay in float32, and need nothing of their inputs.
    """

    reason: Code
    asked_by: frozenset[str] = frozenset()
    among: Callable[[ValueGraph], NodeMask] | None = None
    through: frozenset[str] | None = None
    if_listed: frozenset[str] = frozenset()
    products: frozenset[str] = frozenset()
    staying: Callable[[ValueGraph], NodeMask] | None = None


def _other_than_casts_to_floats(values: ValueGraph) -> NodeMask:
    """Returns all nodes except Casts to types other than integers."""
    found = np.ones_like(values.users)
    for node, _, result in casts_of(values.view):
        found[node] = values.view.dtypes[result] in datatypes.INTEGERS
    return found


def _readers_of_sizes(values: ValueGraph) -> NodeMask:
    """Returns the nodes that read a sum of squares, its root, or a multiple of one.

    A sum that is divided is an average, such as that of a normalization.
    """
    moving = values.moving & ~values.users
    scaling = moving_or_of(table.SCALING, values) & ~values.users
    terms = values.downstream(values.squares, through=scaling)
    sums = values.of_ops(table.SUMMING) & values.readers_of(terms)
    moved_sums = values.downstream(sums, through=moving)
    averages = values.of_ops(table.DIVIDING) & values.readers_of(moved_sums, position=0)
    arithmetic = (scaling | values.of_ops(table.ADDING | table.ROOTS)) & ~averages
    return values.readers_of(values.downstream(sums, through=arithmetic))


def _norms(values: ValueGraph) -> NodeMask:
    """Returns the sums whose roots are taken, and the squares that they add.

    A vector that is divided by its norm has the length one. What a cosine of two such is below one
    shows their lengths, too.
    """
    linear = moving_or_of(LINEAR, values)
    under = values.upstream(values.of_ops(table.ROOTS), through=linear)
    sums = values.of_ops(table.SUMMING) & values.sources_of(under)
    return sums | (values.squares & values.sources_of(sums))


def _readers_of_biased_values(values: ValueGraph) -> NodeMask:
    """Returns the nodes between two products that read the first one's result, if a parameter was
    added to it before it was scaled or moved.

    A bias that is added right before is that of a layer, of which softmax is the activation.
    """
    linear = moving_or_of(LINEAR, values) & ~values.users
    scaled = values.downstream(values.products, through=linear)
    adding = values.of_ops(table.ADDING | table.BIASES)
    biased = adding & find_biases(values, scaled)
    biased |= values.products & values.of_ops(table.FUSED_PRODUCTS)
    moved = values.readers_of(biased) & linear
    return values.used & values.readers_of(values.downstream(moved, through=linear))


def _without_products(values: ValueGraph) -> NodeMask:
    """Returns the nodes that no product uses, without those computed together with the product
    before.
    """
    used = values.used
    follows = (values.moving & (values.count_inputs() == 1)) | values.of_ops(table.FOLLOWING)
    fused = values.downstream(values.products, through=~used & follows)
    return ~used & ~fused & ~values.of_ops(table.SUMS_IN_BFLOAT16) & values.is_open


def _stored_maxima(values: ValueGraph) -> NodeMask:
    """Returns the maxima that a loop or a branch stores for its gradient, and the nodes that store
    and move them and their operands.

    The gradient compares a maximum with its operands in another part of the graph, and reads both
    from a list or an optional, or an operand from outside of the loop.
    """
    keeping = values.of_ops(table.KEEPING)
    if not keeping.any():
        return keeping
    moves = values.is_open & values.of_ops(table.UNCHANGED)
    kept = values.upstream(keeping, through=moves)
    maxima = values.of_ops(table.MAXIMA) & values.sources_of(kept)
    operands = values.sources_of(values.upstream(maxima, through=moves))
    # What a loop is given leaves it for the loop of the gradient.
    rings = values.of_ops(table.LOOP_EXITS | table.LOOP_MERGES | table.LOOP_CLOSERS)
    passing = keeping | moves | (values.is_open & rings)
    moved = values.readers_of(maxima | operands) & passing
    return maxima | values.downstream(moved, through=passing)


def _steep(values: ValueGraph) -> NodeMask:
    """Returns all nodes except those that the lists let be 16 bit, and the readers of negated
    squares and magnitudes.

    An exponential of a value up to zero loses .37 of a rounding, as in the gradient of a Gelu.
    """
    negated = values.of_ops(table.NEGATING) & values.readers_of(values.of_ops(table.UNSIGNED))
    return ~values.is_open & ~values.readers_of(negated)


def _compiled(values: ValueGraph) -> NodeMask:
    """Returns the calls of functions that XLA compiles apart from this graph."""
    return mask_of(values.view.marked("_XlaMustCompile"), len(values.users))


#: The first row that keeps a node gives its reason.
NEEDS = (
    Need(Code.COMPARED, staying=_stored_maxima),
    Need(Code.WHOLE_NUMBERS, table.ABSOLUTE | table.CASTS, among=_other_than_casts_to_floats),
    Need(Code.AFTER_PRODUCTS, staying=_without_products),
    Need(
        Code.NEEDED,
        table.SUBTRACTING | table.ADDING,
        among=find_comparing,
        through=LINEAR | table.SMOOTH,
        if_listed=LINEAR,
        products=table.FILTERING,
        staying=find_compared_totals,
    ),
    Need(Code.NEEDED, table.ROOTS, through=LINEAR, staying=_norms),
    Need(Code.NEEDED, table.STEEP_FUNCTIONS, among=_steep, through=LINEAR),
    Need(Code.NEEDED, table.INVERSE_FUNCTIONS, through=table.LINEAR),
    # Squares have one sign, and geometry sums few: their roundings do not cancel.
    Need(
        Code.NEEDED,
        table.SUBTRACTING,
        among=_readers_of_sizes,
        through=table.LINEAR | table.ROOTS | table.BOUNDED_FUNCTIONS,
    ),
    # A softmax removes the common part of its values, such as a bias, but not its rounding.
    Need(Code.NEEDED, table.SOFTMAXES, among=_readers_of_biased_values, through=LINEAR),
    Need(Code.NEEDED, table.LOGARITHMS | table.DECOMPOSING | table.LONG_PRODUCTS),
    # A compiled function may need its values exactly, and its graph is not seen here.
    Need(Code.NEEDED, table.CALLS, among=_compiled),
)


def keep_needed(values: ValueGraph) -> Iterator[NodeDecision]:
    """Keeps values in float32, back to the product, if a reader needs them exactly or no product
    uses them.

    Behind a product that nothing else uses, a bias, an activation without arithmetic and nodes that
    only move values keep the product's type, so that TensorFlow can fuse them with it; so does a
    bias gradient (:func:`amp_tf.painting.ties.match_bias_gradients`).

    Difference "need": TensorFlow converts what lies between or follows products, whoever reads it.

    Example (bfloat16)::

        allow1 = MatMul(x, x)       f16
        infer1 = Tanh(allow1)       f16
        allow2 = MatMul(infer1, x)  f16
        loss = Mul(allow2, x)       f16 → float32

    Example (bfloat16)::

        allow1 = MatMul(x, x)          f16
        given = Mul(allow1, x)         f16 → float32
        difference = Sub(bias, given)  f16 → float32
        root = Sqrt(difference)        f16 → float32
        allow2 = MatMul(root, x)       f16

    Example (bfloat16)::

        allow1 = MatMul(x, x)      f16
        square = Square(allow1)    f16 → float32
        total = Sum(square, axis)  f16 → float32
        root = Rsqrt(total)        f16 → float32
        unit = Mul(allow1, root)   f16
        allow2 = MatMul(unit, x)   f16

    Example (bfloat16)::

        half = Const() value=float32[]*0.5
        allow1 = MatMul(x, x)               f16
        scaled = Mul(allow1, y)             f16 → float32
        chance = Softmax(scaled)            f16 → float32
        gap = Sub(chance, half)             f16 → float32
        allow2 = MatMul(gap, x)             f16

    Example (bfloat16)::

        four = Const() value=float32[]*4
        allow1 = MatMul(x, x)             f16
        offset = AddV2(allow1, four)      f16 → float32
        mean = Mean(offset, axis)         f16 → float32
        centred = Sub(offset, mean)       f16 → float32
        allow2 = MatMul(centred, x)       f16

    Example (bfloat16)::

        allow1 = MatMul(x, x)        f16
        given = AddV2(allow1, bias)  f16 → float32
        square = Mul(given, given)   f16 → float32
        total = Sum(square, axis)    f16 → float32
        left = Sub(bias, total)      f16 → float32
        allow2 = MatMul(left, x)     f16

    Example (bfloat16)::

        allow1 = MatMul(x, x)      f16
        step = Mul(allow1, y)      f16 → float32
        given = AddV2(step, bias)  f16 → float32
        box = Sigmoid(given)       f16 → float32
        moved = Sub(box, bias)     f16 → float32
        allow2 = MatMul(moved, x)  f16

    Example (bfloat16)::

        allow1 = MatMul(x, x)           f16
        values = BiasAdd(allow1, bias)  f16 → float32
        scaled = Mul(values, y)         f16 → float32
        chances = Softmax(scaled)       f16 → float32
        allow2 = MatMul(chances, x)     f16

    Example (bfloat16)::

        allow1 = MatMul(x, x)                       f16
        ids = Relu(x)                               f16 → float32
        number = Cast(ids) SrcT=float32 DstT=int32
        both = ConcatV2(allow1, ids, axis) N=2      f16
        allow2 = MatMul(both, x)                    f16

    Example (bfloat16)::

        allow1 = MatMul(x, x)                                   f16
        max1 = Max(allow1, axis) keep_dims=true                 f16 → float32
        kept = OptionalFromValue(max1) Toutput_types=[float32]
        allow2 = MatMul(max1, x)                                f16
    """
    ops, _ = values.view.numbered_ops
    for need in NEEDS:
        if not (need.asked_by and need.asked_by.isdisjoint(ops)):
            yield from _follow(need, values)


def _follow(need: Need, values: ValueGraph) -> Iterator[NodeDecision]:
    """Yields what one row of :data:`NEEDS` decides."""
    staying = np.zeros_like(values.users)
    if need.staying is not None:
        staying = need.staying(values)
    if not need.asked_by:
        yield NodeDecision(staying, need.reason)
        return
    asking = values.of_ops(need.asked_by)
    if need.among is not None:
        asking = asking & need.among(values)
    causes = _requested(values, asking, _passing(need, values))
    needed = asking | mask_of(causes, len(asking))
    kept = needed | staying
    products = values.products & values.sources_of(needed) & values.of_ops(need.products)
    causes |= _requested(values, needed, products)
    fused = values.products & values.sources_of(kept) & values.of_ops(table.FUSED_PRODUCTS)
    yield NodeDecision(products, need.reason, causes, Verdict.KEEP)
    yield NodeDecision(kept, need.reason, causes, to_split=indices(fused))


def _passing(need: Need, values: ValueGraph) -> NodeMask:
    """Returns the nodes that pass a need on to what they read."""
    if need.through is None:
        return values.is_open
    passing = moving_or_of(need.through, values) & ~_activations(values)
    return passing & (values.is_open | ~values.of_ops(need.if_listed))


def _activations(values: ValueGraph) -> NodeMask:
    """Returns the bounded functions that are the activations of layers: of a product, or of its sum
    with a bias, which are rounded together.
    """
    biased = values.of_ops(table.ADDING) & find_biases(values, values.products)
    layers = values.products | values.of_ops(table.BIASES) | biased
    return values.of_ops(table.SMOOTH) & values.readers_of(layers)


def _requested(values: ValueGraph, asking: NodeMask, through: NodeMask) -> dict[Node, Node]:
    """Returns the nodes of ``through`` from which values reach some nodes through such nodes, each
    with the reader that needs it.
    """
    edges = asking[values.readers] & through[values.sources]
    sources = values.sources[edges].tolist()
    causes = dict(zip(sources, values.readers[edges].tolist(), strict=True))
    first = mask_of(causes, len(through))
    farther = reach(indices(first), through & ~first, values.links.inward)
    return causes | farther


def keep_decomposed(values: ValueGraph) -> Iterator[NodeDecision]:
    """Keeps in float32 the products of matrices that are decomposed, and products with the results.

    A decomposition divides by the distance of a matrix from a singular one: once the matrix is
    rounded, a Cholesky factor is NaN, and an inverse or a small eigenvalue consists of roundings.
    So the nearest product before it is float32, through arithmetic and the kernels of Gaussian
    processes.

    Multiplying by the result of a decomposition cancels: whitening removes the correlations in a
    matrix. So a product that reads such a result is float32, and so is the nearest product before
    its other operand, with the linear nodes between and those that compute its factors. The
    product's own result is an ordinary value again, unless both operands came from decompositions.

    Difference "need": TensorFlow converts every product.

    Example (bfloat16)::

        features = MatMul(x, y)                   f16
        gram = MatMul(features, features)         f16 → float32
        factor = Cholesky(gram)
        cross = MatMul(features, z)               f16 → float32
        scaled = Mul(cross, half)                 f16 → float32
        whitened = BatchMatMulV2(factor, scaled)  f16 → float32
        allow2 = MatMul(whitened, z)              f16
    """
    decomposing = values.of_ops(table.DECOMPOSING)
    if not decomposing.any():
        return
    size = len(decomposing)
    magnified = _magnified(values, decomposing)
    multiplying = values.products & values.readers_of(magnified)
    reading = magnified[values.sources] & multiplying[values.readers]
    readers = values.readers[reading].tolist()
    causes = dict(zip(readers, values.sources[reading].tolist(), strict=True))
    # Back from the decompositions, and from the other operands, to the nearest products, and
    # through the linear nodes that compute the factors of these.
    before = values.of_ops(table.BEFORE_DECOMPOSITIONS) & ~values.users
    linear = values.of_ops(table.LINEAR | table.KEEPING_SIZE) & ~values.users
    of_matrices = _requested(values, decomposing, before)
    of_operands = _requested(values, multiplying, linear & ~magnified)
    between = mask_of(of_matrices, size) | mask_of(of_operands, size)
    ends = decomposing | multiplying | between
    nearest = values.products & values.sources_of(ends) & ~multiplying
    of_nearest = _requested(values, ends, nearest)
    of_factors = _requested(values, nearest, linear & ~between)
    causes |= of_matrices | of_operands | of_nearest | of_factors
    computed = between | mask_of(of_factors, size)
    yield NodeDecision(computed, Code.DECOMPOSED, causes)
    yield NodeDecision(multiplying | nearest, Code.DECOMPOSED, causes, Verdict.KEEP)


def _magnified(values: ValueGraph, decomposing: NodeMask) -> NodeMask:
    """Returns the nodes whose results cancel when multiplied: decompositions and what follows them.

    A product of such results alone is one, too. A sum of one and an ordinary product is an ordinary
    value, as in a residual network behind a whitening layer.
    """
    computing = values.users | decomposing
    count_inputs = values.count_inputs()
    magnified = decomposing
    while True:
        ordinary = values.downstream(values.users & ~magnified, through=~computing)
        sums = values.of_ops(table.ADDING) & values.readers_of(ordinary)
        magnified = values.downstream(magnified, through=~computing & ~sums)
        readings = values.count_inputs(magnified)
        alone = values.products & ~magnified & (readings > 0) & (readings == count_inputs)
        if not alone.any():
            return magnified
        magnified = magnified | alone
