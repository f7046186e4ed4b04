"""Reports the rows: a summary, and the table that is committed."""

import itertools
import statistics

from amp_tf.oplists.hardware import cpu_name
from tests.truth.limits import LIMITS, limit_of
from tests.truth.modes import MULTIPLIES_BF16
from tests.truth.yardstick import LIMIT


def is_defect(row):
    """Tells whether a row is above the yardstick's limit and no named limit covers it."""
    return (row.ratio > LIMIT or bool(row.problem)) and limit_of(row) is None


def markdown(rows):
    """The committed table."""
    computing = "oneDNN" if MULTIPLIES_BF16 else "float32"
    lines = [
        "# Programs in 16 bit, judged against themselves in float32",
        "",
        "Written by `python -m tests.truth --all --table`; `yardstick.py` says what a ratio is. A "
        f"ratio above {LIMIT:g} is a defect or a named limit. On {cpu_name()}, where "
        f"{computing} computes bfloat16's products.",
        "",
        "| mode | way | programs | tensors | median ratio | 99 % below | above the limit | of "
        "these named |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (mode, way), part in _grouped(rows, lambda row: (row.mode, row.way)):
        lines.append(f"| {mode} | {way} | {_summary(part)} |")
    defects = [row for row in rows if is_defect(row)]
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


def _summary(rows):
    """The figures of a mode and a way."""
    ratios = sorted(row.ratio for row in rows)
    above = [row for row in rows if row.ratio > LIMIT or row.problem]
    named = [row for row in above if limit_of(row) is not None]
    counts = f"{len({row.program for row in rows})} | {len(rows)}"
    most = ratios[int(0.99 * (len(ratios) - 1))]
    return f"{counts} | {statistics.median(ratios):.2f} | {most:.2f} | {len(above)} | {len(named)}"


def _limit_line(limit, rows):
    covered = [row.ratio for row in rows if row.ratio > LIMIT and limit_of(row) is limit]
    found = f"{max(covered):.3g}" if covered else "below the limit here"
    programs = limit.programs.replace("|", "\\|")
    cases = limit.cases.replace("|", "\\|")
    return f"| `{programs}` | {', '.join(limit.modes)} | `{cases}` | {found} | {limit.why} |"


def table_of(defects):
    """The lines of a table with a row for each program, way and mode that fails."""
    lines = [
        "| program | mode | way | inputs | tensors | worst | ratio | error | ideal error |",
        "| --- " * 9 + "|",
    ]
    groups = _grouped(defects, lambda row: (row.program, row.mode, row.way))
    for names, bad in groups:
        worst = max(bad, key=lambda row: row.ratio)
        what = worst.problem or f"{worst.tensor}, {worst.case}"
        cells = [*names, ", ".join(sorted({row.case for row in bad})), str(len(bad)), what]
        cells += [f"{figure:.3g}" for figure in (worst.ratio, worst.error, worst.ideal)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _grouped(rows, key):
    ordered = sorted(rows, key=key)
    return [(found, list(part)) for found, part in itertools.groupby(ordered, key)]
