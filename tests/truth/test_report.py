from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from tests.truth import limits, records, report
from tests.truth.limits import Limit
from tests.truth.runner import Row

GOOD = Row("group/one", "graph", "bfloat16", "1", "output", 1.0, 0.01, 0.01)
BAD = dataclasses.replace(GOOD, program="group/two", tensor="loss", ratio=7.5, error=0.03)
BROKEN = Row("group/three", "xla", "float16", "", "", math.inf, math.inf, 0.0, "ValueError: no")


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIMITS", ())
    monkeypatch.setattr(report, "LIMITS", ())


def named(monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
    limit = Limit(**{"programs": "group/.*", "modes": ("bfloat16",), "worst": 10.0, "why": "so", **fields})
    for module in (limits, report):
        monkeypatch.setattr(module, "LIMITS", (limit,))


def test_a_ratio_above_the_limit_is_a_defect() -> None:
    assert [report.is_defect(row) for row in (GOOD, BAD, BROKEN)] == [False, True, True]


def test_a_named_limit_covers_its_figure_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch)
    assert not report.is_defect(BAD)
    assert report.is_defect(dataclasses.replace(BAD, ratio=11.0))
    assert report.is_defect(dataclasses.replace(BAD, mode="auto"))
    assert report.is_defect(dataclasses.replace(BAD, program="a group/two"))


@pytest.mark.parametrize("field", ["cases", "tensors"])
def test_a_named_limit_is_for_its_cases_and_tensors(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    named(monkeypatch, **{field: "gradient.*"})
    assert report.is_defect(BAD)


def test_an_exception_is_covered_only_while_it_is_to_be_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, modes=("float16",), worst=math.inf)
    assert report.is_defect(BROKEN)
    named(monkeypatch, modes=("float16",), worst=math.inf, is_open=True)
    assert not report.is_defect(BROKEN)


def test_the_text_names_the_program_and_the_worst_tensor() -> None:
    text = report.text([GOOD, BAD, BROKEN])
    assert "bfloat16 graph: 2 programs, 2 tensors, median ratio 4.25, worst 7.5; 1 tensors of 1 programs" in text
    assert "group/two bfloat16 graph: 1 tensors, cases 1; bfloat16 graph 7.5 at loss" in text
    assert "ValueError: no" in text


def test_the_table_has_all_that_is_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = report.markdown([GOOD, BAD, BROKEN])
    assert "| bfloat16 | graph | 2 | 2 | 4.25 | 1.00 | 1 | 0 |" in table
    assert "| group/two | bfloat16 | graph | 1 | 1 | loss, 1 | 7.5 | 0.03 | 0.01 |" in table
    named(monkeypatch, programs="group/(two|four)")
    table = report.markdown([GOOD, BAD])
    assert "None." in table
    assert r"| `group/(two\|four)` | bfloat16 | `.*` | 7.5 | so |" in table


def test_rows_survive_the_disk_and_a_last_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert list(records.read(path)) == []
    records.append(path, [GOOD, BROKEN])
    with path.open("a") as lines:
        lines.write('{"program": "gro')
    assert list(records.read(path)) == [GOOD, BROKEN]
