"""The figures of benchmarks/README.md: a JSON file a benchmark, with when, where and by which
command it was measured.

``scripts/update_docs`` makes the tables of the page from them.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FEATURES = ("avx512_bf16", "amx_bf16")  #: of a CPU, by which bfloat16 may be fast
Table = dict[str, list[Any]]  #: ``columns``, and ``rows`` of as many cells


def machine(command: str, arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Date, CPU, versions and command.

    Args:
        command: how the module is called, without arguments.
        arguments: those of this process by default.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    versions = {}
    for package in ("tensorflow", "tensorflow-cpu", "keras"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **versions,
        "command": " ".join([command, *arguments]),
    }


def _cpu() -> str:
    """The model of the CPU, with the last of :data:`FEATURES` that it has."""
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)", info, re.MULTILINE)
    text = model[1] if model else platform.processor()
    for feature in reversed(FEATURES):
        if re.search(rf"\b{feature}\b", info):
            return f"{text} with {feature}"
    return text


def print_facts(facts: Mapping[str, Any]) -> None:
    """Prints what :func:`machine` found, a line each, and an empty line."""
    for key, value in facts.items():
        print(f"{key}: {value}")
    print()


def table_row(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table_head(columns: Sequence[str], texts: int = 1) -> str:
    """The two lines above a Markdown table; all columns but the first ``texts`` hold figures."""
    rule = "---|" * texts + "---:|" * (len(columns) - texts)
    return f"{table_row(columns)}\n|{rule}"


def find_tables(text: str) -> list[Table]:
    """The Markdown tables in what a benchmark printed; those with the same columns are one."""
    found: dict[str, Table] = {}
    for head, rows in re.findall(r"^(\|.*\|)\n\|[-:| ]+\|\n((?:\|.*\|\n?)*)", text, re.MULTILINE):
        table = found.setdefault(head, {"columns": _cells(head), "rows": []})
        table["rows"] += map(_cells, rows.splitlines())
    return list(found.values())


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def select(table: Table, columns: Sequence[str]) -> Table:
    """A table with only some of its columns.

    Raises:
        ValueError: it has no column of this name.
    """
    places = [table["columns"].index(name) for name in columns]
    rows = []
    for row in table["rows"]:
        rows.append([row[place] for place in places])
    return {"columns": list(columns), "rows": rows}


def write(path: Path, facts: dict[str, Any], tables: Sequence[Table]) -> None:
    """Writes a file of results, a row of a table on each line."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    parts = []
    for table in tables:
        rows = ",\n".join(map(text, table["rows"]))
        parts.append(f'{{"columns": {text(table["columns"])}, "rows": [\n{rows}\n]}}')
    whole = f'{{"machine": {text(facts)},\n"tables": [{", ".join(parts)}]}}\n'
    path.write_text(whole, encoding="utf-8")
