"""The figures of benchmarks/README.md: a JSON file a benchmark, with when, where and by which
command it was measured.

``scripts/update_docs`` makes the tables of the page from them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
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
    info = Path("/proc/cpuinfo").read_text()
    models = re.findall(r"^model name\s*: (.*)", info, re.MULTILINE)
    features = [name for name in FEATURES if re.search(rf"\b{name}\b", info)]
    versions = {}
    for package in ("tensorflow", "tensorflow-cpu", "keras"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": " with ".join([models[0] if models else platform.processor(), *features[-1:]]),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **versions,
        "command": " ".join([command, *(sys.argv[1:] if arguments is None else arguments)]),
    }


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
    return {
        "columns": list(columns),
        "rows": [[row[place] for place in places] for row in table["rows"]],
    }


def write(path: Path, facts: dict[str, Any], tables: Sequence[Table]) -> None:
    """Writes a file of results, a row of a table on each line."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    parts = []
    for table in tables:
        rows = ",\n".join(map(text, table["rows"]))
        parts.append(f'{{"columns": {text(table["columns"])}, "rows": [\n{rows}\n]}}')
    path.write_text(
        f'{{"machine": {text(facts)},\n"tables": [{", ".join(parts)}]}}\n', encoding="utf-8"
    )
