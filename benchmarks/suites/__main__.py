"""Runs the tests that other projects wrote for their libraries, in float32 and with amp_tf in each
16-bit type.

    python -m benchmarks.suites [--suites keras] [--only REGEX] [--quick] [--rows FILE] > table.md

Each suite has an environment of its own, ``.venv/suites/NAME``, filled from a package index. Each
test file runs in a process of its own, in float32, bfloat16 and float16 one after the other. amp_tf
converts graphs, so calls of built layers and of Keras' functions are made ``tf.function``s, in
float32, too. Under amp_tf a comparison that fails is tried again within 4 % (bfloat16) or .8 %
(float16) of the largest value, and the test counts as *tolerated*. A test that fails with amp_tf
alone is a defect, or stands in ``named.py`` with its reason; the status is 1 if one does not. With
``--rows``, files that ran are not run again, so that a suite may be run in pieces.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.step_time.modes import modes
from benchmarks.step_time.options import names_in
from benchmarks.step_time.suite import Process
from benchmarks.suites import outcomes, suites
from benchmarks.suites.suites import Suite

SHARES = {"float32": 0.0, "bfloat16": 0.04, "float16": 0.008}  #: of the largest value, by mode
QUICK = 600.0  #: seconds
LIMIT = 180.0  #: seconds of a file in a mode


def start(suite: Suite, mode: str, python: Path, site: Path) -> Process:
    """Starts the process that runs the files of a suite in one mode.

    Args:
        suite: what is tested.
        mode: float32 or a 16-bit type.
        python: has the suite installed.
        site: the folder that the paths of its files start from.
    """
    options = {**dataclasses.asdict(suite), "site": str(site), "share": SHARES[mode]}
    base = modes(mode)["float32" if mode == "float32" else "all listed"]
    variables = {**base.variables, **suite.variables, "CUDA_VISIBLE_DEVICES": "-1"}
    chosen = dataclasses.replace(base, python=python, variables=variables)
    return Process("benchmarks.suites.worker", chosen, options)


def run_files(
    suite: Suite, files: Sequence[str], python: Path, site: Path, until: float = math.inf
) -> Iterator[tuple[dict[str, Any], list[outcomes.FileRun]]]:
    """Runs files, each in all modes, until a time; yields what :func:`machine` says of the
    environment, and a file's outcomes.
    """
    with contextlib.ExitStack() as stack:
        processes = {}
        for mode in SHARES:
            processes[mode] = start(suite, mode, python, site)
            stack.callback(processes[mode].close)
        for file in files:
            if time.monotonic() > until:
                return
            found = []
            for mode, process in processes.items():
                answer = process.ask(file=file, limit=LIMIT)
                found.append(outcomes.of_tests(suite.name, file, mode, answer))
            failed = [f"{run.mode} {len(run.failed)} failed {run.seconds:.0f} s" for run in found]
            print(f"{file}: {', '.join(failed)}", file=sys.stderr, flush=True)
            yield answer["machine"], found


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ",".join(suites.SUITES)
    parser.add_argument("--suites", default=every, help="comma-separated; %(default)s by default")
    parser.add_argument("--only", default="", metavar="REGEX", help="the files whose paths match")
    parser.add_argument("--quick", action="store_true", help="a part of each suite, ten minutes")
    parser.add_argument("--seconds", type=float, help="after which no file begins")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="keeps the outcomes")
    asked = parser.parse_args(given)
    until = time.monotonic() + (asked.seconds or (QUICK if asked.quick else math.inf))
    facts, runs = outcomes.read(asked.rows) if asked.rows else ({}, [])
    done = {run.file for run in runs}
    for name in names_in(asked.suites):
        suite = suites.SUITES[name]
        with contextlib.redirect_stdout(sys.stderr):  # the page alone goes to stdout
            venv = suites.prepare(suite)
        (site,) = venv.path.glob("lib/python*/site-packages")
        files = sorted(path.relative_to(site).as_posix() for path in site.glob(suite.files))
        pattern = suite.quick if asked.quick else asked.only
        chosen = [file for file in files if re.search(pattern, file) and file not in done]
        version = venv.version_of(suite.distribution)
        for machine, found in run_files(suite, chosen, venv.python, site, until):
            facts[name] = {suite.distribution: version, "test files": len(files), **machine}
            runs += found
            if asked.rows:
                outcomes.write(asked.rows, facts, runs)
    print(outcomes.page(facts, runs))
    return int(any(not reason for _, _, reason in outcomes.failed_only_here(runs)))


if __name__ == "__main__":
    sys.exit(main())
