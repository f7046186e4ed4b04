"""Rounds of runs give a verdict, and end when further rounds would not change it."""

import json
import math
import random

import pytest

from amp_tf.tools.timing.rounds import Run, Timed, Verdict, take_rounds


def run(ms, peak_mib=100.0):
    return Run((0.9 * ms, ms, ms, ms, 1.1 * ms), 2.0, peak_mib)


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ([1.48, 1.52, 1.44], "faster: 1.48 ± 0.02 times"),
        ([2.4, 1.6, 2.0, 1.9, 2.2], "faster: 2.00 ± 0.14 times"),
        ([1.0, 1.008, 0.992], "not faster on this CPU (1.00 ± 0.00 times): AMP_TF_DISABLE=1 loses"),
        ([1.01, 0.985, 1.015, 0.99], "not faster on this CPU (1.00 ± 0.01 times): "),
        ([0.5, 0.51, 0.49], "slower on this CPU: 0.50 ± 0.01 times as fast. AMP_TF_DISABLE=1"),
        ([1.4, 0.8, 1.3], "too noisy to say after 3 rounds (1.13 ± 0.20 times): stop other work"),
        # With three rounds, two standard errors may well be chance.
        ([1.20, 1.35, 1.05], "too noisy to say after 3 rounds"),
        # A standard error below 3 % does not say that nothing is lost: it may be a quarter.
        ([1.07, 1.12, 1.18], "too noisy to say after 3 rounds (1.12 ± 0.03 times): stop other"),
        ([0.93, 0.9, 0.84], "too noisy to say after 3 rounds (0.89 ± 0.03 times): stop other"),
    ],
)
def test_the_verdict_is_in_words(ratios, words):
    verdict = Verdict.of(ratios)
    assert verdict.in_words("CPU").startswith(words)
    assert verdict.is_known is not words.startswith("too noisy")


def rounds_of(ratios, most=12, minutes=10.0):
    """The ways in their order, and the runs, of a program with given ratios."""
    ways = []
    told = []
    shown = []

    def once(is_mixed):
        ways.append(is_mixed)
        return run(10.0 if is_mixed else 10.0 * ratios[(len(ways) - 1) // 2])

    float32, mixed = take_rounds(once, most, minutes, told.append, shown.append)
    assert shown[0] == f"round 1 of at most {max(most, 3)}: with amp_tf"
    assert len(told) == len(float32) == len(mixed)
    return ways, float32, told


def test_ways_take_turns_in_alternating_order():
    ways, _, told = rounds_of([1.5, 1.5, 1.5])
    assert ways == [True, False, False, True, True, False]
    assert told[0] == "round 1: 15.0 ms a step in float32, 10.0 with amp_tf"


@pytest.mark.parametrize(
    ("ratios", "rounds"),
    [
        ([1.5, 1.52, 1.48, 9.0], 3),
        # The error is below 3 %, and whether it is faster is not known yet.
        ([1.15, 1.05, 1.08, 1.09, 1.1, 9.0], 5),
        ([1.6, 1.4, 1.5, 1.45, 1.55, 1.5, 9.0], 4),
        ([1.0, 2.0] * 3, 6),
    ],
)
def test_rounds_follow_until_the_verdict_is_settled_or_none_is_left(ratios, rounds):
    _, float32, _ = rounds_of(ratios, most=min(len(ratios), 6))
    assert len(float32) == rounds


@pytest.mark.parametrize("spread", [0.03, 0.05, 0.1, 0.2])
def test_of_programs_that_are_equally_fast_few_are_called_faster_or_slower(spread):
    chance = random.Random(1)
    wrong = 0
    for _ in range(500):
        ratios = [math.exp(chance.gauss(0.0, spread)) for _ in range(12)]
        count = 3
        while count < len(ratios) and not Verdict.of(ratios[:count]).is_settled:
            count += 1
        verdict = Verdict.of(ratios[:count])
        wrong += verdict.is_faster or verdict.is_slower
    assert wrong <= 0.05 * 500


@pytest.mark.parametrize("limits", [{"minutes": 1e-9}, {"most": 1}])
def test_after_a_limit_no_round_begins_but_three_are_made(limits):
    _, float32, _ = rounds_of([1.0, 2.0] * 3, **limits)
    assert len(float32) == 3


def test_the_result_has_both_ways_side_by_side():
    float32 = (run(1234.0), run(1240.0), run(1230.0))
    mixed = (run(56.789), run(57.0), run(56.0))
    timed = Timed("fit", "CPU", "amp_tf: 2 graphs", float32, mixed)
    assert str(timed) == (
        "A step of fit, 15 and 15 of them in 3 rounds:\n"
        "                                     float32       with amp_tf\n"
        "  ms a step, median                    1,234              56.8\n"
        "  s until the first step                2.00              2.00\n"
        "  peak CPU memory, MiB                   100               100\n"
        "amp_tf: 2 graphs\n"
        "faster: 21.82 ± 0.07 times"
    )
    assert repr(timed) == str(timed)  # at a prompt and in a notebook
    found = json.loads(json.dumps(timed.to_dict()))
    assert found["speedup"] == pytest.approx(21.82, abs=0.005)
    assert found["verdict"] == "faster: 21.82 ± 0.07 times"
    assert [one["peak_mib"] for one in found["mixed"]] == [100.0, 100.0, 100.0]


def test_memory_that_is_not_known_has_no_row():
    runs = (run(1.0, None),) * 3
    assert "memory" not in str(Timed("f", "CPU", "", runs, runs))
