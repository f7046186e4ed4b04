"""Needs, backwards: what a reader wants of a value that is lost once the value is rounded.

Each row of :data:`NEEDS` says who asks, and through what the need passes back to what computed the
value. It ends at a product: that is 16 bit, whoever reads it, but for decompositions
(:func:`keep_decomposed`). Where TensorFlow has fused a bias
into it, the bias is what was asked for, and is split from it (:mod:`amp_tf.rewriting.splitting`). A
depthwise convolution alone is float32 where a difference is taken of it: 16 bit gains it least, and
so images are compared, whose E[x²] - E[x]² is near zero where they are flat.

And what no product needs at all is a gradient on its way to its variable, or a number that somebody
reads: nothing is gained there, and much is lost. A gradient divided by its loss scale in float16 is
infinite above 65,504 and zero below 6e-8 whatever the scale, a loss in bfloat16 has three digits.

*Differences, roots, logarithms.* x - y is exact, but where x and y are alike and rounded, it is
made of their roundings; a root or a logarithm shows what is left of them at full size. This costs
nothing in ordinary models, because the need ends at sums and means, in which roundings of either
sign cancel, because a sum of a value and of a negative one asks nothing (the gradients of a Gelu
and of a gate are such), and because x - mean(x) asks nothing of x, but that the mean is not
rounded: both sides have the rounding of x. What is lost there depends on sizes that only a run
knows, and is for a comparison to find. Of two sums or means that are subtracted, neither is
rounded.

*Whole numbers, phases, places.* A rounding is relative, and their need is absolute: 1,001 is 1,000
in bfloat16, and of the fraction of 1,000.3 nothing is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.datatypes import Mask, Node
from amp_tf.oplists import table
from amp_tf.painting import origins
from amp_tf.painting.canvas import Canvas, casts, units_of
from amp_tf.painting.flow import Flow
from amp_tf.painting.reasons import Rule


@dataclasses.dataclass(frozen=True)
class Need:
    """A row of the table.

    Attributes:
        asked_by: the ops that ask it of what they read.
        position: at which input they ask; ``None`` for all, and then they stay in float32
            themselves.
        through: the ops of the infer list that pass it on to what they read; ``None`` for all. What
            only moves values always does. ``LINEAR - TOTALS`` ends it at sums and means, in which
            roundings of either sign cancel.
        among: finds the nodes that ask; ``None`` where all nodes of the ops do.
    """

    reason: Rule
    asked_by: frozenset[str]
    position: int | None = None
    through: frozenset[str] | None = None
    among: Callable[[Flow, Mask], Mask] | None = None


def _readers_of_sizes(flow: Flow, moving: Mask) -> Mask:
    """Returns the nodes that read a sum of squares, its root, or what is scaled by them.

    A sum that is divided is an average, such as that of a normalization.
    """
    squares = origins.find_squares(flow)
    moves = moving & ~flow.users
    scaling = moves | (flow.nodes_of(table.SCALING) & ~flow.users)
    terms = squares | flow.downstream(squares, through=scaling)
    sums = flow.nodes_of(table.SUMMING) & flow.readers_of(terms)
    averages = flow.nodes_of(table.DIVIDING) & flow.readers_of(
        sums | flow.downstream(sums, through=moves), position=0
    )
    arithmetic = (scaling | flow.nodes_of(table.ADDING | table.ROOTS)) & ~averages
    return flow.readers_of(sums | flow.downstream(sums, through=arithmetic))


def _readers_of_biased_values(flow: Flow, moving: Mask) -> Mask:
    """Returns the nodes that read a product's result to which a parameter was added, and which was
    then scaled or moved, if another product uses what they give.

    A bias that is added right before is that of a layer, of which softmax is the activation.
    """
    linear = (moving | flow.nodes_of(table.LINEAR - table.TOTALS)) & ~flow.users
    scaled = flow.products | flow.downstream(flow.products, through=linear)
    biased = flow.nodes_of(table.ADDING | table.BIASES) & origins.find_biases(flow, scaled)
    biased |= flow.products & flow.nodes_of(table.FUSED_PRODUCTS)
    used = flow.upstream(flow.users, through=~flow.nodes_of(table.STORING))
    return used & flow.readers_of(flow.downstream(biased, through=linear))


#: What no product uses asks for float32 by that; no op asks.
RESULTS = Need(Rule.AFTER_PRODUCTS, frozenset())
#: A difference passes its need through bounded functions, but for the activations of layers.
DIFFERENCES = Need(
    Rule.NEEDED, table.SUBTRACTING, through=table.LINEAR - table.TOTALS | table.BOUNDED_FUNCTIONS
)
#: In the order in which they say why.
NEEDS = (
    Need(Rule.WHOLE_NUMBERS, table.ABSOLUTE | table.CASTS),
    Need(Rule.WHOLE_NUMBERS, table.PLACING, position=1),
    RESULTS,
    DIFFERENCES,
    Need(Rule.NEEDED, table.ROOTS, through=table.LINEAR - table.TOTALS),
    # Squares have one sign, and geometry sums few: their roundings do not cancel.
    Need(
        Rule.NEEDED,
        table.SUBTRACTING,
        through=table.LINEAR - table.AVERAGING | table.ROOTS | table.BOUNDED_FUNCTIONS,
        among=_readers_of_sizes,
    ),
    # A common part of the values, which a bias may be, is gone in the result, its rounding not.
    Need(
        Rule.NEEDED,
        table.SOFTMAXES,
        through=table.LINEAR - table.TOTALS,
        among=_readers_of_biased_values,
    ),
    Need(Rule.NEEDED, table.LOGARITHMS | table.DECOMPOSING | table.LONG_PRODUCTS),
)


def keep_needed(canvas: Canvas) -> None:
    """Keeps values in float32, back to the product, if a reader needs them more exactly or no
    product uses them.

    A bias, an activation without arithmetic and what only moves values still have the type of the
    product before them, so that kernels can be fused; so has a bias gradient
    (:func:`amp_tf.painting.ties.match_types`). What variables hold is used by products only in the
    next step, through the variable.

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
    flow = canvas.flow
    moving = flow.is_open & ~flow.computes
    ops, _ = canvas.view.numbered_ops
    if not table.KEEPING.isdisjoint(ops):
        canvas.keep(_stored_maxima(flow), Rule.COMPARED)
    for need in NEEDS:
        causes: dict[int, int] = {}
        if need is not RESULTS and need.asked_by.isdisjoint(ops):
            continue
        if need is RESULTS:
            follows = (moving & (flow.count_inputs() == 1)) | flow.nodes_of(table.FOLLOWING)
            used = flow.users | flow.upstream(
                flow.users, through=~flow.nodes_of(table.STORING)
            )  # by products
            fused = flow.downstream(flow.products, through=~used & follows)
            found = ~used & ~fused & ~flow.nodes_of(table.SUMS_IN_BFLOAT16) & flow.is_open
        else:
            asking, found = _asking(need, flow, moving, canvas.centred)
            passing = flow.is_open
            if need.through is not None:
                passing = moving | (flow.nodes_of(need.through) & ~flow.users)
                passing &= ~_activations(flow)
            needed = asking | flow.asked(asking, need.position, passing, causes)
            found |= needed
            if need is DIFFERENCES:
                filters = flow.products & flow.nodes_of(table.FILTERING) & flow.sources_of(needed)
                flow.asked(needed, None, filters, causes)
                canvas.keep_allowed(
                    units_of(canvas.view.spread(filters).astype(np.bool_)), need.reason, causes
                )
                adding = moving | (flow.nodes_of(table.LINEAR - table.TOTALS) & ~flow.users)
                found |= _totals_apart(flow, adding)
            split = flow.products & flow.nodes_of(table.FUSED_PRODUCTS) & flow.sources_of(found)
            canvas.to_split += np.flatnonzero(split).tolist()
        canvas.keep(found, need.reason, causes)


def _activations(flow: Flow) -> Mask:
    """Returns the bounded functions that are the activations of layers: of a product, or of its sum
    with a bias, which are rounded together.
    """
    biased = flow.nodes_of(table.ADDING) & origins.find_biases(flow, flow.products)
    layers = flow.products | flow.nodes_of(table.BIASES) | biased
    return flow.nodes_of(table.BOUNDED_FUNCTIONS) & flow.readers_of(layers)


def _asking(
    need: Need, flow: Flow, moving: Mask, weighted: list[tuple[Node, Node]]
) -> tuple[Mask, Mask]:
    """The nodes that ask, and those that stay in float32 whether or not they pass it on.

    What weights the terms of a mean that is taken from the value itself is added to a list, with
    that value's node.
    """
    asking = flow.nodes_of(need.asked_by)
    if need.among:
        asking &= need.among(flow, moving)
    if need.asked_by >= table.CASTS:  # to integers
        for node, _, result in casts(flow.view):
            asking[node] = flow.view.dtypes[result] in datatypes.INTEGERS
    if need is not DIFFERENCES:
        return asking, asking if need.position is None else np.zeros_like(asking)
    # Who takes a value from another that may be like it asks; not from a single number. A value and
    # its own mean, or weighted mean, share their rounding: there the mean alone is needed, with
    # what moves it.
    single = flow.view.constants[0] == 1
    differences, totals = flow.nodes_of(table.SUBTRACTING), flow.nodes_of(table.TOTALS)
    means = totals | flow.downstream(totals, through=moving)
    made, scaling = flow.behind(moving), flow.nodes_of(table.SCALING)
    centred, own = np.zeros_like(asking), np.zeros_like(asking)
    for node in np.flatnonzero(differences & flow.readers_of(means)).tolist():
        ends = set(made[flow.sources_at(node)].tolist())
        for end in ends:
            terms = set(made[flow.sources_at(end)].tolist()) if totals[end] else set()
            factors = [
                (term, of)
                for term in terms
                if scaling[term]
                for of in made[flow.sources_at(term)].tolist()
            ]
            weighted += [(term, of) for term, of in factors if of in ends]
            if ends & {*terms, *(of for _, of in factors)}:
                centred[node] = own[end] = True
    # TensorFlow makes c - x + z of z - x + c, and c - x - y + z of z - (x + y) + c.
    turned = differences & flow.readers_of(single, position=0)
    turned |= differences & flow.readers_of(turned, position=0)
    sums = flow.nodes_of(table.ADDING) & flow.readers_of(turned)
    asking &= ~(differences & (flow.readers_of(single) & ~flow.sources_of(sums) | centred))
    asking |= sums
    own |= flow.downstream(own, through=moving)
    return asking, asking | centred | flow.upstream(centred, through=own)


def _totals_apart(flow: Flow, passing: Mask) -> Mask:
    """The sums and means of which differences are taken, as of a mean square and the square of a
    mean.

    What they add may be 16 bit, they may not: no rounding of another one is beside theirs to cancel
    it.
    """
    totals = flow.nodes_of(table.TOTALS)
    near = totals | flow.downstream(totals, through=passing)
    readings = np.bincount(flow.readers[near[flow.sources]], minlength=len(near))
    apart = flow.nodes_of(table.SUBTRACTING) & (readings == 2)
    return totals & flow.sources_of(apart | flow.upstream(apart, through=passing))


def _stored_maxima(flow: Flow) -> Mask:
    """Maxima that a loop or a branch keeps for its gradient, with what keeps and moves them and
    their operands.

    There the gradient, which compares the two, is in another part of the graph, and reads them from
    a list or an optional; an operand from outside it may read by a way of its own.
    """
    moves, keeping = flow.is_open & flow.nodes_of(table.UNCHANGED), flow.nodes_of(table.KEEPING)
    kept = keeping | flow.upstream(keeping, through=moves)
    maxima = flow.nodes_of(table.MAXIMA) & flow.sources_of(kept)
    operands = flow.sources_of(maxima) | flow.upstream(maxima, through=moves)
    comparing, edges, read = flow.nodes_of(table.COMPARING), flow.view.edges, np.zeros_like(moves)
    read[edges.src_node[comparing[edges.dst_node]]] = (
        True  # a gradient reads them to select, which the flow leaves out
    )
    compared = (read | flow.upstream(read, through=moves)) & flow.downstream(
        operands, through=moves
    )
    return maxima | compared | flow.downstream(maxima | operands, through=kept)


def keep_decomposed(canvas: Canvas) -> None:
    """Keeps in float32 the products of matrices that are decomposed, and products with the results.

    A decomposition divides by how far a matrix is from a singular one: once the matrix is rounded,
    a Cholesky factor is NaN, and an inverse or a small eigenvalue is made of the rounding. So the
    nearest product before it is float32, through arithmetic and the kernels of Gaussian processes.

    What a decomposition gave cancels where it is multiplied: whitening takes the correlations out
    that a matrix holds. So a product that reads it is float32, and so is the nearest product behind
    its other operand. Its own result is an ordinary value again, unless both operands were such
    results.

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
    flow = canvas.flow
    decomposing = flow.nodes_of(table.DECOMPOSING)
    if not decomposing.any():
        return
    causes: dict[int, int] = {}
    magnified = _magnified(flow, decomposing)
    multiplying = flow.products & flow.readers_of(magnified)
    reading = magnified[flow.sources] & multiplying[flow.readers]
    causes.update(zip(flow.readers[reading].tolist(), flow.sources[reading].tolist(), strict=True))
    # Back from both, to the nearest products, and to those that made what these multiply.
    before = flow.nodes_of(table.BEFORE_DECOMPOSITIONS) & ~flow.users
    linear = flow.nodes_of(table.LINEAR | table.KEEPING_SIZE) & ~flow.users
    matrices = flow.asked(decomposing, None, before, causes)
    operands = flow.asked(multiplying, None, linear & ~magnified, causes)
    ends = decomposing | multiplying | matrices | operands
    nearest = flow.products & flow.sources_of(ends) & ~multiplying
    flow.asked(ends, None, nearest, causes)
    factors = flow.asked(nearest, None, linear & ~matrices & ~operands, causes)
    canvas.keep(matrices | operands | factors, Rule.DECOMPOSED, causes)
    products = canvas.view.spread(multiplying | nearest).astype(np.bool_)
    canvas.keep_allowed(units_of(products), Rule.DECOMPOSED, causes)


def _magnified(flow: Flow, decomposing: Mask) -> Mask:
    """Returns the nodes whose results cancel when multiplied: decompositions and what follows them.

    A product of such results alone gives one, too. A sum with an ordinary product is an ordinary
    value, such as that of a residual network behind a whitening layer.
    """
    computing = flow.users | decomposing
    count_inputs = flow.count_inputs()
    magnified = decomposing
    while True:
        ordinary = flow.users & ~magnified
        ordinary |= flow.downstream(ordinary, through=~computing)
        sums = flow.nodes_of(table.ADDING) & flow.readers_of(ordinary)
        magnified = magnified | flow.downstream(magnified, through=~computing & ~sums)
        readings = np.bincount(flow.readers[magnified[flow.sources]], minlength=len(magnified))
        alone = flow.products & ~magnified & (readings > 0) & (readings == count_inputs)
        if not alone.any():
            return magnified
        magnified = magnified | alone
