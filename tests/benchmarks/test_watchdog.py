"""The watchdog's benchmark runs: a run with a fault, and a round of times."""

from __future__ import annotations

import sys

import pytest

from tests import processes
from tests.hooks import running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["faults", "--first", "1", "--runs", "1"], "faults: 1 of 1 right"),
        (["overhead", "--rounds", "1", "--steps", "2", "--models", "dense", "--precisions", "bfloat16"], "ms a step"),
    ],
    ids=["faults", "overhead"],
)
def test_the_benchmark_runs(arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "benchmarks.watchdog", *arguments]
    ended = processes.run(command, cwd=running.ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert said in ended.stdout
