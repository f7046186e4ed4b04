"""Random programs of products in loops, branches and calls, which read and write variables: data
that can be run.

A program is a block, a row of steps; each step takes the value of the step before. The values that
the program runs on (``program_values.py``) make a product one of matrices, or of images and
filters. Every step runs eagerly too, without amp_tf, and that result is the expected one.

Programs can be cut down, and print as text that runs again. An optimizer of TensorFlow's that gives
up counts as a failure: the graph then runs as before every optimizer, with right results that say
nothing about amp_tf.
"""

from __future__ import annotations

import abc
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tests.hooks.program_values import CONSTANTS, WEIGHTS, Values

Block = tuple["Step", ...]
Weights = Sequence[
    tf.Variable | tf.Tensor
]  # as many as there are variables: these, or what a loop or call was given

DEPTH = 3  # of blocks in blocks
MOST_PRODUCTS = 60  # in one run; rounding errors add up


def random_program(seed: int) -> Block:
    """The program of a seed; it runs 1 to :data:`MOST_PRODUCTS` products."""
    dice = random.Random(seed)
    while True:
        program = _random_block(dice, DEPTH, None)
        if 0 < count_products(program) <= MOST_PRODUCTS:
            return program


def run_block(block: Block, x: tf.Tensor, weights: Weights, values: Values) -> tf.Tensor:
    """Runs the steps, in order; ``x`` and the result have the same shape."""
    for step in block:
        x = step.run(x, weights, values)
    return x


def count_products(block: Block) -> int:
    """How many products one run computes; a bound where a branch is not taken."""
    return sum(step.products() for step in block)


def made_small(block: Block, fails: Callable[[Block], bool]) -> Block:
    """A program that still fails and that no single cut makes smaller.

    The cuts: a step gone, a step replaced by a block in it, a cut in a block in a step.
    """
    for candidate in _cuts(block):
        if fails(candidate):
            return made_small(candidate, fails)
    return block


def _cuts(block: Block) -> Iterator[Block]:
    for index, step in enumerate(block):
        before = block[:index]
        after = block[index + 1 :]
        if before or after:
            yield before + after
        for name, inner in step.blocks():
            yield before + inner + after
            for smaller in _cuts(inner):
                yield (*before, dataclasses.replace(step, **{name: smaller}), *after)


class Step(abc.ABC):
    """One step; the fields of a step are all that there is to it, and its repr can be run again."""

    @abc.abstractmethod
    def run(self, x: tf.Tensor, weights: Weights, values: Values) -> tf.Tensor:
        """The next value; a variable may change."""

    def products(self) -> int:
        """At most how many products one run computes: one block's, or one."""
        return max((count_products(block) for _, block in self.blocks()), default=1)

    def blocks(self) -> Iterator[tuple[str, Block]]:
        """The names of the fields that hold blocks, and the blocks."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                yield field.name, value


@dataclasses.dataclass(frozen=True)
class Multiply(Step):
    """By a weight that the block was given, by a constant, or by a variable itself, which a
    function captures.
    """

    of: str
    number: int
    style: int

    def run(self, x, weights, values):
        found = {"given": weights, "constant": values.constants, "variable": values.variables}[
            self.of
        ]
        return values.multiply(x, found[self.number], self.style)


@dataclasses.dataclass(frozen=True)
class Write(Step):
    """Writes a variable, then multiplies by it."""

    variable: int
    negates: bool
    style: int

    def run(self, x, weights, values):
        variable = values.variables[self.variable]
        variable.assign(-variable if self.negates else values.turned(variable))
        return values.multiply(x, variable, self.style)


@dataclasses.dataclass(frozen=True)
class Loop(Step):
    turns: int
    body: Block

    def run(self, x, weights, values):
        def body(turn, y):
            return turn + 1, run_block(self.body, y, weights, values)

        return tf.while_loop(lambda turn, _: turn < self.turns, body, [0, x])[1]

    def products(self):
        return self.turns * count_products(self.body)


@dataclasses.dataclass(frozen=True)
class LoopOverWeights(Step):
    """A loop that carries the weights too, and may negate one of them in each turn."""

    turns: int
    negated: int | None
    body: Block

    def run(self, x, weights, values):
        def body(turn, y, *carried):
            result = run_block(self.body, y, carried, values)
            after = [
                -weight if index == self.negated else weight for index, weight in enumerate(carried)
            ]
            return turn + 1, result, *after

        start = [0, x, *map(tf.convert_to_tensor, weights)]
        return tf.while_loop(lambda turn, *_: turn < self.turns, body, start)[1]

    def products(self):
        return self.turns * count_products(self.body)


@dataclasses.dataclass(frozen=True)
class Condition(Step):
    """Two branches; which is taken is not known before the program runs."""

    takes_first: bool
    first: Block
    second: Block

    def run(self, x, weights, values):
        limit = 1.0 if self.takes_first else -1.0
        return tf.cond(
            tf.reduce_sum(x) * 0.0 < limit,
            lambda: run_block(self.first, x, weights, values),
            lambda: run_block(self.second, x, weights, values),
        )


@dataclasses.dataclass(frozen=True)
class Choice(Step):
    """Three branches, of which the last does nothing."""

    taken: int
    first: Block
    second: Block

    def run(self, x, weights, values):
        branches = [
            lambda: run_block(self.first, x, weights, values),
            lambda: run_block(self.second, x, weights, values),
            lambda: x,
        ]
        return tf.switch_case(tf.cast(tf.reduce_sum(x) * 0.0, tf.int32) + self.taken, branches)


@dataclasses.dataclass(frozen=True)
class CallWithWeights(Step):
    """Calls a function that is given the weights."""

    body: Block

    def run(self, x, weights, values):
        return tf.function(lambda y, given: run_block(self.body, y, given, values))(
            x, list(weights)
        )


@dataclasses.dataclass(frozen=True)
class CallTwice(Step):
    """Calls a function that captures the variables, and calls it again with its result."""

    body: Block

    def run(self, x, weights, values):
        function = tf.function(lambda y: run_block(self.body, y, values.variables, values))
        return function(function(x))

    def products(self):
        return 2 * count_products(self.body)


def _random_block(dice: random.Random, depth: int, where: type[Step] | None) -> Block:
    """Some steps; ``where`` is the kind of step that holds them."""
    count = dice.choice((1, 1, 2, 3) if where in CALLS else (1, 2, 3))
    return tuple(_random_step(dice, depth, where) for _ in range(count))


def _random_step(dice: random.Random, depth: int, where: type[Step] | None) -> Step:
    kinds = NESTED.get(where, IN_A_CALL_OR_BRANCH) if depth else SIMPLE
    kind = dice.choice(kinds)
    style = dice.randrange(1 << 16)
    # One variable is met more often, so that what some step writes another one reads.
    weight = dice.choice((0, 0, *range(WEIGHTS)))
    if kind == "constant":
        return Multiply(kind, dice.randrange(CONSTANTS), style)
    if isinstance(kind, str):
        return Multiply(kind, weight, style)
    if kind is Write:
        return Write(weight, dice.random() < 0.5, style)
    block = _random_block(dice, depth - 1, kind)
    if kind is Loop:
        return Loop(dice.choice((0, 1, 2, 3, 3)), block)
    if kind is LoopOverWeights:
        return LoopOverWeights(dice.randrange(1, 4), dice.choice((None, *range(WEIGHTS))), block)
    if kind in CALLS:
        return kind(block)
    other = _random_block(dice, depth - 1, kind)
    if kind is Condition:
        return Condition(dice.random() < 0.5, block, other)
    return Choice(dice.randrange(3), block, other)


# Kinds of steps, the more frequent ones more often. Programs are mostly loops of calls of products:
# what a rewrite moves out of one of these meets the others' effects.
CALLS = (CallWithWeights, CallTwice)
SIMPLE = ("given",) * 3 + ("variable",) * 2 + (Write,) * 3 + ("constant",)
IN_A_CALL_OR_BRANCH = SIMPLE * 3 + (
    Loop,
    CallWithWeights,
    CallTwice,
    LoopOverWeights,
    Condition,
    Choice,
)
IN_A_LOOP = IN_A_CALL_OR_BRANCH + (CallWithWeights,) * 20 + (CallTwice,) * 5
OUTSIDE = IN_A_CALL_OR_BRANCH + (Loop,) * 20
NESTED = {None: OUTSIDE, Loop: IN_A_LOOP, LoopOverWeights: IN_A_LOOP}
