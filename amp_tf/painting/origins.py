"""Forwards: where values come from, and what must not be rounded because of that; what 16 bit cannot hold.

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

*Constants.* -1e9 stands for "never" in masks, Keras' own among them, and is below float16's least number; so is
``tf.float32.min``, also below bfloat16's. A row of a mask that allows nothing, such as that of a padded position, has a
softmax in float32; of infinities it is NaN, and so is each gradient then. 1e-8 guards logarithms and quotients from
zero; float16 has no such number, and the guard is gone. So is that of a probability which is clipped to 0.9999999, and
the logarithm of what is left to 1 is minus infinity. A few ops make such values themselves, and some on no list pass
them on. The constant need not be cast itself: Keras multiplies it in float32, and the product was cast. Clamping each
such cast would keep softmax in 16 bit, but hide the infinities by which loss scaling knows an overflow. NVIDIA's users
were told to write -1e4 where Keras writes -1e9.

*Squares and quotients*, in float16: 300 is an ordinary activation, and its square is infinite; 1e-4 is one, too, and so
is the quotient of 10 by it, also where it is written as a multiplication by a reciprocal (``tf.math.l2_normalize``).
The gradient of a root is such a quotient, too, and so it is once it was moved and multiplied by constants, as in the
gradient of RMSNorm. What is multiplied by gamma / sqrt(variance) is one, where the variance is of the batch: of equal
rows it is zero. Quotients by a constant and products of two different values are what the lists say.
"""

from __future__ import annotations

import itertools

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import Mask
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas, casts
from amp_tf.painting.flow import Flow, Values
from amp_tf.painting.reasons import Rule
from amp_tf.precision import Precision

GREAT = 16.0  #: constants of this size are no longer small beside activations
NEVER = 1e4  #: and those of this size stand for never
LONGEST_SUM = 8  #: additions to one value, one after the other, that 16 bit may hold


def keep_origins(canvas: Canvas) -> None:
    """Keeps in float32 ops that join exact data to a product's result, except by multiplying; and running sums.

    So is what only moves exact values, where something else than a product reads them.

    A sum runs where a value goes through arithmetic and comes back without a product in between: through a loop, as the
    result of a function that may be called again with it, or through a variable that is read again in the next step. A
    state that each iteration makes anew by a product, such as an LSTM's output, may be 16 bit. What the value is
    multiplied by is painted deny as well, up to the product that it comes from: .998 is 1 in bfloat16, and .998 to the
    500th is .37. So are the constant factors of what is added, which would be off by the same share in each step, and a
    chain of more than :data:`LONGEST_SUM` additions to one value, biases not counted; where a normalization or a gate
    lies between two, the sum begins anew.

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
    if back or canvas.is_loop_body or "NextIteration" in view.numbered_ops[0]:
        circling[[*itertools.chain(*values.cycles(~flow.users, flow.computes, back))]] = True
    if stored:
        circling[[*itertools.chain(*values.cycles(~flow.users & ~apart, flow.computes, stored))]] = True
    found = circling | values.upstream(circling & values.nodes_of(table.SCALING), through=flow.is_open & ~circling)
    adding = values.nodes_of(table.ADDING) & flow.computes
    scaled = values.nodes_of(table.SCALING) & values.readers_of(values.nodes_of(("Const",)))
    sums, added = circling & adding, adding & ~circling
    if added.sum() > LONGEST_SUM:
        terms = np.where(added & _steps(flow), np.maximum(values.count_inputs() - 1, 1), 0)
        passing = added | scaled | values.nodes_of(("BiasAdd",)) | ~flow.computes
        weights, between = flow.unmasked.heaviest_paths(flow.is_open & ~circling & passing, terms)
        long = between & (weights > LONGEST_SUM)
        found |= long
        sums |= long & adding
    factors = flow.unmasked.upstream(sums, through=(scaled | adding) & flow.is_open)  # of each step
    return (found | factors) & flow.is_open


def _steps(flow: Flow) -> Mask:
    """Of what adds, all but what begins a norm, x - mean, and what adds a parameter to a product, as a BiasAdd does."""
    values, moving = flow.values, flow.is_open & ~flow.computes
    parameters = values.nodes_of({*table.READ_OPS, *table.REFERENCE_VARIABLES, ARG_OP})
    parameters[values.view.given_arguments()] = False

    def reading(made: Mask, position: int | None = None) -> Mask:
        return values.readers_of(made | values.downstream(made, through=moving), position)

    norms = values.nodes_of(table.SUBTRACTING) & reading(values.nodes_of(table.TOTALS), 1)
    biases = reading(parameters) & reading(flow.products | values.nodes_of(table.BIASES))
    return values.nodes_of(table.ADDING) & ~(norms | biases)


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
    """The nodes whose results are as large as something exact, and those of them that come from a product, too."""
    product = values.downstream(users, through=~users)
    sizes = values.view.constants[2]
    variables = values.nodes_of({*table.READ_OPS, *table.REFERENCE_VARIABLES})
    read = variables & values.upstream(users, through=variables | values.nodes_of(table.HANDING_ON))
    read |= values.downstream(read, through=values.nodes_of(table.HANDING_ON))
    updates = values.nodes_of(table.ADDING) & values.readers_of(read)  # of weights that a product reads as they are
    given = _given(values.view) | updates | ((sizes >= GREAT) & (sizes < NEVER))
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


def _given(view: GraphView) -> Mask:
    """The nodes that give exact values which no node of the graph computes."""
    given = view.mask_with(frozenset({*table.GIVEN, *table.RANGES}))
    given[view.given_arguments()] = True
    for node, source, _ in casts(view):
        given[node] |= view.dtypes[source] in datatypes.INTEGERS
    return given


def keep_in_range(canvas: Canvas) -> None:
    """Keeps in float32 what reads a constant that 16 bit cannot hold, and what uses the result, up to the next product.

    That product does, too, if nothing but moves and multiplications lies between: ``matmul(ones * -1e9, pad)``. In
    float16 squares and quotients do, as powers and exponentials on its deny list.

    Difference "range": TensorFlow's pass looks at no values, and has Pow on the deny list, but not x * x and 1 / x.

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
    is_held = (precision.smallest / 2 < largest) & (largest <= precision.max_finite) & ~is_nearly_one
    constants = np.flatnonzero((terms > 0) & ~is_held).tolist()
    # Products that constants reach as large, or as small, as they are; 0.9999999 is 1 to a product.
    sized = np.flatnonzero((terms > 0) & ~is_held & ~(is_nearly_one & (values == 1))).tolist()
    keeping_size = canvas.on_allow & (canvas.deny ^ 1)
    keeping_size |= view.spread(view.mask_with(table.KEEPING_SIZE)) & canvas.is_float32
    reached = canvas.flood(canvas.float32_units(sized), keeping_size, forward=True)
    products = [unit for unit in reached if canvas.on_allow[unit]]
    canvas.keep_allowed(canvas.float32_units({view.unit_nodes[unit] for unit in products}), Rule.BEYOND_RANGE)
    passable = (canvas.on_infer | canvas.on_clear) & (canvas.deny ^ 1)
    passable |= view.spread(view.mask_with(table.CARRIERS)) & canvas.is_float32
    passable &= canvas.allow ^ 1  # carriers that the user forces
    sources = canvas.float32_units([*constants, *view.nodes_with(table.EXTREME_SOURCES)])
    kept = [unit for unit in products if canvas.deny[unit]]
    canvas.paint_deny(canvas.flood([*sources, *kept], passable, forward=True), Rule.BEYOND_RANGE)
    if precision is Precision.FLOAT16:
        canvas.keep(_squares_and_quotients(canvas.flow) & canvas.flow.computes, Rule.LEAVES_RANGE)


def _squares_and_quotients(flow: Flow) -> Mask:
    values = flow.values
    products, reciprocals, totals = (values.nodes_of(ops) for ops in (("Mul",), table.RECIPROCALS, table.TOTALS))
    of_batches = reciprocals & values.downstream(totals, through=flow.is_open | reciprocals)
    by_reciprocals = products & values.readers_of(reciprocals | values.downstream(of_batches, through=products))
    ranging = values.nodes_of(table.RANGING) & ~(
        values.readers_of(values.nodes_of(("Const",)), position=1) & values.nodes_of(table.DIVIDING)
    )
    of_roots = values.nodes_of(table.RANGING_GRADIENTS)
    scaling = values.nodes_of({"Mul", *table.DIVIDING}) & values.readers_of(values.nodes_of(table.CONSTANTS))
    of_roots |= values.downstream(of_roots, through=scaling | (flow.is_open & ~flow.computes))
    edges = values.view.edges
    read = edges.at(values.nodes_of(("Mul",))[edges.dst_node])
    first, second = read.at(read.dst_position == 0), read.at(read.dst_position == 1)
    squares = np.zeros_like(ranging)
    if len(first) == len(second):  # a broken graph may lack inputs
        squares[first.dst_node[(first.src_node == second.src_node) & (first.src_port == second.src_port)]] = True
    return ranging | squares | by_reciprocals | values.readers_of(of_roots)
