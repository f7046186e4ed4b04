"""Reports the rows: a summary, and the table that is committed."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence

from tests.truth.limits import LIMITS, Limit, limit_of
from tests.truth.runner import Row
from tests.truth.yardstick import LIMIT


def is_defect(row: Row) -> bool:
    """Tells whether a row is above the yardstick's limit and no named limit covers it."""
    return (row.ratio > LIMIT or bool(row.problem)) and limit_of(row) is None


def markdown(rows: Sequence[Row]) -> str:
    """The committed table."""
    defects = [row for row in rows if is_defect(row)]
    lines = [
        "# Programs in 16 bit, judged against themselves in float32",
        "",
        "Written by `python -m tests.truth --all --table`; `yardstick.py` says what a ratio is. A "
        "ratio above "
        f"{LIMIT:g} is a defect or a named limit.",
        "",
        "| mode | way | programs | tensors | median ratio | 99 % below | above the limit | of "
        "these named |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (mode, way), part in _grouped(rows, lambda row: (row.mode, row.way)):
        ratios = sorted(row.ratio for row in part)
        above = [row for row in part if row.ratio > LIMIT or row.problem]
        named = sum(limit_of(row) is not None for row in above)
        lines.append(
            f"| {mode} | {way} | {len({row.program for row in part})} | {len(part)} | "
            f"{statistics.median(ratios):.2f} "
            f"| {ratios[int(0.99 * (len(ratios) - 1))]:.2f} | {len(above)} | {named} |"
        )
    lines += ["", "## Above the limit, and not named", ""]
    lines += table_of(defects) if defects else ["None."]
    lines += [
        "",
        "## Named limits",
        "",
        "| programs | modes | inputs | worst ratio | why |",
        "| --- " * 5 + "|",
    ]
    lines += [_limit_line(limit, rows) for limit in LIMITS]
    return "\n".join(lines) + "\n"


def _limit_line(limit: Limit, rows: Sequence[Row]) -> str:
    covered = [row.ratio for row in rows if row.ratio > LIMIT and limit_of(row) is limit]
    found = f"{max(covered):.3g}" if covered else "below the limit here"
    programs, cases = (pattern.replace("|", "\\|") for pattern in (limit.programs, limit.cases))
    return f"| `{programs}` | {', '.join(limit.modes)} | `{cases}` | {found} | {limit.why} |"


def table_of(defects: Sequence[Row]) -> list[str]:
    """The lines of a table with a row for each program, way and mode that fails."""
    lines = [
        "| program | mode | way | inputs | tensors | worst | ratio | error | ideal error |",
        "| --- " * 9 + "|",
    ]
    for (program, way, mode), bad in _grouped(
        defects, lambda row: (row.program, row.way, row.mode)
    ):
        worst = max(bad, key=lambda row: row.ratio)
        cases = ", ".join(sorted({row.case for row in bad}))
        what = worst.problem or f"{worst.tensor}, {worst.case}"
        figures = f"{worst.ratio:.3g} | {worst.error:.3g} | {worst.ideal:.3g}"
        lines.append(f"| {program} | {mode} | {way} | {cases} | {len(bad)} | {what} | {figures} |")
    return lines


def _grouped(rows: Iterable[Row], key: object) -> list:
    ordered = sorted(rows, key=key)
    return [(found, list(part)) for found, part in itertools.groupby(ordered, key)]
