"""Judges programs in 16 bit against themselves in float32: ``python -m tests.truth --all``.

Programs run in processes of their own, a hundred to a process, so that one that ends its process is
one line of the table. Rows are kept in a file. ``--table`` writes the committed table.

    python -m tests.truth --all --table            # everything: 40 minutes on one core
    python -m tests.truth --only 'loops/' --mode bfloat16 --way graph
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.truth import report, runner
from tests.truth.modes import AVAILABLE
from tests.truth.runner import Row

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "build" / "truth.jsonl"
TABLE = Path(__file__).parent / "TABLE.md"
WAYS = ("graph", "xla")
BATCH = 100  # programs to a process: TensorFlow keeps a part of every function


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all programs")
    parser.add_argument("--only", metavar="REGEX", help="programs whose name it finds")
    parser.add_argument(
        "--mode", action="append", choices=AVAILABLE, help="a precision; all by default"
    )
    parser.add_argument(
        "--way", action="append", choices=WAYS, help="graph or xla; both by default"
    )
    parser.add_argument(
        "--without",
        default="",
        metavar="RULES",
        help="rows of paint.RULES to leave out, comma-separated",
    )
    parser.add_argument(
        "--rows", type=Path, default=ROWS, help=f"the file of rows ({ROWS.relative_to(ROOT)})"
    )
    parser.add_argument("--table", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    options = parser.parse_args()
    if not (options.all or options.only):
        parser.error("say --all or --only REGEX")
    modes = options.mode or list(AVAILABLE)
    ways = options.way or list(WAYS)
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    options.rows.unlink(missing_ok=True)
    _run_all(options.only or "", modes, ways, options.rows, options.without)
    rows = list(runner.read(options.rows))
    table = report.markdown(rows)
    print(table)
    if options.table:
        TABLE.write_text(table, encoding="utf-8")
    return int(any(report.is_defect(row) for row in rows))


def _run_all(only, modes, ways, path, without):
    """Starts workers until every program has its rows."""
    names = _worker("names", ",".join(ways), only, stdout=subprocess.PIPE, check=True)
    left = names.stdout.splitlines()
    while left:
        batch = left[:BATCH]
        left = left[BATCH:]
        arguments = ("run", ",".join(modes), ",".join(ways), str(path), without)
        status = _worker(*arguments, input="\n".join(batch)).returncode
        done = {row.program for row in runner.read(path)}
        missing = [name for name in batch if name not in done]
        if missing and status:
            problem = f"the process ended with status {status}"
            runner.append(path, [Row.of_failure(missing[0], ways[0], modes[0], problem)])
            left = missing[1:] + left


def _worker(*arguments, **options):
    command = [sys.executable, "-m", "tests.truth.worker", *arguments]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run(command, cwd=ROOT, env=environ, text=True, **options)


if __name__ == "__main__":
    sys.exit(main())
