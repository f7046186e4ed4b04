"""Random programs: inputs, steps and perhaps a loss, of which gradients are taken.

Data, that can be cut down.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np

from tests.truth.fuzzing import steps
from tests.truth.fuzzing.steps import (
    ROWS,
    WIDTH,
    Affine,
    Binary,
    Block,
    Branch,
    Elementwise,
    Loop,
    Move,
    Normalize,
    Product,
    Reduce,
    Step,
    Store,
    Weighted,
)

SCALES = (1e-3, 1e-2, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 10.0, 100.0, 1e3)
ODD = ("", "", "", "", "", "zero rows", "equal rows", "half masked", "mean 10", "whole numbers")
LOSSES = (
    "",
    "mean square",
    "sum of squares",
    "mean",
    "huber",
    "cross entropy",
    "binary cross entropy",
)
STEPS = (3, 12)  # of a program, at least and at most
DEPTH = 2  # of blocks in blocks
LATE = (
    10_000_000  # from this seed on programs are given something exact late: a coordinate or a time
)
JOINS = ("add", "subtract", "residual", "maximum", "mix", "select", "interleave", "join")


@dataclasses.dataclass(frozen=True)
class Input:
    """Normally distributed values, or some that are odd."""

    scale: float = 1.0
    odd: str = ""

    def draw(self, dice):
        values = dice.normal(size=(ROWS, WIDTH))
        if self.odd == "zero rows":
            values[::2] = 0
        elif self.odd == "equal rows":
            values[:] = values[0]
        elif self.odd == "half masked":
            values[:, WIDTH // 2 :] = 0
        elif self.odd == "mean 10":
            values += 10
        elif self.odd == "whole numbers":
            values = np.round(10 * values)
        elif self.odd == "coordinates":
            values += 1000
        elif self.odd == "times":
            values = 500 + np.abs(values).cumsum(0)
        return (self.scale * values).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Program:
    """The last step's value is the output; a loss is taken of it, and its gradients by all
    variables and inputs.
    """

    inputs: tuple[Input, ...]
    steps: Block
    loss: str = ""


def blocks_of(step):
    """The names of the fields that hold blocks, and the blocks."""
    for field in dataclasses.fields(step):
        value = getattr(step, field.name)
        if isinstance(value, tuple) and value and isinstance(value[0], Step):
            yield field.name, value


def steps_of(block):
    """All steps, those inside of others too."""
    for step in block:
        yield step
        for _, inner in blocks_of(step):
            yield from steps_of(inner)


def random_program(seed):
    """The program of a seed; it has two products at least.

    From :data:`LATE` on, something exact joins what products gave, and its size is taken off again.
    """
    dice = random.Random(seed)
    inputs = tuple(
        Input(dice.choice(SCALES), dice.choice(ODD)) for _ in range(dice.choice((1, 1, 2)))
    )
    first = Weighted((0,), dice.choice(tuple(steps.WEIGHTED)), dice.random() < 0.5)
    block = (first, *_random_block(dice, len(inputs) + 1, dice.randint(*STEPS), DEPTH))
    last = Weighted(
        (len(inputs) + len(block) - 1,), dice.choice(tuple(steps.WEIGHTED)), dice.random() < 0.5
    )
    block = (
        *block,
        last,
        *([Elementwise((len(inputs) + len(block),), "tanh")] if dice.random() < 0.2 else ()),
    )
    program = Program(inputs, block, dice.choice(LOSSES))
    return _without_unread(_with_late_input(program, dice) if seed >= LATE else program)


def cuts(program):
    """Programs that are a little smaller, the much smaller ones first."""
    for end in range(1, len(program.steps)):
        yield _without_unread(dataclasses.replace(program, steps=program.steps[:end]))
    for block in _cut_blocks(program.steps, len(program.inputs)):
        yield _without_unread(dataclasses.replace(program, steps=block))
    if program.loss:
        yield dataclasses.replace(program, loss="")


def _cut_blocks(block, given):
    """A step gone, what it read in its place, or a step with a smaller block."""
    for index, step in enumerate(block):
        kept = [_renumbered(later, given + index, step.of[0]) for later in block[index + 1 :]]
        if kept:
            yield (*block[:index], *kept)
        for name, inner in blocks_of(step):
            for smaller in _cut_blocks(inner, 2 if isinstance(step, Loop) else 1):
                yield (
                    *block[:index],
                    dataclasses.replace(step, **{name: smaller}),
                    *block[index + 1 :],
                )


def _renumbered(step, gone, instead=0):
    """A step behind one whose value is gone; another value is read instead."""
    new = (instead if number == gone else number - (number > gone) for number in step.of)
    return dataclasses.replace(step, of=tuple(new))


def _without_unread(program):
    """Without the steps whose values nobody reads, but for stores, and without unread inputs."""
    count = len(program.inputs)
    block = list(program.steps)
    for index in range(len(block) - 2, -1, -1):
        number = count + index
        if isinstance(block[index], Store) or any(
            number in later.of for later in block[index + 1 :]
        ):
            continue
        block[index:] = [_renumbered(later, number) for later in block[index + 1 :]]
    inputs = list(program.inputs)
    for number in range(count - 1, -1, -1):
        if len(inputs) > 1 and not any(number in step.of for step in block):
            del inputs[number]
            block = [_renumbered(step, number) for step in block]
    return Program(tuple(inputs), tuple(block), program.loss)


def _with_late_input(program, dice):
    """With one more input, which meets the value of a step; those that read it read what is left
    without the offset.
    """
    exact = len(program.inputs)
    block = [
        dataclasses.replace(step, of=tuple(n + (n >= exact) for n in step.of))
        for step in program.steps
    ]
    place = dice.randrange(1, len(block))
    met = exact + place
    joined = exact + place + 1
    ends = (
        [Normalize((joined,), "center")],
        [Binary((joined, exact), "subtract")],
        [Move((joined,), "flip"), Binary((joined, joined + 1), "subtract")],
        [Elementwise((joined,), dice.choice(("sin", "cos")))],
    )
    fresh = [Binary((exact, met), dice.choice(JOINS)), *dice.choice(ends)]
    count = len(fresh)

    def moved(number):
        return number + count if number >= met else number

    later = [dataclasses.replace(step, of=tuple(map(moved, step.of))) for step in block[place:]]
    given = Input(1.0, dice.choice(("coordinates", "times")))
    return Program((*program.inputs, given), (*block[:place], *fresh, *later), program.loss)


def _random_block(dice, given, count, depth):
    return tuple(_random_step(dice, given + index, depth) for index in range(count))


def _random_step(dice, values, depth):
    """A step that reads some of the values so far, the latest more often."""

    def one():
        return values - 1 if dice.random() < 0.6 else dice.randrange(values)

    kind = dice.choice((OUTSIDE if depth == DEPTH else KINDS) if depth else FLAT)
    if kind is Weighted:
        return Weighted((one(),), dice.choice(tuple(steps.WEIGHTED)), dice.random() < 0.4)
    if kind is Affine:
        return Affine(
            (one(),),
            dice.choice((0.01, 0.1, 0.5, -1.0, 2.0, 10.0)),
            dice.choice((0.0, 0.0, 1.0, -0.5)),
        )
    if kind is Reduce:
        return Reduce((one(),), dice.choice(tuple(steps.REDUCTIONS)), dice.randrange(2))
    if kind is Store:
        return Store((one(),), dice.choice(("assign", "add", "average")))
    if kind is Loop:
        body = _random_block(dice, 2, dice.randint(1, 4), depth - 1)
        return Loop(
            (one(), one()), dice.choice((1, 3, 10, 30)), dice.choice((0.0, 0.0, 0.01, 0.1)), body
        )
    if kind is Branch:
        first, second = (_random_block(dice, 1, dice.randint(1, 3), depth - 1) for _ in range(2))
        return Branch((one(),), dice.choice((0.0, -1e9, 1e9)), first, second)
    of = (one(), dice.randrange(values)) if kind in (Product, Binary) else (one(),)
    return kind(of, dice.choice(tuple(kind.table)))


# Stores stay outside of blocks, where their values are results of the program.
FLAT = (
    (Weighted,) * 5
    + (Elementwise,) * 5
    + (Binary,) * 4
    + (Normalize,) * 2
    + (Affine, Reduce, Move, Product)
)
KINDS = FLAT * 3 + (Loop,) * 3 + (Branch,) * 2
OUTSIDE = KINDS + (Store,) * 3
