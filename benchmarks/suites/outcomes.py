"""The outcomes of test files, and the tables that are made from them."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.suites import named

FLOAT32 = "float32"
HEADS = ("type", "files", "run", "passed", "tolerated", "failed in float32 too")
HEADS = (*HEADS, "named", "failed only here", "with converted nodes")


@dataclasses.dataclass(frozen=True)
class FileRun:
    """The tests of one file in one mode.

    Attributes:
        suite, file, mode: what ran.
        passed: tests that passed as they are.
        tolerated: tests that passed because a comparison was tried again.
        skipped: tests that skip themselves.
        converted: tests in which amp_tf converted nodes.
        failed: messages of the tests that failed, by the test's name.
        ended: why the file ended early, if it did.
        seconds: it took.
    """

    suite: str
    file: str
    mode: str
    passed: int
    tolerated: int
    skipped: int
    converted: int
    failed: dict[str, str]
    ended: str
    seconds: float

    @property
    def run(self) -> int:
        """The number of tests that ran."""
        return self.passed + self.tolerated + len(self.failed)


def of_tests(suite: str, file: str, mode: str, answer: dict[str, Any]) -> FileRun:
    """The outcome of a file from the rows of its tests."""
    kinds: collections.Counter[str] = collections.Counter()
    failed = {}
    for row in answer["tests"]:
        outcome = row["outcome"]
        if outcome == "failed":
            failed[row["test"].removeprefix(f"{file}::")] = row["message"]
        elif outcome == "passed" and row["tolerated"]:
            outcome = "tolerated"
        kinds[outcome] += 1
        kinds["converted"] += row.get("converted", 0) > 0
    return FileRun(
        suite,
        file,
        mode,
        kinds["passed"],
        kinds["tolerated"],
        kinds["skipped"],
        kinds["converted"],
        failed,
        answer["ended"],
        answer["seconds"],
    )


@dataclasses.dataclass(frozen=True)
class Failure:
    """A test that fails in one mode and not in float32."""

    test: str
    mode: str
    message: str

    @property
    def named(self) -> named.Named | None:
        """The row of the named list that it belongs to."""
        return named.find(self.test, self.mode)


def failures(runs: Iterable[FileRun]) -> list[Failure]:
    """The tests that failed in a mode, but not in float32."""
    known = {(run.suite, run.file): run.failed for run in runs if run.mode == FLOAT32}
    found = []
    for run in runs:
        before = known.get((run.suite, run.file), {})
        for test, message in run.failed.items():
            if run.mode != FLOAT32 and test not in before:
                found.append(Failure(f"{run.file}::{test}", run.mode, message))
    return found


def read(path: Path) -> tuple[dict[str, Any], list[FileRun]]:
    """The facts of each suite's run and the outcomes in a file that :func:`write` wrote."""
    if not path.exists():
        return {}, []
    document = json.loads(path.read_text(encoding="utf-8"))
    (kept,) = document["tables"]
    return document["machine"], [FileRun(*row) for row in kept["rows"]]


def write(path: Path, facts: dict[str, Any], runs: Sequence[FileRun]) -> None:
    """Writes facts and outcomes, a file in a mode on each line."""
    columns = [field.name for field in dataclasses.fields(FileRun)]
    ordered = sorted(runs, key=lambda run: (run.suite, run.file))
    rows = [list(dataclasses.astuple(run)) for run in ordered]
    results.write(path, facts, [{"columns": columns, "rows": rows}])


def page(facts: dict[str, Any], runs: Sequence[FileRun]) -> str:
    """Markdown: a table for each suite, then what failed with amp_tf alone."""
    lines = ["# Tests of others", ""]
    for suite, known in facts.items():
        own = [run for run in runs if run.suite == suite]
        lines += [f"## {suite}", ""]
        lines += [f"{key}: {value}  " for key, value in known.items()]
        lines += ["", _line(HEADS), _line(["---", *["---:"] * (len(HEADS) - 1)])]
        for mode in dict.fromkeys(run.mode for run in own):
            lines.append(_line(_cells(own, mode)))
        lines.append("")
    found = failures(runs)
    lines += ["## Failed only with amp_tf", "", _line(["test", "type", "message"]), "|---|---|---|"]
    for failure in found:
        if failure.named is None:
            message = failure.message.replace("|", "/")
            lines.append(_line([f"`{failure.test}`", failure.mode, message]))
    lines += ["", "## Named", "", _line(["tests", "types", "failed", "why"]), "|---|---|---:|---|"]
    counts = collections.Counter(failure.named for failure in found)
    for row in named.NAMED:
        tests = row.tests.replace("|", "\\|")
        lines.append(_line([f"`{tests}`", ", ".join(row.modes), str(counts[row]), row.why]))
    return "\n".join(lines)


def _cells(runs: Sequence[FileRun], mode: str) -> list[str]:
    """The row of one mode of a suite."""
    own = [run for run in runs if run.mode == mode]
    ours = [failure for failure in failures(runs) if failure.mode == mode]
    excused = sum(failure.named is not None for failure in ours)
    failed = sum(len(run.failed) for run in own)
    numbers = [
        len(own),
        sum(run.run for run in own),
        sum(run.passed for run in own),
        sum(run.tolerated for run in own),
        failed - len(ours),
        excused,
        len(ours) - excused,
        sum(run.converted for run in own),
    ]
    return [mode, *map(str, numbers)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
