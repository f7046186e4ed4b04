"""Peers' tests: a suite of four tests is run and counted, and a comparison is tolerated."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import benchmarks.suites
from benchmarks.suites import named, outcomes, plugin, suites, worker
from benchmarks.suites.__main__ import main, run_files
from tests import processes

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = """
import tensorflow as tf

class Double(tf.Module):
    def __init__(self):
        self.two = tf.Variable([[2.0, 0.0], [0.0, 2.0]])

    def __call__(self, x):
        assert not tf.executing_eagerly()
        return tf.matmul(x, self.two)

class Plain(tf.Module):
    def shifted(self, x):
        assert not tf.executing_eagerly()
        return tf.add(x, 1.0)
"""
TESTS = """
import numpy as np
import pytest
import tensorflow as tf
from tiny_library import Double, Plain

def doubled():
    return Double()(np.float32([[257.0, 1.0]])).numpy()  # 257 has 9 bits

def test_passes():
    assert doubled().shape == (1, 2)

def test_a_method_is_a_function():
    assert Plain().shifted(np.float32([1.0])).numpy() == 2.0

DOUBLE = Double()

@tf.function
def in_function():
    return DOUBLE(tf.ones((1, 2)))

def test_autograph_rewrites_a_call():
    assert in_function().shape == (1, 2)

def test_is_tolerated():
    np.testing.assert_allclose(doubled(), [[514.0, 2.0]], rtol=1e-6)

def test_fails_only_with_amp_tf():
    assert doubled()[0, 0] == 514.0

def test_fails_in_float32_too():
    np.testing.assert_allclose(doubled(), [[700.0, 2.0]])

@pytest.mark.skip
def test_is_skipped():
    pass
"""


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "tiny_library.py").write_text(LIBRARY)
    (tmp_path / "tiny_suite.py").write_text(TESTS)
    (tmp_path / "crash_suite.py").write_text("import os\ndef test_ends():\n    os._exit(3)\n")
    (tmp_path / "good_suite.py").write_text("def test_passes():\n    pass\n")
    return suites.Suite(
        "tiny",
        "none",
        "*_suite.py",
        imports=("tiny_library",),
        calls=(("tiny_library:Double", "__call__"), ("tiny_library:Plain", "shifted")),
        variables={"PYTHONPATH": str(tmp_path)},
    )


def test_a_suite_is_run_in_each_mode_and_counted(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(subprocess, "Popen", processes.start)
    files = ["tiny_suite.py", "crash_suite.py", "good_suite.py"]
    answers = list(run_files(tiny, files, Path(sys.executable), tmp_path))
    assert [machine["cores"] > 0 for machine, _ in answers] == [True, True, True]
    (_, runs), (_, crashed), (_, good) = answers
    assert {run.mode: tuple(run.counts.values()) for run in runs} == {
        "float32": (5, 0, 1, 0, 0),  # passed, tolerated, skipped, converted, failed too
        "bfloat16": (3, 1, 1, 5, 0),
        "float16": (5, 0, 1, 5, 0),  # in which 257 is exact
    }
    too = "test_fails_in_float32_too"
    ours = "test_fails_only_with_amp_tf"
    failed = {run.mode: set(run.failed) for run in runs}
    assert failed == {"float32": {too}, "bfloat16": {too, ours}, "float16": {too}}
    for run in crashed:
        assert run.failed == {"test_ends": "the process ended with status 3"}
    assert [run.mode for run in good] == ["bfloat16", "float16"]  # nothing to explain
    runs = list(outcomes.beside_float32(runs))
    assert {run.mode: (list(run.counts.values())[-1], [*run.failed]) for run in runs} == {
        "bfloat16": (1, [ours]),
        "float16": (1, []),
    }
    facts = {"tiny": {"files": 2}}
    outcomes.write(tmp_path / "rows.json", facts, runs)
    assert outcomes.read(tmp_path / "rows.json") == (facts, runs)
    page = outcomes.page(facts, runs)
    assert "| bfloat16 | 1 | 3 | 1 | 1 | 5 | 1 | 0 | 1 |" in page
    assert f"| `tiny_suite.py::{ours}` | bfloat16 | AssertionError (tiny_suite.py:29) |" in page
    monkeypatch.setattr(
        named, "NAMED", ((ours, "float16", "Another type."), (ours, "b?float16", "Why."))
    )
    page = outcomes.page(facts, runs)
    assert "| bfloat16 | 1 | 3 | 1 | 1 | 5 | 1 | 1 | 0 |" in page
    assert page.endswith(" | Why. |")


def test_the_facts_of_a_suite_that_ran_in_parts_name_both():
    before = {"cpu": "A", "date": "2026-11-29"}
    both = outcomes.joined(before, {"cpu": "A", "date": "2026-11-30", "keras": "3.15.1"})
    assert both == {"cpu": "A", "date": "2026-11-29; 2026-11-30", "keras": "3.15.1"}


def test_a_suite_without_its_tests_is_left_out_and_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(suites, "SOURCES", tmp_path)
    suite = suites.SUITES["keras_rs"]
    assert main(["--suites", "keras_rs"]) == 0
    said = capsys.readouterr().err
    assert f"keras_rs is left out: its distribution has no tests, and {tmp_path}" in said
    assert f"git archive v0.4.0 | tar -x -C {tmp_path / 'keras_rs'}" in said
    (tmp_path / "keras_rs").mkdir()
    assert not suites.missing(suite)


def test_a_function_of_a_module_is_traced_where_a_test_calls_it():
    is_eager = plugin.in_function(tf.executing_eagerly, is_of_module=True)
    assert not is_eager()
    assert eval(compile("is_eager()", "/library/metrics.py", "eval"), {"is_eager": is_eager})


def test_modules_that_only_the_repository_has_are_found(tmp_path, monkeypatch):
    for package in (benchmarks, benchmarks.suites):
        monkeypatch.setattr(package, "__path__", list(package.__path__))
    folder = tmp_path / "benchmarks" / "suites"
    folder.mkdir(parents=True)
    (folder / "base_of_tests.py").touch()
    worker.find_helpers(str(tmp_path))
    found = importlib.util.find_spec("benchmarks.suites.base_of_tests")
    assert found.origin == str(folder / "base_of_tests.py")


@pytest.mark.parametrize(
    ("actual", "desired", "is_close"),
    [
        ([100.0, 1.0], [103.0, 4.0], True),  # .04 of 103 is 4.1
        ([100.0, 1.0], [105.0, 1.0], False),
        ([100, 1], [101, 1], False),  # integers are exact
        ([np.nan, 1.0], [np.nan, 1.01], True),
        ([np.inf, 1.0], [1e9, 1.0], False),
        ([1.0, 1.0, 1.0], [1.0, 1.0], False),
    ],
)
def test_a_share_of_the_largest_value_is_tolerated(actual, desired, is_close):
    assert plugin.is_close(actual, desired, 0.04) is is_close


def test_the_page_is_that_of_its_rows():
    folder = ROOT / "benchmarks" / "suites"
    facts, runs = outcomes.read(folder / "table.json")
    assert (folder / "table.md").read_text() == outcomes.page(facts, runs) + "\n"


def test_each_named_row_has_a_test_that_fails_for_it():
    _, runs = outcomes.read(ROOT / "benchmarks" / "suites" / "table.json")
    used = {reason for _, _, reason in outcomes.failed_only_here(runs)}
    assert {why for _, _, why in named.NAMED} <= used
