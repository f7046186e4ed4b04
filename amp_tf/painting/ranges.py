"""Ranges: constants, squares and quotients that 16 bit cannot hold.

*Constants.* In masks, also Keras' own, -1e9 stands for "never", and is below float16's least
number; ``tf.float32.min`` is below bfloat16's, too. In float32, the softmax of a row in which
everything is masked, such as that of a padded position, is a number; in 16 bit the row holds
infinities, and its softmax and all gradients are NaN. 1e-8 guards logarithms and quotients from
zero, but is zero in float16. A probability that is clipped to 0.9999999 becomes 1, and log(1 - p)
minus infinity. A few ops make such values themselves, and some that are on no list pass them on. It
is not enough to keep the constant: Keras multiplies it in float32, and the result of that would be
cast. Clamping such casts would keep the softmax in 16 bit, but hide the infinities by which loss
scaling recognizes an overflow. NVIDIA told its users to write -1e4 in place of Keras' -1e9.

*Squares and quotients*, in float16: 300 is an ordinary activation, and its square is infinite. 1e-4
is an ordinary activation, and 10 / 1e-4 is infinite, also where it is written as a multiplication
by a reciprocal (``tf.math.l2_normalize``). The gradient of a root is such a quotient, also after it
was moved or multiplied by constants, as in the gradient of RMSNorm. So is a multiplication by gamma
/ sqrt(variance + epsilon) if the variance is the batch's, because equal rows have none, and epsilon
is below 1e-5. Quotients by a constant and products of two different values follow the lists.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_tf.graph.algorithms import reach
from amp_tf.graph.attributes import floats
from amp_tf.graph.datatypes import NodeMask, indices, mask_of
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.decisions import Decision, NodeDecision, Verdict, spread
from amp_tf.painting.reasons import Code
from amp_tf.painting.value_graph import ValueGraph
from amp_tf.precision import Precision

#: The largest factor that leaves values up to 200 in float16's range.
LARGEST_FACTOR = 320.0


def keep_in_range(canvas: Canvas) -> Canvas:
    """Keeps readers of a constant that 16 bit cannot hold in float32, and the nodes behind them up
    to the next product.

    Readers of a variable with such a value stay, too, if its value is known, as it is in a saved
    model that is converted.

    The product stays, too, if only moves and multiplications lie between: ``matmul(ones * -1e9,
    pad)``.

    Difference "range": TensorFlow's pass looks at no values.

    Example (float16)::

        never = Const() value=float32[4]*-1e9
        allow1 = MatMul(x, x)                  f16
        infer1 = AddV2(allow1, never)          f16 → float32
        infer2 = Softmax(infer1)               f16 → float32
        allow2 = MatMul(infer2, x)             f16
    """
    view = canvas.view
    lost, sized = _constants_beyond_range(canvas)
    beyond = canvas.subject.beyond_range
    keeping_size = canvas.on_allow & ~canvas.deny
    keeping_size |= view.units_with(table.KEEPING_SIZE) & canvas.is_float32
    seeds = canvas.float32_units([*indices(sized), *beyond])
    reached = reach(seeds, keeping_size, canvas.links.outward)
    products = [unit for unit in reached if canvas.on_allow[unit]]
    units = canvas.float32_units({view.unit_nodes[unit] for unit in products})
    canvas = canvas.after(Decision(Verdict.KEEP, units, Code.BEYOND_RANGE, reached))
    passable = canvas.spreading & ~canvas.deny
    # On GPUs, Rsqrt makes a great value of one that a constant keeps from zero.
    carriers = table.CARRIERS | table.RECIPROCAL_ROOTS
    passable |= view.units_with(carriers) & canvas.is_float32
    passable &= ~canvas.allow  # carriers that the user forces
    extreme = view.nodes_with(table.EXTREME_SOURCES)
    sources = canvas.float32_units([*indices(lost), *beyond, *extreme])
    sources += (unit for unit in products if canvas.deny[unit])
    users = reach(sources, passable, canvas.links.outward)
    return canvas.after(spread(Verdict.DENY, users, Code.BEYOND_RANGE))


def _constants_beyond_range(canvas: Canvas) -> tuple[NodeMask, NodeMask]:
    """Returns the constants that the 16-bit type cannot hold.

    Also returns those of them that make a product infinite or zero; 0.9999999 does not.
    """
    precision = canvas.target.precision
    # In a large table of weights some values are always too small, and are lost without harm.
    values, terms, largest = canvas.view.constants
    is_nearly_one = (terms == 1) & (largest != 1) & precision.rounds_to_one(largest)
    is_held = (precision.smallest / 2 < largest) & (largest <= precision.max_finite)
    lost = (terms > 0) & ~(is_held & ~is_nearly_one)
    return lost, lost & ~(is_nearly_one & (values == 1))


def keep_squares_and_quotients(values: ValueGraph) -> Iterator[NodeDecision]:
    """Keeps squares and quotients in float32 if the 16-bit type is float16.

    Difference "range": TensorFlow's pass has Pow on the deny list, but not x * x and 1 / x.

    Example (float16)::

        allow1 = MatMul(x, x)         f16
        square = Mul(allow1, allow1)  f16 → float32
        infer1 = Tanh(square)         f16 → float32
        allow2 = MatMul(infer1, x)    f16
    """
    if values.precision is not Precision.FLOAT16:
        return
    ranging = values.of_ops(table.RANGING) & ~_by_constants(values)
    found = ranging | values.squares | _by_reciprocals(values) | _by_gradients_of_roots(values)
    yield NodeDecision(found & values.computes, Code.LEAVES_RANGE)


def _by_constants(values: ValueGraph) -> NodeMask:
    """Returns the quotients by a constant."""
    by_constants = values.readers_of(values.of_ops(("Const",)), position=1)
    return by_constants & values.of_ops(table.DIVIDING)


def _by_reciprocals(values: ValueGraph) -> NodeMask:
    """Returns the multiplications by a reciprocal.

    The factor may also be a product with the reciprocal of a batch's total. A factor that is
    bounded counts for totals alone, which are few: a mean that is multiplied by it stays in
    float32, so that the deny list, on which totals are, does not reach the sum with all values.
    """
    products = values.of_ops(("Mul",))
    bounded = _bounded(values)
    reciprocals = values.of_ops(table.RECIPROCALS) & ~bounded
    totals = values.of_ops(table.TOTALS)
    of_batches = reciprocals & values.downstream(totals, through=values.is_open | reciprocals)
    factors = values.downstream(of_batches, through=products)
    by_bounded = values.readers_of(values.downstream(bounded, through=products))
    moving = values.moving | values.of_ops(table.NEGATING)
    of_totals = values.readers_of(values.downstream(totals, through=moving))
    return products & (values.readers_of(reciprocals | factors) | by_bounded & of_totals)


def _bounded(values: ValueGraph) -> NodeMask:
    """Returns the reciprocal roots of a mean or sum of squares, such as a variance, and a number,
    such as epsilon, that keeps them below :data:`LARGEST_FACTOR`.
    """
    counts, _, sizes = values.view.constants
    is_enough = (counts == 1) & (sizes >= LARGEST_FACTOR**-2)
    numbers = [node for node in indices(is_enough) if floats(values.view.protos[node]).min() > 0]
    squares = values.squares | values.of_ops(table.UNSIGNED)
    totals = values.of_ops(table.TOTALS) & values.readers_of(squares)
    moved = values.downstream(totals, through=values.moving)
    guarded = values.readers_of(moved) & values.readers_of(mask_of(numbers, len(moved)))
    sums = values.of_ops(table.ADDING - table.SUBTRACTING) & (values.count_inputs() == 2) & guarded
    return values.of_ops(table.RECIPROCAL_ROOTS) & values.readers_of(sums)


def _by_gradients_of_roots(values: ValueGraph) -> NodeMask:
    """Returns the readers of gradients of roots and reciprocals, moved or scaled by constants."""
    gradients = values.of_ops(table.RANGING_GRADIENTS)
    constants = values.of_ops(table.CONSTANTS)
    scaling = values.of_ops({"Mul", *table.DIVIDING}) & values.readers_of(constants)
    moved = values.downstream(gradients, through=scaling | values.moving)
    return values.readers_of(moved)
