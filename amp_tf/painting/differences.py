"""Differences: subtractions whose operands may be nearly equal, and differences of totals.

The difference of two nearly equal values consists of their roundings. A gate's 1 - z needs nothing,
and neither does the sum of a value and a negated one (the gradients of a Gelu and of a gate are
such). If two sums or means are subtracted, or one and a number, the squares and products that they
add stay float32, too: a rounded factor of all terms is an error of the sum.

x - mean(x) needs only the mean unrounded, because both sides share the rounding of x. The loss in
it depends on sizes that are known only in a run; ``amp-tf compare`` finds it. Only where the
program itself adds a number to x is the size known: the mean takes the number away again, and the
rounding at its size stays. So such an x is float32.
"""

from __future__ import annotations

from amp_tf.graph.datatypes import NodeMask, mask_of
from amp_tf.oplists import table
from amp_tf.painting.value_graph import ValueGraph

#: The ops that keep the relative size of a rounding. In sums and means, roundings cancel.
LINEAR = table.LINEAR - table.TOTALS


def moving_or_of(ops: frozenset[str], values: ValueGraph) -> NodeMask:
    """Returns the nodes that move values, and those of some ops that compute no products."""
    return values.moving | (values.of_ops(ops) & ~values.users)


def find_comparing(values: ValueGraph) -> NodeMask:
    """Returns the subtractions that need both operands exactly, and the additions that TensorFlow's
    optimizers made of such.

    The subtractions of gates do not need them, nor does one of a value and its own mean, which
    share their rounding, unless a number was added to the value.
    """
    differences = values.of_ops(table.SUBTRACTING)
    gates = differences & _gates(values)
    # TensorFlow makes c - x + z of z - x + c, and c - x - y + z of z - (x + y) + c.
    single = values.view.constants[0] == 1
    turned = differences & values.readers_of(single, position=0)
    turned |= differences & values.readers_of(turned, position=0)
    sums = values.of_ops(table.ADDING) & values.readers_of(turned)
    centred = mask_of((each.difference for each in values.centrings), len(sums))
    centred &= ~values.readers_of(_offset(values))
    return (differences & ~gates & ~centred) | sums


def _gates(values: ValueGraph) -> NodeMask:
    """Returns the readers of the number one and a bounded function, such as the 1 - z of a gate,
    and the readers of any single number and a product.
    """
    counts, _, sizes = values.view.constants
    single = counts == 1
    bounded = values.of_ops(table.BOUNDED_FUNCTIONS)
    from_ones = values.readers_of(single & (sizes == 1)) & values.readers_of(bounded)
    return from_ones | (values.readers_of(single) & values.readers_of(values.products))


def _offset(values: ValueGraph) -> NodeMask:
    """Returns the nodes whose values contain a number that the program added."""
    single = values.view.constants[0] == 1
    adding = values.of_ops(table.ADDING | table.BIASES)
    return values.downstream(adding & values.readers_of(single), through=values.moving | adding)


def find_compared_totals(values: ValueGraph) -> NodeMask:
    """Returns the means that are subtracted from their own values, the nodes that move them, these
    subtractions, and the totals whose differences are taken.
    """
    size = len(values.users)
    centred = mask_of((each.difference for each in values.centrings), size)
    means = mask_of((each.total for each in values.centrings), size)
    means = values.downstream(means, through=values.moving)
    return values.upstream(centred, through=means) | _totals_apart(values, centred)


def _totals_apart(values: ValueGraph, centred: NodeMask) -> NodeMask:
    """Returns the sums and means whose differences are taken, as in E[x²] - E[x]² or in a sum less
    one, with the multiplications whose results they add.

    The factors may be 16 bit, because both sides have their rounding. A total or a square is
    rounded on one side alone, and no other rounding is there to cancel it.

    Args:
        centred: the differences between a value and its own mean, as in the gradient of a softmax;
            they need nothing of what is multiplied.
    """
    passing = moving_or_of(LINEAR | table.POWERS, values)
    totals = values.of_ops(table.TOTALS | table.WINDOWED)
    near = values.downstream(totals, through=passing)
    from_number = values.readers_of(values.view.constants[0] == 1)
    apart = values.of_ops(table.SUBTRACTING) & (values.count_inputs(near) + from_number == 2)
    found = totals & values.sources_of(values.upstream(apart, through=passing))
    moments = values.upstream(apart & ~centred, through=passing)
    moments = totals & values.sources_of(moments)
    # The weights of a mean are factors, too, but must add up to one.
    multiplying = moving_or_of(table.SCALING | table.POWERS | table.SOFTMAXES, values)
    terms = values.upstream(values.sources_of(moments) & multiplying, through=multiplying)
    multiplied = terms & ~values.moving
    return found | values.downstream(multiplied, through=terms)
