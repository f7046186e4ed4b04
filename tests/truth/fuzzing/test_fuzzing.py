"""Some random programs in 16 bit; ``scripts/fuzz_parity values`` rolls new ones."""

import pytest

from tests.left_out import differing, without
from tests.truth.fuzzing import judging, programs
from tests.truth.fuzzing.programs import LATE, Input, Program, random_program
from tests.truth.fuzzing.steps import (
    Affine,
    Binary,
    Branch,
    Elementwise,
    Loop,
    Move,
    Normalize,
    Product,
    Reduce,
    Step,
    Weighted,
    _OfTable,
)
from tests.truth.modes import MODES

pytestmark = pytest.mark.cpu_dependent

SEEDS = range(12)
FUNCTIONS = range(300, 304)  # loops and branches as functions
LATE_SEEDS = range(LATE, LATE + 12)  # of 50, 8 are too far off where nothing is promoted


@pytest.mark.parametrize(
    "seeds", [SEEDS, FUNCTIONS, LATE_SEEDS], ids=["nodes", "functions", "late"]
)
def test_random_programs_are_as_near_to_float32_as_products_allow(seeds):
    rows = list(judging.rows_of([random_program(seed) for seed in seeds], seeds))
    for finding in judging.findings_of(rows, seeds, makes_small=False):
        assert finding.cause, f"seed {finding.seed}: {finding}"
    for mode in MODES:
        rounded = [row for row in rows if row.mode == mode and row.error > 2.0**-14]
        assert len(rounded) > len(seeds)  # something was 16 bit


def far_off(program, seed, mode):
    return list(filter(judging.is_far_off, judging.rows_of([program], [seed], [mode])))


def test_a_wrong_choice_is_found_and_made_small():
    """Without the rules of running sums and of joined values: the loop alone is left of what
    surrounds it.
    """
    # A state of size ten to which each turn adds a hundredth part.
    body = (Weighted((0,), "dense"), Elementwise((2,), "tanh"), Weighted((3,), "dense"))
    loop = Loop((1, 0), 30, 0.01, body)
    around = (Elementwise((0,), "abs"), Weighted((2,), "dense"), Elementwise((3,), "tanh"))
    program = Program((Input(10.0),), (around[0], loop, *around[1:]))
    assert not far_off(program, 0, "bfloat16")
    with without(differing("origin")):
        assert far_off(program, 0, "bfloat16")
        small = judging.made_small(program, 0, "bfloat16")
    assert [type(step) for step in small.steps] == [Loop]


BIG = Program(
    (Input(1e3),),
    (Weighted((0,), "dense"), Affine((1,), 100.0), Affine((2,), 0.01), Weighted((3,), "dense")),
)
OFFSETS = Program(  # 0.5 less, negated, 0.5 less: what is left was rounded beside 0.5
    (Input(0.1),),
    (
        Weighted((0,), "transposed"),
        Affine((1,), 0.1, -0.5),
        Affine((2,), -1.0, -0.5),
        Move((3,), "max pool"),
        Weighted((4,), "depthwise"),
    ),
    "mean",
)
ALIKE = Program(  # 1 / (1 + x²) of small x
    (Input(0.01),),
    (
        Weighted((0,), "dense"),
        Elementwise((1,), "reciprocal"),
        Normalize((2,), "batch norm"),
        Weighted((3,), "dense"),
    ),
)
# where x came from input 1, exp(-x²) is below 1e-17; x is a sum of softsigns, each rounded once
FAR_OUT = Program(
    (Input(0.01, "mean 10"), Input(1.0, "mean 10")),
    (
        Weighted((0,), "depthwise"),
        Binary((2, 1), "interleave"),
        Loop(
            (3, 0), 30, 0.1, (Weighted((1,), "dense", has_bias=True), Elementwise((2,), "softsign"))
        ),
        Elementwise((4,), "erf"),
    ),
    "binary cross entropy",
)
# In one draw a maximum is another one; in all others the gradient of a norm of nearly equal values
# is what its roundings leave.
ONE_SWITCH = random_program(1710555)
# of a product whose difference with itself is normalized: its gradient and minus that are large
THREE_GRADIENTS = Program(
    (Input(),),
    (
        Weighted((0,), "dense"),
        Binary((1, 1), "subtract"),
        Normalize((2,), "batch norm"),
        Binary((3, 1), "add_n"),
    ),
    "sum of squares",
)
# p / p of a product: the two terms of its gradient cancel, and no turn adds them to those before
QUOTIENT_IN_LOOP = Program(
    (Input(1e3, "equal rows"),),
    (
        Weighted((0,), "transposed"),
        Loop((0, 1), 30, 0.01, (Product((1, 0), "batch"), Binary((2, 2), "divide"))),
    ),
    "sum of squares",
)


#: Programs, their seeds, the mode, and the cause.
CAUSES = {
    "large": (BIG, 0, "float16", "float16's range"),
    "gradients of erf": (FAR_OUT, 1000466, "float16", "float16's range"),
    "one switch among roundings": (ONE_SWITCH, 1710555, "float16", "switched"),
    "offsets": (OFFSETS, 1058572, "bfloat16", "cancelled"),
    "partial sums": (THREE_GRADIENTS, 1006934, "bfloat16", "partial sums"),
    "centred": (ALIKE, 0, "bfloat16", "centred"),
    "quotient in a loop": (QUOTIENT_IN_LOOP, 9600492, "bfloat16", "quotient"),
}


@pytest.mark.parametrize(("program", "seed", "mode", "cause"), CAUSES.values(), ids=CAUSES)
def test_a_limit_of_16_bit_is_named(program, seed, mode, cause):
    found = {judging.cause_of(program, seed, row) for row in far_off(program, seed, mode)}
    assert found == {cause}


# In a branch or loop: the maximum of each row times a weight, plus what it was taken from.
MAXIMUM_IN_BRANCH = (Reduce((0,), "max", 1), Weighted((1,), "dense"), Binary((2, 1), "add"))
MAXIMUM_IN_LOOP = (
    Elementwise((0,), "sin"),
    Reduce((2,), "max", 1),
    Weighted((3,), "dense"),
    Binary((4, 2), "multiply"),
)
# A minimum whose gradient, in another branch, reads the values by a way of its own.
MINIMUM_OR_NOT = Branch((1,), 0.0, (Reduce((0,), "min", 1),), (Elementwise((0,), "abs"),))
NEAR_ONE = (
    Weighted((0,), "dense"),
    Affine((1,), 0.01, 1.0),
    Normalize((2,), "center"),
    Weighted((3,), "dense"),
)
BEFORE_BRANCH = (
    Weighted((0,), "depthwise", has_bias=True),
    MINIMUM_OR_NOT,
    Elementwise((2,), "silu"),
    Weighted((3,), "einsum"),
)
ROWS_OF_ONE_NORM = Loop((2, 1), 1, 0.01, (Normalize((0,), "l2_normalize"),))
BIAS = (Weighted((0,), "dense", has_bias=True), ROWS_OF_ONE_NORM, Reduce((3,), "std", 0))
SELECTION = (
    Weighted((0,), "depthwise"),
    Binary((0, 1), "select"),
    Binary((2, 0), "select"),
    Weighted((3,), "depthwise"),
)
STACKED = (Binary((0, 0), "interleave"), Binary((1, 0), "select"), Weighted((2,), "einsum"))
COMPARISON_IN_LOOP = (
    Normalize((0,), "center"),
    Loop((1, 1), 1, 0.0, (Binary((1, 0), "select"), Weighted((2,), "transposed"))),
    Weighted((2,), "depthwise"),
)
STATE_MINUS_ITS_START = (
    Weighted((0,), "dense"),
    Loop(
        (1, 1), 3, 0.1, (Binary((1, 0), "subtract"), Weighted((2,), "convolution", has_bias=True))
    ),
    Weighted((2,), "convolution"),
)
RMS_NORM = (  # of rows that attention made nearly equal
    Weighted((0,), "depthwise", has_bias=True),
    Product((0, 1), "attention"),
    Normalize((2,), "rms norm"),
    Product((2, 3), "batch"),
    Weighted((4,), "dense"),
)
# what is compared was rounded before the loop, and its minimum behind it once more
MINIMUM_BEHIND_LOOP = (
    Weighted((0,), "convolution"),
    Binary((1, 1), "select"),
    Loop((2, 2), 1, 0.1, (Product((1, 1), "rows"),)),
    Reduce((3,), "min", 1),
    Weighted((4,), "depthwise"),
)


#: Each was too far off in bfloat16 once.
MENDED = {
    "a maximum in a branch": (Branch((0,), -1e9, MAXIMUM_IN_BRANCH, MAXIMUM_IN_BRANCH),),
    "a maximum in a loop": (Loop((0, 0), 3, 0.1, MAXIMUM_IN_LOOP),),
    "a minimum of what a branch captures": BEFORE_BRANCH,
    "a bias gradient beside products": BIAS,
    "a comparison with a state in a loop": COMPARISON_IN_LOOP,
    "a loop's state minus where it began": STATE_MINUS_ITS_START,
    "a minimum of what a loop gives": MINIMUM_BEHIND_LOOP,
    "a selection of what was selected": SELECTION,
    "a comparison of a value with itself in a stack": STACKED,
    "a norm of rows that are nearly equal": RMS_NORM,
    "a mean taken from values near one": NEAR_ONE,
}


def test_defects_that_the_fuzzer_found_are_mended():
    programs = []
    seeds = []
    for steps in MENDED.values():
        inputs = {BIAS: (Input(), Input()), RMS_NORM: (Input(0.1),)}.get(steps, (Input(),))
        loss = "" if steps in (SELECTION, STACKED) else "mean square"
        programs.append(Program(inputs, steps, loss))
        seeds.append(1050655 if steps is RMS_NORM else 0)
    rows = judging.rows_of(programs, seeds, ["bfloat16", "auto"])
    names = list(MENDED)
    assert [names[int(row.case)] for row in rows if judging.is_far_off(row)] == []


def test_a_program_that_tensorflow_cannot_run_is_left_out():
    """It has a wrong gradient of silu in a branch, a Placeholder that nobody feeds."""
    second = (Elementwise((0,), "silu"), Product((1, 0), "rows"))
    program = Program(
        (Input(),), (Branch((0,), 0.0, (Reduce((0,), "norm", 1),), second),), "mean square"
    )
    assert not list(judging.rows_of([program], [300], ["bfloat16"]))


def test_programs_have_steps_of_every_kind():
    found = set()
    for seed in range(50):
        found |= {type(step) for step in programs.steps_of(random_program(seed).steps)}
    assert found == {*Step.__subclasses__(), *_OfTable.__subclasses__()} - {_OfTable}
