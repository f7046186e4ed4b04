"""Runs test files of one suite in one mode, each in a fork of a process that has imported the
library.

It reads ``{"file": …, "limit": seconds}`` from stdin, JSON by line, and answers on stdout
with the tests' rows and the machine.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.results import machine
from benchmarks.suites import plugin

TIME_LIMIT = "the time limit"


def run_file(file: str, limit: float, options: dict[str, Any]) -> dict[str, Any]:
    """Runs the tests of a file; their rows, and why it ended early, if it did."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=run_tests, args=(file, limit, folder, options))
        process.start()
        process.join()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind
        lines = Path(folder, "rows").read_text().splitlines()
    ended = ""
    if process.exitcode:
        ended = f"the process ended with status {process.exitcode}"
    if process.exitcode == -signal.SIGALRM:
        ended = TIME_LIMIT
    tests = []
    for row in {row["test"]: row for row in map(json.loads, lines)}.values():
        if "outcome" in row:
            tests.append(row)
        elif ended != TIME_LIMIT:  # it was running when the process ended
            tests.append({**row, "outcome": "failed", "message": ended})
    seconds = round(time.monotonic() - begin, 1)
    return {"tests": tests, "ended": ended, "seconds": seconds}


def run_tests(file: str, limit: float, folder: str, options: dict[str, Any]) -> None:
    """Runs pytest in a forked process, for at most so many seconds."""
    signal.setitimer(signal.ITIMER_REAL, limit)
    os.setsid()  # what it starts is ended with it
    os.chdir(folder)
    with open("rows", "w") as lines:
        tolerance = plugin.Tolerance(options["share"])
        tolerance.install()
        plugin.call_functions(options["calls"], options["functions"])
        site = options["site"]
        arguments = ["-q", "--assert=plain", "-c", os.devnull, "-p", "no:cacheprovider"]
        arguments += ["--rootdir", site, f"{site}/{file}"]
        recorder = plugin.Recorder(lines, tolerance, options["flags"])
        status = pytest.main(arguments, [recorder])
        if status in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
            sys.exit(status)  # such as a conftest that cannot be imported


def find_helpers(site: str) -> None:
    """Lets the library's packages find modules that only the repository has, such as the base
    classes of its tests.
    """
    for name, module in list(sys.modules.items()):
        folder = os.path.join(site, *name.split("."))
        if os.path.isdir(folder):
            module.__path__.append(folder)


def main() -> int:
    options = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to stderr
    for name in options["imports"]:
        importlib.import_module(name)
    if options["source"]:
        find_helpers(options["site"])
    for line in sys.stdin:
        command = json.loads(line)
        answer = run_file(command["file"], command["limit"], options)
        answer["machine"] = machine("python -m benchmarks.suites", [])
        del answer["machine"]["load"]  # no times are measured
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
