"""Runs the tests that other projects wrote for their libraries, in float32 and with amp_tf in each
16-bit type.

    python -m benchmarks.suites [--suites keras] [--only REGEX] [--quick] [--rows FILE] > table.md

Each suite has an environment of its own, ``.venv/suites/NAME``, filled from a package index. Each
test file runs in a process of its own, in float32, bfloat16 and float16 one after the other. amp_tf
converts graphs, so calls of built layers and of Keras' functions are made ``tf.function``s, in
float32, too. Under amp_tf a comparison that fails is tried again within 4 % (bfloat16) or .8 %
(float16) of the largest value, 16 units in the last place of one value; the test counts as
*tolerated*. A test that fails with amp_tf alone is a defect, or stands in ``named.py`` with its
reason. The status is 1 if there is one that does not. With ``--rows``, files that ran are not run
again, so that a suite may be run in pieces.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.step_time.modes import modes
from benchmarks.step_time.options import names_in
from benchmarks.step_time.suite import Process
from benchmarks.suites import outcomes, suites
from benchmarks.suites.outcomes import FileRun
from benchmarks.suites.suites import Suite

SHARES = {"float32": 0.0, "bfloat16": 0.04, "float16": 0.008}  #: of the largest value, by mode
QUICK = 600.0  #: seconds


class Runner:
    """The processes of one suite, one for each mode; a context that ends them.

    Args:
        suite: what is tested.
        python: has the suite installed.
        site: the folder that the paths of its files start from.
    """

    def __init__(self, suite: Suite, python: Path, site: Path) -> None:
        self._suite = suite
        self._processes: dict[str, Process] = {}
        for mode, share in SHARES.items():
            options: dict[str, Any] = {"site": str(site), "share": share}
            for field in ("imports", "classes", "functions"):
                options[field] = getattr(suite, field)
            base = modes(mode)["float32" if mode == "float32" else "all listed"]
            variables = {**base.variables, **suite.variables, "CUDA_VISIBLE_DEVICES": "-1"}
            chosen = dataclasses.replace(base, python=python, variables=variables)
            self._processes[mode] = Process("benchmarks.suites.worker", chosen, options)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.close()

    def facts(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Date, CPU, versions of the suite's environment, and the command."""
        return self._processes["float32"].ask(arguments=list(arguments))

    def run(self, file: str, limit: float) -> list[FileRun]:
        """Runs a file in each mode, for at most so many seconds each."""
        found = []
        for mode, process in self._processes.items():
            answer = process.ask(file=file, limit=limit)
            found.append(outcomes.of_tests(self._suite.name, file, mode, answer))
        return found


def describe(found: Sequence[FileRun]) -> str:
    """What ran of one file, in a line."""
    ours = len(outcomes.failures(found))
    failed = ", ".join(str(len(run.failed)) for run in found)
    seconds = ", ".join(f"{run.seconds:.0f}" for run in found)
    return f"{found[0].file}: of {found[0].run} fail {failed}, {ours} only here; {seconds} s"


def new_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ",".join(suites.SUITES)
    parser.add_argument("--suites", default=every, help="comma-separated; %(default)s by default")
    parser.add_argument("--only", default="", metavar="REGEX", help="the files whose paths match")
    parser.add_argument("--quick", action="store_true", help="a part of each suite, ten minutes")
    parser.add_argument("--limit", type=float, default=180, help="seconds of a file in a mode")
    parser.add_argument("--seconds", type=float, help="after which no file begins")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="keeps the outcomes")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if given is None else given
    asked = new_parser().parse_args(arguments)
    seconds = asked.seconds or (QUICK if asked.quick else math.inf)
    until = time.monotonic() + seconds
    facts, runs = outcomes.read(asked.rows) if asked.rows else ({}, [])
    for name in names_in(asked.suites):
        suite = suites.SUITES[name]
        with contextlib.redirect_stdout(sys.stderr):  # the page alone goes to stdout
            venv = suites.prepare(suite)
        (site,) = venv.path.glob("lib/python*/site-packages")
        files = suite.test_files(site)
        done = {run.file for run in runs if run.suite == name}
        pattern = suite.quick if asked.quick else asked.only
        chosen = [file for file in files if re.search(pattern, file) and file not in done]
        with Runner(suite, venv.python, site) as runner:
            version = venv.version_of(suite.distribution)
            facts[name] = {suite.distribution: version, "test files": len(files)}
            facts[name] |= runner.facts(arguments)
            for file in chosen:
                if time.monotonic() > until:
                    break
                found = runner.run(file, asked.limit)
                print(describe(found), file=sys.stderr, flush=True)
                runs += found
                if asked.rows:
                    outcomes.write(asked.rows, facts, runs)
    print(outcomes.page(facts, runs))
    return int(any(failure.named is None for failure in outcomes.failures(runs)))


if __name__ == "__main__":
    sys.exit(main())
