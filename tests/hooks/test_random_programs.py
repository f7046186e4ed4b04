"""Random programs, for XLA and for Grappler: a few seeds; ``scripts/fuzz_parity compiled`` rolls
new ones.
"""

import pytest

from tests.hooks.program_runs import KINDS, run_programs
from tests.hooks.random_programs import Step, random_program

pytestmark = pytest.mark.cpu_dependent


def steps_of(block):
    for step in block:
        yield step
        for _, inner in step.blocks():
            yield from steps_of(inner)


# The first two moved a variable's read past a write once.
SEEDS = {
    "matrices": (258, 306, *range(6)),
    "convolutions": tuple(range(24)),
    # The first showed a read that did not wait for a write before its loop. In the last, 40
    # products add up what kernels without rounding lose.
    "reads": (*range(6, 18), 9300046),
}


@pytest.mark.quick
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_variables_are_those_of_the_eager_program(kind, site_folder):
    seeds = SEEDS[kind]
    ended, outcomes = run_programs(kind, seeds, site_folder)
    problems = [
        f"seed {outcome.seed}: {outcome.problem}" for outcome in outcomes if outcome.problem
    ]
    assert not problems, "\n".join(problems)
    assert tuple(outcome.seed for outcome in outcomes) == seeds
    assert ended.converted > 0
    assert ("reads moved: " in ended.err and "reads moved: 0" not in ended.err) is (kind == "reads")


def test_programs_have_steps_of_every_kind():
    found = {type(step) for seed in range(50) for step in steps_of(random_program(seed))}
    assert found == set(Step.__subclasses__())
