"""Runs a benchmark and keeps the tables that it prints for benchmarks/README.md.

    python -m benchmarks.results NAME [--folder FOLDER] -- COMMAND...

    python -m benchmarks.results interpreter_start -- benchmarks/interpreter_start.py
    python -m benchmarks.results step_time -- -m benchmarks.step_time --rounds 4

COMMAND is what follows ``python``. ``NAME.json`` gets the date, the CPU, the versions, the command
and the tables. A file that exists keeps its columns, so delete those that the page need not show.
Then run ``scripts/update_docs``; a new NAME needs its two markers in benchmarks/README.md
first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import FOLDER, Table, find_tables, machine, select, write


def chosen(printed: Sequence[Table], kept: Sequence[Table]) -> list[Table]:
    """Selects the printed tables and columns that were kept before."""
    found = []
    for before in kept:
        columns = before["columns"]
        for table in printed:
            if set(columns) <= set(table["columns"]):
                found.append(select(table, columns))
                break
        else:
            raise SystemExit(
                f"No table that was printed has all of these columns: {', '.join(columns)}."
            )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of the file, without .json")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where it is (default: beside this module)"
    )
    parser.add_argument(
        "command", nargs="+", metavar="COMMAND", help="what follows python, after --"
    )
    asked = parser.parse_args(arguments)
    facts = machine("python", asked.command)
    lines = []
    command = [sys.executable, *asked.command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    tables = find_tables("".join(lines))
    if not tables:
        raise SystemExit(
            f"{facts['command']} printed no table; its exit status is {process.returncode}."
        )
    path = asked.folder / f"{asked.name}.json"
    if path.exists():
        kept = json.loads(path.read_text())
        tables = chosen(tables, kept["tables"])
    write(path, facts, tables)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
