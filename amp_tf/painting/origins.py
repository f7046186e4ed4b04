"""Forwards: where values come from, and what must not be rounded because of that; what 16 bit
cannot hold.

*Joined values.* NumPy, torch's autocast and Keras promote: float16 and float32 make float32.
TensorFlow's pass casts the float32 side down instead. Where that side is a coordinate, a time or a
phase, the sum is rounded at its size, and what the network contributed is gone: 5,000 m and a step
of 0.1 m are 5,008 m or 4,992 m in bfloat16.

Each value has an origin. *Product*: made by products and what follows them; it carries a rounding
of its own size already. *Parameter*: variables such as biases, which are small beside what they
join, tensors that a trace captured, random numbers, and constants below :data:`GREAT`. *Exact*:
what a program is given, counts, great constants, and the weights of products: what is added to one
is an update. *Joined*: exact and product, by an op that keeps absolute sizes: an addition, a
concatenation, a choice. To multiply joins nothing, because the error of a product stays relative;
so a factor that comes from a product ends what is exact, and so do ops whose result is bounded or
normalized. Numbers that stand for never, as in masks, are not joined to be kept: beside them all
else is to vanish.

*Running sums.* ``x = x + step`` in 16 bit stands still once a step is less than a 500th of x, in a
loop or written out. That the results of a function may be its next arguments covers functional
loops and steps that Python calls again, and costs nothing, because arguments are float32 anyway.
Chains are judged beyond 8 additions (the residual streams of deep networks): at 8 small steps the
error reaches 4 times that of the ideal mixed program.

Not covered: exact data that a trace captured; parameters that are not small; sums that leave
float16's range; and ops that need more of a product's value alone (:mod:`amp_tf.painting.needs`).

*Constants.* -1e9 stands for "never" in masks, Keras' own among them, and is below float16's least
number; so is ``tf.float32.min``, also below bfloat16's. A row of a mask that allows nothing, such
as that of a padded position, has a softmax in float32; of infinities it is NaN, and so is each
gradient then. 1e-8 guards logarithms and quotients from zero; float16 has no such number, and the
guard is gone. So is that of a probability which is clipped to 0.9999999, and the logarithm of what
is left to 1 is minus infinity. A few ops make such values themselves, and some on no list pass them
on. The constant need not be cast itself: Keras multiplies it in float32, and the product was cast.
Clamping each such cast would keep softmax in 16 bit, but hide the infinities by which loss scaling
knows an overflow. NVIDIA's users were told to write -1e4 where Keras writes -1e9.

*Squares and quotients*, in float16: 300 is an ordinary activation, and its square is infinite; 1e-4
is one, too, and so is the quotient of 10 by it, also where it is written as a multiplication by a
reciprocal (``tf.math.l2_normalize``). The gradient of a root is such a quotient, too, and so it is
once it was moved and multiplied by constants, as in the gradient of RMSNorm. What is multiplied by
gamma / sqrt(variance) is one, where the variance is of the batch: of equal rows it is zero.
Quotients by a constant and products of two different values are what the lists say.
"""

from __future__ import annotations

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import Mask, Node
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas, casts
from amp_tf.painting.flow import Flow
from amp_tf.painting.reasons import Rule
from amp_tf.precision import Precision

GREAT = 16.0  #: constants of this size are no longer small beside activations
NEVER = 1e4  #: and those of this size stand for never
LONGEST_SUM = 8  #: additions to one value, one after the other, that 16 bit may hold


def keep_origins(canvas: Canvas) -> None:
    """Keeps in float32 ops that join exact data to a product's result, except by multiplying; and
    running sums.

    So is what only moves exact values, where something else than a product reads them.

    A sum runs where a value goes through arithmetic and comes back without a product in between:
    through a loop, as the result of a function that may be called again with it, or through a
    variable that is read again in the next step. A state that each iteration makes anew by a
    product, such as an LSTM's output, may be 16 bit. What the value is multiplied by is painted
    deny as well, up to the product that it comes from: .998 is 1 in bfloat16, and .998 to the 500th
    is .37. So are the constant factors of what is added, which would be off by the same share in
    each step, and a chain of more than :data:`LONGEST_SUM` additions to one value, biases not
    counted; where a normalization or a gate lies between two, the sum begins anew.

    Difference "origin": TensorFlow converts sums as all arithmetic, and casts the float32 side of
    an addition down.

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
    canvas.keep(_running_sums(canvas, flow) & flow.is_open, Rule.RUNNING_SUM)
    exact, joined = find_origins(flow)
    moving = flow.is_open & ~flow.computes & exact
    joined &= ~moving & ~flow.users
    canvas.keep(joined | flow.upstream(joined, through=moving), Rule.JOINED)


def _running_sums(canvas: Canvas, flow: Flow) -> Mask:
    """Sums that run or are long, what they are multiplied by, and the constant factors of what is
    added.
    """
    adding, scaling = flow.nodes_of(table.ADDING) & flow.computes, flow.nodes_of(table.SCALING)
    scaled = scaling & flow.readers_of(flow.nodes_of(("Const",)))
    circling = _come_back(canvas, flow) | _stored_and_read(canvas, flow)
    multiplied = flow.upstream(circling & scaling, through=flow.is_open & ~circling)
    found = circling | _long_sums(flow, adding & ~circling, flow.is_open & ~circling, scaled)
    return (
        found | multiplied | flow.upstream(found & adding, through=(scaled | adding) & flow.is_open)
    )


def _come_back(canvas: Canvas, flow: Flow) -> Mask:
    """What a value goes through that comes back by a loop, or that may be an argument of the next
    call.
    """
    view = canvas.view
    arguments, results = view.nodes_with((ARG_OP,)), view.nodes_with((RETVAL_OP,))
    closing, links = view.mask_with(table.LOOP_CLOSERS), list[tuple[Node, Node]]()
    if canvas.is_loop_body:
        closing[results] = True
    elif arguments and results:  # each result may become each: all through the first argument
        first, *others = arguments
        links = [*((result, first) for result in results), *((first, other) for other in others)]
    return flow.on_cycles(~flow.users, closing, np.array(links, np.int32).reshape(-1, 2).T)


def _stored_and_read(canvas: Canvas, flow: Flow) -> Mask:
    """What a value goes through that a variable holds and a step writes: the next one reads it from
    there.

    By way of a variable, a bias that a loss comes back to by a sum over all examples is no running
    sum. What a normalization keeps running, or its gradient sums, is float32 whatever the type of
    its input.
    """
    view, edges = canvas.view, canvas.view.edges
    handles = edges.dst_position == 0
    writing, reading = (
        handles & view.mask_with(ops)[edges.dst_node] for ops in (table.STORING, table.READ_OPS)
    )
    is_read = np.zeros(view.node_count, np.bool_)
    is_read[edges.src_node[reading]] = True
    writing &= is_read[edges.src_node]
    sources = np.append(
        edges.dst_node[writing], edges.src_node[reading]
    )  # from what writes to the variable's handle
    readers = np.append(
        edges.src_node[writing], edges.dst_node[reading]
    )  # and from there to what reads
    apart = {
        *table.TOTALS,
        *table.SUMS_IN_BFLOAT16,
        *table.NORMALIZING,
        *table.NORMALIZING_GRADIENTS,
    }
    through = ~flow.users & ~view.mask_with(apart)
    return flow.on_cycles(through, np.zeros_like(through), np.array([sources, readers]))


def _long_sums(flow: Flow, adding: Mask, through: Mask, scaled: Mask) -> Mask:
    """What lies on chains of more than :data:`LONGEST_SUM` additions to one value, or between two
    of one chain.
    """
    if adding.sum() <= LONGEST_SUM:
        return np.zeros_like(adding)
    terms = np.where(adding & _steps(flow), np.maximum(flow.count_inputs() - 1, 1), 0)
    through = through & (adding | scaled | flow.nodes_of(("BiasAdd",)) | ~flow.computes)
    weights, between = flow.heaviest_paths(through, terms)
    return between & (weights > LONGEST_SUM)


def _steps(flow: Flow) -> Mask:
    """Of what adds, all but what begins a norm, x - mean, and what adds a parameter to a product,
    as a BiasAdd does.
    """
    norms = flow.nodes_of(table.SUBTRACTING) & _reading(flow, flow.nodes_of(table.TOTALS), 1)
    biases = find_biases(flow, flow.products | flow.nodes_of(table.BIASES))
    return flow.nodes_of(table.ADDING) & ~(norms | biases)


def find_biases(flow: Flow, values: Mask) -> Mask:
    """Returns the nodes that read a parameter and one of some values."""
    parameters = flow.nodes_of({*table.READ_OPS, *table.REFERENCE_VARIABLES, ARG_OP})
    parameters[flow.view.given_arguments()] = False
    return _reading(flow, parameters) & _reading(flow, values)


def _reading(flow: Flow, made: Mask, position: int | None = None) -> Mask:
    """Returns the nodes that read one of some values, or one that was only moved."""
    moving = flow.is_open & ~flow.computes
    return flow.readers_of(made | flow.downstream(made, through=moving), position)


def find_origins(flow: Flow) -> tuple[Mask, Mask]:
    """The nodes whose results are as large as something exact, and those of them that come from a
    product, too.
    """
    users, sizes = flow.users, flow.view.constants[2]
    product = flow.downstream(users, through=~users)
    variables = flow.nodes_of({*table.READ_OPS, *table.REFERENCE_VARIABLES})
    read = variables & flow.upstream(users, through=variables | flow.nodes_of(table.HANDING_ON))
    read |= flow.downstream(read, through=flow.nodes_of(table.HANDING_ON))
    updates = flow.nodes_of(table.ADDING) & flow.readers_of(
        read
    )  # of weights that a product reads as they are
    given = _given(flow.view) | updates | ((sizes >= GREAT) & (sizes < NEVER))
    multiplied = flow.nodes_of(table.MULTIPLIED)
    masks = multiplied & flow.readers_of(sizes >= NEVER)
    ends = flow.nodes_of(table.ENDING_ORIGINS) | flow.nodes_of(table.STORING)
    behind = product | users
    products_read = np.bincount(flow.readers[behind[flow.sources]], minlength=len(behind))
    drops = multiplied[flow.readers] & (products_read[flow.readers] > behind[flow.sources])
    drops |= flow.nodes_of(table.BIASES)[flow.readers] & (flow.positions == 1)
    drops |= (users | masks)[flow.readers] | ends[flow.sources]
    exact = given | flow.along(given, ~drops)
    return exact, exact & product


def _given(view: GraphView) -> Mask:
    """The nodes that give exact values which no node of the graph computes."""
    given = view.mask_with(frozenset({*table.GIVEN, *table.RANGES}))
    given[view.given_arguments()] = True
    for node, source, _ in casts(view):
        given[node] |= view.dtypes[source] in datatypes.INTEGERS
    return given


def keep_in_range(canvas: Canvas) -> None:
    """Keeps in float32 what reads a constant that 16 bit cannot hold, and what uses the result, up
    to the next product.

    So is what reads a variable with such a value, where the values are known: where a saved model
    is converted.

    That product does, too, if nothing but moves and multiplications lies between: ``matmul(ones *
    -1e9, pad)``. In float16 squares and quotients do, as powers and exponentials on its deny list.

    Difference "range": TensorFlow's pass looks at no values, and has Pow on the deny list, but not
    x * x and 1 / x.

    Example (float16)::

        never = Const() value=float32[]*-1e9
        allow1 = MatMul(x, x)                 f16
        infer1 = AddV2(allow1, never)         f16 → float32
        infer2 = Softmax(infer1)              f16 → float32
        allow2 = MatMul(infer2, x)            f16

    Example (float16)::

        allow1 = MatMul(x, x)         f16
        square = Mul(allow1, allow1)  f16 → float32
        infer1 = Tanh(square)         f16 → float32
        allow2 = MatMul(infer1, x)    f16
    """
    view, precision = canvas.view, canvas.target.precision
    # Some of the many values of a table of weights are always too small, and lost without harm.
    values, terms, largest = view.constants
    is_nearly_one = (terms == 1) & (largest != 1) & precision.rounds_to_one(largest)
    is_held = (
        (precision.smallest / 2 < largest) & (largest <= precision.max_finite) & ~is_nearly_one
    )
    constants = [*np.flatnonzero((terms > 0) & ~is_held).tolist(), *canvas.beyond_range]
    # Products that constants reach as large, or as small, as they are; 0.9999999 is 1 to a product.
    sized = np.flatnonzero((terms > 0) & ~is_held & ~(is_nearly_one & (values == 1))).tolist()
    sized += canvas.beyond_range
    keeping_size = canvas.on_allow & (canvas.deny ^ 1)
    keeping_size |= view.spread(view.mask_with(table.KEEPING_SIZE)) & canvas.is_float32
    reached = canvas.flood(canvas.float32_units(sized), keeping_size, forward=True)
    products = [unit for unit in reached if canvas.on_allow[unit]]
    canvas.keep_allowed(
        canvas.float32_units({view.unit_nodes[unit] for unit in products}), Rule.BEYOND_RANGE
    )
    passable = (canvas.on_infer | canvas.on_clear) & (canvas.deny ^ 1)
    passable |= view.spread(view.mask_with(table.CARRIERS)) & canvas.is_float32
    passable &= canvas.allow ^ 1  # carriers that the user forces
    sources = canvas.float32_units([*constants, *view.nodes_with(table.EXTREME_SOURCES)])
    kept = [unit for unit in products if canvas.deny[unit]]
    canvas.paint_deny(canvas.flood([*sources, *kept], passable, forward=True), Rule.BEYOND_RANGE)
    if precision is Precision.FLOAT16:
        canvas.keep(_squares_and_quotients(canvas.flow) & canvas.flow.computes, Rule.LEAVES_RANGE)


def _squares_and_quotients(flow: Flow) -> Mask:
    products, reciprocals, totals = (
        flow.nodes_of(ops) for ops in (("Mul",), table.RECIPROCALS, table.TOTALS)
    )
    of_batches = reciprocals & flow.downstream(totals, through=flow.is_open | reciprocals)
    by_reciprocals = products & flow.readers_of(
        reciprocals | flow.downstream(of_batches, through=products)
    )
    ranging = flow.nodes_of(table.RANGING) & ~(
        flow.readers_of(flow.nodes_of(("Const",)), position=1) & flow.nodes_of(table.DIVIDING)
    )
    of_roots = flow.nodes_of(table.RANGING_GRADIENTS)
    scaling = flow.nodes_of({"Mul", *table.DIVIDING}) & flow.readers_of(
        flow.nodes_of(table.CONSTANTS)
    )
    of_roots |= flow.downstream(of_roots, through=scaling | (flow.is_open & ~flow.computes))
    return ranging | find_squares(flow) | by_reciprocals | flow.readers_of(of_roots)


def find_squares(flow: Flow) -> Mask:
    """Returns the squares: nodes that square a value, or multiply it by itself."""
    squares = flow.nodes_of(table.SQUARES)
    edges = flow.view.edges
    read = edges.at(flow.nodes_of(("Mul",))[edges.dst_node])
    first, second = read.at(read.dst_position == 0), read.at(read.dst_position == 1)
    if len(first) == len(second):  # a broken graph may lack inputs
        is_same = (first.src_node == second.src_node) & (first.src_port == second.src_port)
        squares[first.dst_node[is_same]] = True
    return squares
