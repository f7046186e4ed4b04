"""The tuning as a whole, on programs whose metric is a function of what is 16 bit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from amp_tf.errors import AmpError, ConfigError
from amp_tf.lock import Lock
from amp_tf.tools.tuning.result import Goal, Outcome
from amp_tf.tools.tuning.tuning import Journal, Tuning, Way
from tests.tuning.programs import GOOD, Weak, findings

ACCURACY = Goal("accuracy", 0.01, is_loss=False)
PATHS = tuple(f"m/{letter}/dense" for letter in "abcdefgh")


def tuning(program: Weak, folder: Path, **settings) -> Tuning:
    return Tuning(program, ACCURACY, Journal(folder / "runs", {"program": "weak"}), **settings)


def test_what_the_comparison_finds_is_kept_and_no_more(tmp_path):
    program = Weak(PATHS, ("m/e/dense/MatMul",), findings("m/e/dense/MatMul"))
    found = tuning(program, tmp_path).for_accuracy()
    assert found.lock is not None
    assert [one.name for one in found.lock.decisions] == ["m/e/dense/MatMul"]
    assert found.proof == "without any one of them it does not suffice"
    assert program.runs == found.runs <= 9
    assert found.lock.decisions[0].why == "rounding: it is rounded"
    assert found.lock.found["mixed"] == 0.4
    assert found.lock.found["tuned"] == 0.9


def test_without_a_comparison_it_is_found_all_the_same(tmp_path):
    found = tuning(Weak(PATHS, ("m/e/dense/Tanh", "m/g/dense/Tanh")), tmp_path).for_accuracy()
    assert found.lock is not None
    assert [one.name for one in found.lock.decisions] == ["m/e/dense/Tanh", "m/g/dense/Tanh"]


def test_a_model_that_is_good_in_mixed_precision_needs_four_runs_and_nothing_in_float32(tmp_path):
    program = Weak(PATHS, ())
    found = tuning(program, tmp_path).for_accuracy()
    assert found.lock is not None
    assert not found.lock.decisions
    assert program.runs == 4
    assert str(found) == (
        "accuracy: 0.9 and 0.9 in float32, good is at least 0.89\n"
        "Nothing has to stay in float32: 0.9, 100.0% of the products' operations in 16 bit (4 runs).\n"
        "The best trades:\n"
        "   16 bit     accuracy       step  in float32\n"
        "   100.0%          0.9    10.0 ms  nothing"
    )


def test_the_best_trades_are_shown(tmp_path):
    text = str(tuning(Weak(PATHS, ("m/e/dense/MatMul",)), tmp_path).for_accuracy())
    assert "1 layer or node stays in float32: 0.9, 95.8% of the products' operations in 16 bit" in text
    assert "without any one of them it does not suffice" in text
    assert text.splitlines()[-2:] == [
        "   100.0%          0.4    10.0 ms  nothing (not good)",
        "    95.8%          0.9    10.0 ms  m/e/dense/MatMul",
    ]


def test_an_interrupted_tuning_goes_on_where_it_was(tmp_path):
    program = Weak(PATHS, ("m/e/dense/MatMul",))
    whole = tuning(Weak(PATHS, program.weak), tmp_path / "whole").for_accuracy()
    for most in range(5, whole.runs):
        assert tuning(program, tmp_path, most_runs=most).for_accuracy().runs == most
    found = tuning(program, tmp_path).for_accuracy()
    assert found.lock == whole.lock
    assert program.runs == whole.runs


def test_a_line_that_was_cut_off_is_a_run_that_was_not_made(tmp_path):
    program = Weak(PATHS, ("m/e/dense/MatMul",))
    first = tuning(program, tmp_path).for_accuracy()
    runs = tmp_path / "runs" / "runs.jsonl"
    runs.write_text(runs.read_text().rstrip()[:-5])
    again = tuning(program, tmp_path).for_accuracy()
    assert again.lock == first.lock
    assert program.runs == first.runs + 1


def test_the_runs_of_another_tuning_are_an_error(tmp_path):
    first = Journal(tmp_path / "runs", {"command": ["a"], "most": 1})
    first.add("float32/1", Outcome({"accuracy": GOOD}))
    del first
    with pytest.raises(ConfigError, match=r"holds the runs of another tuning \(other command\)"):
        Journal(tmp_path / "runs", {"command": ["b"], "most": 1})


def test_a_run_that_failed_in_the_search_is_not_kept_and_its_last_words_neither(tmp_path):
    program = Weak(PATHS, ("m/e/dense/MatMul",))
    original = program.run
    program.run = lambda way, lock: (
        original(way, lock) if way is not Way.LOCKED or lock.decisions else Outcome(failure="the password is 1234")
    )
    with pytest.raises(ConfigError, match="there is nothing to tune"):
        tuning(program, tmp_path).for_accuracy()
    assert "1234" not in (tmp_path / "runs" / "runs.jsonl").read_text()
    program.run = original
    found = tuning(program, tmp_path).for_accuracy()
    assert found.runs == program.runs
    assert found.lock is not None


def test_two_tunings_in_one_folder_do_not_meet(tmp_path):
    first = Journal(tmp_path / "runs", {"command": ["a"]})
    with pytest.raises(ConfigError, match="another process tunes there now"):
        Journal(tmp_path / "runs", {"command": ["a"]})
    first.remove()
    Journal(tmp_path / "runs", {"command": ["a"]})


def test_a_comparison_that_failed_is_made_again(tmp_path):
    program = Weak(PATHS, ("m/e/dense/MatMul",))
    tuning(program, tmp_path, most_runs=5).for_accuracy()
    program.comparison = findings("m/e/dense/MatMul")
    found = tuning(program, tmp_path).for_accuracy()
    assert found.lock is not None
    assert found.lock.decisions[0].why == "rounding: it is rounded"


def test_an_earlier_lock_is_where_it_begins(tmp_path):
    program = Weak(PATHS, ("m/e/dense/MatMul", "m/h/dense/MatMul"))
    before = tuning(program, tmp_path / "first").for_accuracy()
    program.runs = 0
    after = tuning(program, tmp_path / "second", before=before.lock).for_accuracy()
    assert after.lock == before.lock or (after.lock and after.lock.decisions == before.lock.decisions)
    assert program.runs < before.runs


def test_where_amp_tf_alone_changes_the_metric_it_stops(tmp_path):
    with pytest.raises(AmpError, match=r"with amp_tf on and nothing in 16 bit, the run is not good \(accuracy 0.5"):
        tuning(Weak(PATHS, (), nothing=0.5), tmp_path).for_accuracy()
    mended = Weak(PATHS, ())
    assert tuning(mended, tmp_path).for_accuracy().runs == 4
    assert mended.runs == 2


def test_where_float32_has_no_metric_it_stops(tmp_path):
    for outcome, why in (
        (Outcome(failure="it ended with status 1: no data"), "it ended with status 1: no data"),
        (Outcome({"accuracy": math.nan}), "it is nan"),
        (Outcome({"accuracy": math.inf}), "it is inf"),
    ):
        program = Weak(PATHS, ())
        program.run = lambda way, lock, outcome=outcome: outcome
        with pytest.raises(AmpError, match=rf"there is no accuracy in float32 \({why}\)"):
            tuning(program, tmp_path).for_accuracy()
    assert tuning(Weak(PATHS, ()), tmp_path).for_accuracy().runs == 4, "a run that failed is made again"


def test_where_nothing_is_converted_it_stops(tmp_path):
    with pytest.raises(ConfigError, match="nothing is converted, so there is nothing to tune"):
        tuning(Weak((), ()), tmp_path).for_accuracy()
    Journal(tmp_path / "runs", {"program": "weak", "precision": "bfloat16"})  # the mended command


def test_within_too_few_runs_the_best_set_is_written_and_said_not_to_be_minimal(tmp_path):
    found = tuning(Weak(PATHS, ("m/b/dense/MatMul",)), tmp_path, most_runs=7).for_accuracy()
    assert found.lock is not None
    assert "whether less suffices is not known" in str(found)


def test_a_metric_that_was_held_out_verifies_the_result(tmp_path):
    program = Weak(PATHS, ("m/b/dense/MatMul",))
    assert "verified by held out: 0.9, good is at least 0.89" in str(
        tuning(program, tmp_path / "a", held_out="held out").for_accuracy()
    )
    original = program.run

    def overfitted(way, lock: Lock):
        outcome = original(way, lock)
        if lock.decisions:
            outcome.metrics["held out"] = 0.5
        return outcome

    program.run = overfitted
    found = tuning(program, tmp_path / "b", held_out="held out").for_accuracy()
    assert not found.is_verified
    assert "not good by held out: 0.5" in str(found)


@pytest.mark.parametrize(
    ("is_loss", "float32", "limit", "good", "bad"),
    [(False, (0.9, 0.8), 0.7, 0.7, 0.69), (True, (1.0, 1.5), 1.6, 1.6, 1.61)],
)
def test_the_worse_of_both_runs_in_float32_counts(is_loss, float32, limit, good, bad):
    goal = Goal("metric", 0.1, is_loss)
    assert goal.limit(float32) == pytest.approx(limit)
    assert goal.is_good(good, goal.limit(float32) + (1e-9 if is_loss else -1e-9))
    assert not goal.is_good(bad, goal.limit(float32))
    assert not goal.is_good(None, limit)
    for value in (math.nan, math.inf, -math.inf):
        assert not goal.is_good(value, limit)
        assert not goal.is_good(value, goal.limit(()))
    assert goal.is_good(bad, goal.limit(()))
