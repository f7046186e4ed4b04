"""Runs test files of one suite in one mode, each in a fork of a process that has imported the
library.

It reads ``{"file": …, "limit": seconds}`` from stdin, JSON by line, and answers on stdout
with the tests' rows and the machine.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import pytest

from benchmarks.results import machine
from benchmarks.suites import plugin

TIME_LIMIT = "the time limit"


def run_file(file: str, limit: float, options: dict[str, Any]) -> dict[str, Any]:
    """Runs the tests of a file; their rows, and why it ended early, if it did."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows_file = folder / "rows"
        rows_file.touch()
        begin = time.monotonic()
        process = os.fork()
        if process == 0:
            signal.setitimer(signal.ITIMER_REAL, limit)
            _run_tests(file, folder, options)
        ended = _wait(process)
        lines = rows_file.read_text().splitlines()
        if ended:
            print((folder / "output").read_text(errors="replace")[-2000:], file=sys.stderr)
    rows = {row["test"]: row for row in map(json.loads, lines)}
    for row in rows.values():
        if "outcome" not in row:  # it was running when the process ended
            row |= {"outcome": "skipped" if ended == TIME_LIMIT else "failed", "message": ended}
    seconds = round(time.monotonic() - begin, 1)
    return {"tests": list(rows.values()), "ended": ended, "seconds": seconds}


def _run_tests(file: str, folder: Path, options: dict[str, Any]) -> NoReturn:
    """Runs pytest in a forked process, which ends here."""
    status = 1
    try:
        os.setsid()  # what it starts is ended with it
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        tolerance = plugin.Tolerance(options["share"])
        tolerance.install()
        plugin.call_functions(options["classes"], options["functions"])
        site = options["site"]
        arguments = ["-q", "--assert=plain", "-c", os.devnull, "-p", "no:cacheprovider"]
        arguments += ["--rootdir", site, f"{site}/{file}"]
        with open(folder / "rows", "w") as lines:
            pytest.main(arguments, [plugin.Recorder(lines, tolerance)])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _wait(process: int) -> str:
    """Waits for a process, and ends what it started; says how it ended, if not by itself."""
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    number = os.waitstatus_to_exitcode(status)
    if number == -signal.SIGALRM:
        return TIME_LIMIT
    return f"the process ended with status {number}" if number else ""


def main() -> int:
    options = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to stderr
    for name in options["imports"]:
        importlib.import_module(name)
    for line in sys.stdin:
        command = json.loads(line)
        answer = run_file(command["file"], command["limit"], options)
        answer["machine"] = machine("python -m benchmarks.suites", [])
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
