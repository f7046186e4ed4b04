"""Origins, forwards: where values come from, and what must not be rounded because of that.

*Joined values.* NumPy, torch's autocast and Keras promote: float16 and float32 make float32. TensorFlow's pass casts
the float32 side down instead. Where that side is a coordinate, a time or a phase, the sum is rounded at its size, and
what the network contributed is gone: 5,000 m and a step of 0.1 m are 5,008 m or 4,992 m in bfloat16.

Each value has an origin. *Product*: made by products and what follows them; it carries a rounding of its own size
already. *Parameter*: variables such as biases, which are small beside what they join, tensors that a trace captured,
random numbers, and constants below :data:`GREAT`. *Exact*: what a program is given, counts, great constants, and the
weights of products: what is added to one is an update. *Joined*: exact and product, by an op that keeps absolute sizes:
an addition, a concatenation, a choice. To multiply joins nothing, because the error of a product stays relative; so a
factor that comes from a product ends what is exact, and so do ops whose result is bounded or normalized. Numbers that
stand for never, as in masks, are not joined to be kept: beside them all else is to vanish.

*Running sums.* ``x = x + step`` in 16 bit stands still once a step is less than a 500th of x, in a loop or written out.
That the results of a function may be its next arguments covers functional loops and steps that Python calls again, and
costs nothing, because arguments are float32 anyway. Chains are judged beyond 8 additions (the residual streams of deep
networks): at 8 small steps the error reaches 4 times that of the ideal mixed program.

Not covered: exact data that a trace captured; parameters that are not small; sums that leave float16's range; and ops
that need more of a product's value alone (:mod:`amp_tf.painting.needs`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import Mask
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.flow import Flow, Values
from amp_tf.painting.reasons import Rule

GREAT = 16.0  #: constants of this size are no longer small beside activations
NEVER = 1e4  #: and those of this size stand for never
LONGEST_SUM = 8  #: additions to one value, one after the other, that 16 bit may hold


def keep_origins(canvas: Canvas) -> None:
    """What joins exact float32 data to results of products, other than by multiplying, is float32; so are running sums.

    What only moves exact values is too, where something else than a product reads them.

    A sum runs where a value goes through arithmetic and comes back without a product in between: through a loop, as the
    result of a function that may be called again with it, or through a variable that is read again in the next step. A
    state that each iteration makes anew by a product, such as an LSTM's output, may be 16 bit. What the value is
    multiplied by is painted deny as well, up to the product that it comes from: .998 is 1 in bfloat16, and .998 to the
    500th is .37. So are the constant factors of what is added, which would be off by the same share in each step, and a
    chain of more than :data:`LONGEST_SUM` additions to one value; where a normalization or a gate lies between two, the
    sum begins anew.

    Difference "origin": TensorFlow converts sums as all arithmetic, and casts the float32 side of an addition down.

    Example (bfloat16)::

        step = MatMul(x, x)        f16
        moved = AddV2(x, step)     f16 → float32
        shown = Sigmoid(moved)     f16 → float32
        allow2 = MatMul(shown, x)  f16

    Example (bfloat16)::

        start = Enter(bias) frame_name='f'                        f16 → float32
        w = Enter(x) frame_name='f' is_constant=true              f16
        state = Merge(start, next)                                f16 → float32
        turns = Enter(go) T=bool frame_name='f' is_constant=true
        again = LoopCond(turns)
        switch = Switch(state, again)                             f16 → float32
        step = MatMul(switch:1, w)                                f16
        sum1 = AddV2(switch:1, step)                              f16 → float32
        next = NextIteration(sum1)                                f16 → float32
        done = Exit(switch)                                       f16
        allow2 = MatMul(done, x)                                  f16
    """
    flow = canvas.flow
    canvas.keep(_running_sums(canvas, flow), Rule.RUNNING_SUM)
    exact, joined = find_origins(flow.unmasked, flow.users)
    moving = flow.is_open & ~flow.computes & exact
    joined &= ~moving & ~flow.users
    canvas.keep(joined | flow.unmasked.upstream(joined, through=moving), Rule.JOINED)


def _running_sums(canvas: Canvas, flow: Flow) -> Mask:
    view, values = canvas.view, flow.values
    back: list[tuple[int, int]] = []
    arguments, results = view.nodes_with((ARG_OP,)), view.nodes_with((RETVAL_OP,))
    if arguments and results and not canvas.is_loop_body:  # each result may become each: all through the first argument
        first, *others = arguments
        back = [*((result, first) for result in results), *((first, other) for other in others)]
    # By way of a variable, a bias that a loss comes back to by a sum over all examples is no running sum. What a
    # normalization keeps running, or its gradient sums, is float32 whatever the type of its input.
    apart = values.nodes_of({*table.TOTALS, *table.SUMS_IN_BFLOAT16, *table.NORMALIZING, *table.NORMALIZING_GRADIENTS})
    stored = _stored_and_read(canvas)
    circling = np.zeros(view.node_count, np.bool_)
    cycles = values.cycles(~flow.users, back) if back or canvas.is_loop_body or "NextIteration" in view.ops else []
    for cycle in [*cycles, *(values.cycles(~flow.users & ~apart, stored) if stored else [])]:
        circling[cycle] |= flow.computes[cycle].any()
    found = circling | values.upstream(circling & values.nodes_of(table.SCALING), through=flow.is_open & ~circling)
    adding = values.nodes_of(table.ADDING) & flow.computes
    scaled = values.nodes_of(table.SCALING) & values.readers_of(values.nodes_of(("Const",)))
    sums, added = circling & adding, adding & ~circling
    if added.sum() > LONGEST_SUM:
        terms = np.where(added, np.maximum(values.count_inputs() - 1, 1), 0)
        passing = added | scaled | values.nodes_of(("BiasAdd",)) | ~flow.computes
        weights, between = flow.unmasked.heaviest_paths(flow.is_open & ~circling & passing, terms)
        long = between & (weights > LONGEST_SUM)
        found |= long
        sums |= long & adding
    factors = flow.unmasked.upstream(sums, through=(scaled | adding) & flow.is_open)  # of each step
    return (found | factors) & flow.is_open


def _stored_and_read(canvas: Canvas) -> list[tuple[int, int]]:
    """What writes a variable, and what reads it: the next step reads what this one stored."""
    view = canvas.view
    writing, reading = view.mask_with(table.STORING), view.mask_with(table.READ_OPS)
    if not writing.any():
        return []
    first = view.edges.at(view.edges.dst_position == 0)
    readers: dict[int, list[int]] = {}
    for handle, reader in first.at(reading[first.dst_node]).rows("src_node", "dst_node"):
        readers.setdefault(handle, []).append(reader)
    written = first.at(writing[first.dst_node])
    return [(node, read) for handle, node in written.rows("src_node", "dst_node") for read in readers.get(handle, ())]


def find_origins(values: Values, users: Mask) -> tuple[Mask, Mask]:
    """The nodes whose results are as large as something exact, and those of them that come from a product, too.

    Args:
        values: the graph.
        users: products, and calls of functions that compute some.
    """
    product = values.downstream(users, through=~users)
    sizes = values.view.of_constants(_largest, np.float32)
    given = _given(values.view) | _updates(values, users) | ((sizes >= GREAT) & (sizes < NEVER))
    multiplied = values.nodes_of(table.MULTIPLIED)
    masks = multiplied & values.readers_of(sizes >= NEVER)
    ends = values.nodes_of(table.ENDING_ORIGINS) | values.nodes_of(table.STORING)
    behind = product | users
    products_read = np.bincount(values.readers[behind[values.sources]], minlength=len(behind))
    drops = multiplied[values.readers] & (products_read[values.readers] > behind[values.sources])
    drops |= values.nodes_of(table.BIASES)[values.readers] & (values.positions == 1)
    drops |= (users | masks)[values.readers] | ends[values.sources]
    exact = given | values.along(given, ~drops)
    return exact, exact & product


def _updates(values: Values, users: Mask) -> Mask:
    """Additions to a weight that a product reads as it is."""
    variables = values.nodes_of({*table.READ_OPS, *table.REFERENCE_VARIABLES})
    read = variables & values.upstream(users, through=variables | values.nodes_of(table.HANDING_ON))
    read |= values.downstream(read, through=values.nodes_of(table.HANDING_ON))
    return values.nodes_of(table.ADDING) & values.readers_of(read)


def _given(view: GraphView) -> Mask:
    """The nodes that give exact values which no node of the graph computes."""
    given = view.mask_with(frozenset({*table.GIVEN, *table.RANGES}))
    given[view.given_arguments()] = True
    for node in view.nodes_with(table.CASTS):
        source = view.signatures[node].slot_of("SrcT")
        given[node] |= source is not None and view.dtypes[view.base[node] + source] in datatypes.INTEGERS
    return given


def _largest(values: npt.NDArray[np.float32]) -> float:
    sizes = np.abs(values[np.isfinite(values)])
    return float(sizes.max()) if sizes.size else 0.0
