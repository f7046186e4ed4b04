"""Origins, forwards: where values come from, and which must not be rounded because of that.

*Joined values.* NumPy, torch's autocast and Keras promote: float16 and float32 make float32.
TensorFlow's pass casts the float32 side down instead. If that side is a coordinate, a time or a
phase, the sum is rounded at its size, and the network's contribution is lost: 5,000 m and a step of
0.1 m are 5,008 m or 4,992 m in bfloat16.

Each value has an origin. *Product*: a product's result and values computed from it, which carry a
rounding of their own size already. *Parameter*: variables such as biases, which are small beside
the values they are added to, tensors that a trace captured, random numbers, and constants below
:data:`GREAT`. *Exact*: the program's inputs, counts, great constants, and sums of what a variable
holds and of an update, if they are stored again. *Joined*: an exact value and a product's, by an op
that keeps absolute sizes: an addition, a concatenation, a choice. A multiplication joins nothing,
because its error stays relative; so the result of multiplying by a value from a product is no
longer exact, and neither are bounded or normalized results. Numbers that stand for never, as in
masks, are not exact either: all values beside them are to vanish.

*Running sums.* ``x = x + step`` in 16 bit stands still once a step is less than a 500th of x, in a
loop or written out. The results of a function are taken as its possible next arguments, which
covers functional loops and steps that Python calls again, and costs nothing, because arguments are
float32 anyway. A chain counts as a sum beyond 8 additions (as in the residual streams of deep
networks): at 8 small steps the error reaches 4 times that of the ideal mixed program.

Not covered: exact data that a trace captured, parameters that are not small, sums that leave
float16's range, and readers that need a product's value exactly (:mod:`amp_tf.painting.needs`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import EdgeMask, Node, NodeMask, indices
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.painting.decisions import NodeDecision
from amp_tf.painting.reasons import Code
from amp_tf.painting.value_graph import ValueGraph, casts_of

GREAT = 16.0  #: constants of this size are no longer small beside activations
NEVER = 1e4  #: and those of this size stand for never, unless they are added to all values
LONGEST_CHAIN = 8  #: additions to one value, or multiplications, that 16 bit may hold


def keep_origins(values: ValueGraph) -> Iterator[NodeDecision]:
    """Keeps in float32 ops that join exact data to a product's result, except by multiplying; and
    running sums.

    Nodes that only move exact values stay, too, unless products alone read them.

    A sum runs where a value goes through arithmetic and comes back without a product in between:
    through a loop, or as the result of a function that may be called again with it. A state that
    each iteration makes anew by a product, such as an LSTM's output, may be 16 bit. The factors of
    the value are painted deny as well, back to the product that they come from: .998 is 1 in
    bfloat16, and .998 to the 500th is .37. So are the constant factors of the terms, which would be
    off by the same share in each step, and chains of more than :data:`LONGEST_CHAIN` additions to
    one value. Biases do not count; after a normalization or a gate, a sum begins anew. A chain of
    as many multiplications is kept with all that its factors are computed of.

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
    yield NodeDecision(_running_sums(values) & values.is_open, Code.RUNNING_SUM)
    exact, joined = find_origins(values)
    moving = values.moving & exact
    joined &= ~moving & ~values.users
    yield NodeDecision(values.upstream(joined, through=moving), Code.JOINED)


def _running_sums(values: ValueGraph) -> NodeMask:
    """Returns sums that run or are long, long products, and the factors of these and of sums that
    run.
    """
    adding = values.of_ops(table.ADDING) & values.computes
    scaling = values.of_ops(table.SCALING)
    scaled = scaling & values.readers_of(values.of_ops(("Const",)))
    circling = _come_back(values)
    straight = values.is_open & ~circling
    passing = adding | scaled | ~values.computes
    sums = _long_chains(values, adding & _steps(values), straight & passing)
    multiplying = scaling & values.computes
    powers = _long_chains(values, multiplying, straight & (multiplying | ~values.computes))
    multiplied = values.upstream(powers | (circling & scaling), through=straight)
    return circling | sums | powers | multiplied


def _come_back(values: ValueGraph) -> NodeMask:
    """Returns the nodes of a value that comes back by a loop, or that may be an argument of the
    next call.
    """
    view = values.view
    arguments = view.nodes_with((ARG_OP,))
    # Each result may become any argument of the next call.
    results = indices(view.mask_with((RETVAL_OP,)) & ~values.closing)
    links: list[tuple[Node, Node]] = []
    if arguments and results:
        first, *others = arguments
        links += itertools.product(results, [first])
        links += itertools.product([first], others)
    return values.on_cycles(
        ~values.users, values.closing, np.array(links, np.int32).reshape(-1, 2).T
    )


def _long_chains(values: ValueGraph, steps: NodeMask, through: NodeMask) -> NodeMask:
    """Returns the nodes on chains of more than :data:`LONGEST_CHAIN` steps, and those between two
    steps of a chain.

    Args:
        steps: the additions, or the multiplications, that count.
        through: the nodes of which chains consist.
    """
    steps = steps & through
    if steps.sum() <= LONGEST_CHAIN:
        return np.zeros_like(steps)
    terms = np.maximum(values.count_inputs() - 1, 1)
    weights = np.where(steps, terms, 0)
    heaviest, between = values.heaviest_paths(through, weights)
    return between & (heaviest > LONGEST_CHAIN)


def _steps(values: ValueGraph) -> NodeMask:
    """Returns all additions except x - mean, with which a normalization begins, and those of a
    parameter to a product, as by a BiasAdd.
    """
    centring = _reading(values, values.of_ops(table.TOTALS), 1)
    norms = values.of_ops(table.SUBTRACTING) & centring
    biases = find_biases(values, values.products | values.of_ops(table.BIASES))
    return values.of_ops(table.ADDING) & ~(norms | biases)


def find_biases(values: ValueGraph, biased: NodeMask) -> NodeMask:
    """Returns the nodes that read both a parameter and the value of a node of ``biased``."""
    return values.readers_of(values.parameters) & _reading(values, biased)


def _reading(values: ValueGraph, made: NodeMask, position: int | None = None) -> NodeMask:
    """Returns the readers of some nodes' values, directly or through nodes that move them."""
    return values.readers_of(values.downstream(made, through=values.moving), position)


def find_origins(values: ValueGraph) -> tuple[NodeMask, NodeMask]:
    """Returns the nodes whose results are as large as something exact, and those of them that come
    from a product, too.
    """
    product = values.downstream(values.users, through=~values.users)
    given = _given(values.view) | _updates(values) | _great_constants(values)
    exact = values.downstream_along(given, ~_dropping(values, product))
    return exact, exact & product


def _great_constants(values: ValueGraph) -> NodeMask:
    """Returns great constants, without those that stand for never.

    A number that is added to all values cannot stand for never: it is an offset, whatever its size.
    """
    counts, _, sizes = values.view.constants
    offsets = (counts == 1) & values.sources_of(values.of_ops(table.ADDING))
    found: NodeMask = (sizes >= GREAT) & ((sizes < NEVER) | offsets)
    return found


def _updates(values: ValueGraph) -> NodeMask:
    """Returns the additions, to what a variable holds, whose result is stored again."""
    passing = values.moving | values.of_ops(table.SCALING | table.ADDING)
    read = values.of_ops(table.VARIABLE_VALUES | table.REFERENCE_VARIABLES)
    summed = values.downstream(read, through=passing)
    stored = values.upstream(values.of_ops(table.STORING), through=passing)
    return values.of_ops(table.ADDING) & summed & stored


def _dropping(values: ValueGraph, behind: NodeMask) -> EdgeMask:
    """Returns the edges that carry no exact value on.

    Args:
        behind: the products, and the nodes whose values come from one.
    """
    multiplied = values.of_ops(table.MULTIPLIED)
    masks = multiplied & values.readers_of(values.view.constants[2] >= NEVER)
    ends = values.of_ops(table.ENDING_ORIGINS) | values.of_ops(table.STORING)
    # A factor that comes from a product ends what is exact.
    count = values.count_inputs(behind)
    dropping = multiplied[values.readers] & (count[values.readers] > behind[values.sources])
    dropping |= values.of_ops(table.BIASES)[values.readers] & (values.positions == 1)
    return dropping | (values.users | masks)[values.readers] | ends[values.sources]


def _given(view: GraphView) -> NodeMask:
    """Returns the nodes that give exact values which no node of the graph computes."""
    given = view.mask_with(table.GIVEN)
    given[view.given_arguments] = True
    for node, source, _ in casts_of(view):
        given[node] |= view.dtypes[source] in datatypes.INTEGERS
    return given
