"""The numerical contract: a value may be 16 bit only if what is lost is a rounding of that value, once.

The lists judge ops one by one. What they cannot see is where a value comes from and where it goes, and three things
follow from that alone:

*After the last product.* What no product uses any more is a gradient on its way to its variable, or a number that
somebody reads. Nothing is gained there, and much is lost: a gradient divided by its loss scale in float16 is infinite
above 65,504 and zero below 6e-8 whatever the scale, a loss in bfloat16 has three digits.

*Joined values.* What is exact to 24 bits loses that beside what a product gave (:mod:`amp_tf.painting.origins`).

*Running sums.* ``x = x + step`` in 16 bit stands still once a step is less than a 500th of x, in a loop or written out.

*Needs.* What is left of two values that are nearly alike is made of their roundings, and a root or a logarithm shows
them at full size (:mod:`amp_tf.painting.needs`).

TensorFlow's pass knows none of them. Each rule paints deny what the lists would convert; forced nodes stay forced.

*Calls* count as users if the functions that they call hold products, which is why XLA functions are read with all that
they call. That the results of a function may be its next arguments covers functional loops and steps that Python calls
again, and costs nothing, because arguments are float32 anyway. Chains are judged beyond 8 additions (the residual
streams of deep networks): at 8 small steps the error reaches 4 times that of the ideal mixed program.
"""

from __future__ import annotations

import numpy as np

from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.oplists.table import (
    ADDING,
    FOLLOWING,
    NORMALIZING,
    NORMALIZING_GRADIENTS,
    READ_OPS,
    SCALING,
    STORING,
    SUMS_IN_BFLOAT16,
    TOTALS,
)
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.reasons import Rule

LONGEST_SUM = 8  #: additions to one value, one after the other, that 16 bit may hold


def keep_results(canvas: Canvas) -> None:
    """What no product uses is painted deny: gradients from the last product on, losses, metrics.

    A bias, an activation without arithmetic and what only moves values still have the product's type, so that kernels
    can be fused; so has a bias gradient, which kernels sum in float32 or :func:`amp_tf.painting.exact.drop_narrow_sums`
    keeps there. What variables hold is used by products only in the next step, through the variable.

    Difference "after-products": TensorFlow converts what follows a product, whoever reads it.

    Example (bfloat16)::

        allow1 = MatMul(x, x)       f16
        infer1 = Tanh(allow1)       f16
        allow2 = MatMul(infer1, x)  f16
        loss = Mul(allow2, x)       f16 → float32
    """
    flow, values = canvas.flow, canvas.flow.values
    follows = (flow.is_open & ~flow.computes & (values.count_inputs() == 1)) | values.nodes_of(FOLLOWING)
    moved = values.downstream(flow.products, through=flow.results & follows)
    fused = moved | values.nodes_of(SUMS_IN_BFLOAT16)
    canvas.keep(flow.results & ~fused & flow.is_open, Rule.AFTER_PRODUCTS)


def keep_running_sums(canvas: Canvas) -> None:
    """Where a value goes through arithmetic and comes back without a product in between, all of that is painted deny.

    It comes back through a loop, as the result of a function that may be called again with it, or through a variable
    that is read again in the next step. A state that each iteration makes anew by a product, such as an LSTM's output,
    may be 16 bit. What the value is multiplied by is painted deny as well, up to the product that it comes from: .998
    is 1 in bfloat16, and .998 to the 500th is .37. So are the constant factors of what is added, which would be off by
    the same share in each step, and a chain of more than :data:`LONGEST_SUM` additions to one value; where a
    normalization or a gate lies between two, the sum begins anew.

    Difference "running-sum": TensorFlow converts sums as it converts all arithmetic.

    Example (bfloat16)::

        start = Enter(bias) frame_name='f'                        f16 → float32
        w = Enter(x) frame_name='f' is_constant=true              f16
        state = Merge(start, next)                                f16 → float32
        go = Placeholder() dtype=bool
        turns = Enter(go) T=bool frame_name='f' is_constant=true
        again = LoopCond(turns)
        switch = Switch(state, again)                             f16 → float32
        step = MatMul(switch:1, w)                                f16
        sum1 = AddV2(switch:1, step)                              f16 → float32
        next = NextIteration(sum1)                                f16 → float32
        done = Exit(switch)                                       f16
        allow2 = MatMul(done, x)                                  f16
    """
    flow, view = canvas.flow, canvas.view
    values = flow.values
    arguments, results = view.nodes_with((ARG_OP,)), view.nodes_with((RETVAL_OP,))
    back: list[tuple[int, int]] = []
    if arguments and results and not canvas.is_loop_body:  # each result may become each: all through the first argument
        first, *others = arguments
        back = [*((result, first) for result in results), *((first, other) for other in others)]
    circling = np.zeros(view.node_count, np.bool_)
    if back or canvas.is_loop_body or "NextIteration" in view.ops:
        for cycle in values.cycles(~flow.users, back):
            circling[cycle] = flow.computes[cycle].any()
    if stored := _stored_and_read(canvas):
        # A bias that a loss comes back to by way of a sum over all examples is no running sum. What a normalization
        # keeps running, or its gradient sums, is float32 whatever the type of its input.
        apart = values.nodes_of({*TOTALS, *SUMS_IN_BFLOAT16, *NORMALIZING, *NORMALIZING_GRADIENTS})
        for cycle in values.cycles(~flow.users & ~apart, stored):
            circling[cycle] |= flow.computes[cycle].any()
    if circling.any():
        factors = circling & values.nodes_of(SCALING)
        scales = values.upstream(factors, through=flow.is_open & ~circling)
        canvas.keep((circling | scales) & flow.is_open, Rule.RUNNING_SUM)
    adding = values.nodes_of(ADDING) & flow.computes
    scaled = values.nodes_of(SCALING) & values.readers_of(values.nodes_of(("Const",)))
    sums = circling & adding
    added = adding & ~circling
    if added.sum() > LONGEST_SUM:
        terms = np.where(added, np.maximum(values.count_inputs() - 1, 1), 0)
        passing = added | scaled | values.nodes_of(("BiasAdd",)) | ~flow.computes
        chain = flow.unmasked.heaviest_paths(flow.is_open & ~circling & passing, terms)
        long = chain.between & (chain.weight > LONGEST_SUM)
        canvas.keep(long, Rule.RUNNING_SUM)
        sums |= long & adding
    if sums.any():  # the factor of each step
        canvas.keep(flow.unmasked.upstream(sums, through=(scaled | adding) & flow.is_open), Rule.RUNNING_SUM)


def _stored_and_read(canvas: Canvas) -> list[tuple[int, int]]:
    """What writes a variable, and what reads it: the next step reads what this one stored."""
    view = canvas.view
    writing, reading = view.mask_with(STORING), view.mask_with(READ_OPS)
    if not writing.any():
        return []
    first = view.edges.at(view.edges.dst_position == 0)
    readers: dict[int, list[int]] = {}
    for handle, reader in first.at(reading[first.dst_node]).rows("src_node", "dst_node"):
        readers.setdefault(handle, []).append(reader)
    written = first.at(writing[first.dst_node])
    return [(node, read) for handle, node in written.rows("src_node", "dst_node") for read in readers.get(handle, ())]


def keep_joined(canvas: Canvas) -> None:
    """What is made of exact values and of products, by other means than multiplication, is painted deny.

    What only moves such values is too, where something else than a product reads them.

    Difference "joined": TensorFlow casts the float32 side of an addition down.

    Example (bfloat16)::

        step = MatMul(x, x)        f16
        moved = AddV2(x, step)     f16 → float32
        shown = Sigmoid(moved)     f16 → float32
        allow2 = MatMul(shown, x)  f16
    """
    flow = canvas.flow
    moving = flow.is_open & ~flow.computes & flow.origins.exact
    joined = flow.origins.joined & ~moving & ~flow.users
    canvas.keep(joined | flow.unmasked.upstream(joined, through=moving), Rule.JOINED)
