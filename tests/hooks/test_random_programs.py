"""Random programs, compiled by XLA and run by Grappler, with amp_tf: what they compute eagerly, but for rounding.

A few seeds, the same in every run; ``scripts/fuzz_parity compiled`` rolls new ones and makes what fails small.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hooks import random_programs
from tests.hooks.program_runs import KINDS, run_programs
from tests.hooks.random_programs import Block, CallTwice, Loop, Multiply, Step, Write, made_small, random_program


def steps_of(block: Block) -> Iterator[Step]:
    for step in block:
        yield step
        for _, inner in step.blocks():
            yield from steps_of(inner)


# The first two moved a variable's read past a write once; several of the others folded in the wrong frame of a loop.
SEEDS = {
    "matrices": (258, 306, *range(12)),
    "convolutions": (0, 1, 3, 6, 13, 14, 19, 20, 24, 25, 26, 38),
    "twins": tuple(range(10)),
}


@pytest.mark.quick
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_variables_are_those_of_the_eager_program(kind: str, site_folder: Path) -> None:
    seeds = SEEDS[kind]
    ended, outcomes = run_programs(kind, seeds, site_folder)
    problems = [f"seed {outcome.seed}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    assert not problems, "\n".join(problems)
    assert tuple(outcome.seed for outcome in outcomes) == seeds
    assert ended.converted > 0


def test_programs_have_steps_of_every_kind() -> None:
    found = {type(step) for seed in range(50) for step in steps_of(random_program(seed))}
    assert found == set(Step.__subclasses__())


def test_same_seed_makes_the_same_program_and_its_text_can_be_run_again() -> None:
    program = random_program(4)
    assert random_program(4) == program != random_program(5)
    assert eval(repr(program), vars(random_programs)) == program


def test_a_program_is_cut_down_to_what_fails() -> None:
    multiply, write = Multiply(1, 0), Write(0, True, 0)
    program = (multiply, Loop(3, (multiply, CallTwice((multiply, write)))), multiply)

    def writes(block: Block) -> bool:
        return any(isinstance(step, Write) for step in steps_of(block))

    def writes_in_a_loop(block: Block) -> bool:
        return any(isinstance(step, Loop) and writes(step.body) for step in block)

    assert made_small(program, writes) == (write,)
    assert made_small(program, writes_in_a_loop) == (Loop(3, (write,)),)
