"""The outcomes of test files, and the page that is made from them."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.suites import named

COUNTED = ("passed", "tolerated", "skipped", "converted")
FAILED_TOO = "failed in float32 too"
HEADS = ("type", "files", *COUNTED, FAILED_TOO, "named", "failed only here")


@dataclasses.dataclass(frozen=True)
class FileRun:
    """The tests of one file in one mode.

    Attributes:
        suite, file, mode: what ran.
        counts: of tests that passed as they are, or because a comparison was tried again, that
            skipped themselves, in which amp_tf converted nodes, and that failed in float32 too.
        failed: messages of the other tests that failed, by the test's name.
        ended: why the file ended early, if it did.
        seconds: it took.
    """

    suite: str
    file: str
    mode: str
    counts: dict[str, int]
    failed: dict[str, str]
    ended: str
    seconds: float


def of_tests(suite: str, file: str, mode: str, answer: dict[str, Any]) -> FileRun:
    """The outcome of a file from the rows of its tests; of float32 nothing is known yet."""
    counts = dict.fromkeys((*COUNTED, FAILED_TOO), 0)
    failed = {}
    for row in answer["tests"]:
        outcome = row["outcome"]
        if outcome == "failed":
            failed[row["test"].removeprefix(f"{file}::")] = row["message"]
        else:
            counts[outcome] += 1
        counts["converted"] += row.get("converted", 0) > 0
    return FileRun(suite, file, mode, counts, failed, answer["ended"], answer["seconds"])


def beside_float32(runs: Sequence[FileRun]) -> Iterator[FileRun]:
    """The runs of one file in 16 bit; tests that failed in float32 too are only counted."""
    known = {test for run in runs if run.mode == "float32" for test in run.failed}
    for run in runs:
        if run.mode != "float32":
            left = {test: message for test, message in run.failed.items() if test not in known}
            counts = {**run.counts, FAILED_TOO: len(run.failed) - len(left)}
            yield dataclasses.replace(run, failed=left, counts=counts)


def failed_only_here(runs: Sequence[FileRun]) -> Iterator[tuple[FileRun, str, str]]:
    """Each test that failed with amp_tf and not in float32, with the reason if it is a named one,
    else "".
    """
    for run in runs:
        for test in run.failed:
            yield run, test, named.reason(f"{run.file}::{test}", run.mode)


def joined(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The facts of a suite of which a part ran before, perhaps elsewhere: every value is named."""
    both = {**now, **before}
    for key, value in now.items():
        if str(value) not in str(both[key]):
            both[key] = f"{both[key]}; {value}"
    return both


def read(path: Path) -> tuple[dict[str, Any], list[FileRun]]:
    """The facts of each suite's run, and the outcomes, from a file that :func:`write` wrote."""
    if not path.exists():
        return {}, []
    document = json.loads(path.read_text(encoding="utf-8"))
    return document["machine"], [FileRun(*row) for row in document["tables"][0]["rows"]]


def write(path: Path, facts: dict[str, Any], runs: Sequence[FileRun]) -> None:
    """Writes facts and outcomes, a file in a mode on each line."""
    columns = [field.name for field in dataclasses.fields(FileRun)]
    rows = [list(dataclasses.astuple(run)) for run in runs]
    results.write(path, facts, [{"columns": columns, "rows": rows}])


def page(facts: dict[str, Any], runs: Sequence[FileRun]) -> str:
    """Markdown: a table for each suite, and what failed with amp_tf alone."""
    lines = ["# Tests of others", ""]
    for suite, known in facts.items():
        own = [run for run in runs if run.suite == suite]
        folders = collections.Counter(str(Path(file).parent) for file in {run.file for run in own})
        ran = ", ".join(f"{folder} ({count})" for folder, count in sorted(folders.items()))
        lines += [f"## {suite}", "", *(f"{key}: {value}  " for key, value in known.items())]
        lines += [f"files that ran: {ran}", ""]
        lines += [_line(HEADS), "|---" + "|---:" * (len(HEADS) - 1) + "|"]
        for mode in ("bfloat16", "float16"):
            lines.append(_line(_cells(own, mode)))
        lines.append("")
        ended: dict[str, set[str]] = collections.defaultdict(set)
        for run in own:
            if run.ended:
                ended[run.ended].add(run.file)
        for why, files in ended.items():
            names = ", ".join(sorted(files))
            lines += [f"Ended early by {why}, counted up to there: {names}", ""]
    lines += ["## Failed only with amp_tf", "", _line(["test", "type", "message", "named"])]
    lines.append("|---|---|---|---|")
    for run, test, reason in failed_only_here(runs):
        cells = [f"`{run.file}::{test}`", run.mode, run.failed[test].replace("|", "/"), reason]
        lines.append(_line(cells))
    return "\n".join(lines)


def _cells(runs: Sequence[FileRun], mode: str) -> list[str]:
    """The row of one mode of a suite."""
    own = [run for run in runs if run.mode == mode]
    totals: collections.Counter[str] = collections.Counter()
    for run in own:
        totals.update(run.counts)
    reasons = [reason for _, _, reason in failed_only_here(own)]
    unnamed = reasons.count("")
    numbers = [totals[kind] for kind in (*COUNTED, FAILED_TOO)]
    return [mode, *map(str, [len(own), *numbers, len(reasons) - unnamed, unnamed])]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
