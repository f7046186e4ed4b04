"""Runs the tests that other projects wrote for their libraries, with amp_tf in each 16-bit type and
without it.

    python -m benchmarks.suites [--suites keras] [--only REGEX] [--quick] [--rows FILE] > table.md

Each suite has an environment of its own, ``.venv/suites/NAME``, filled from a package index. If
the package has no tests, the repository's are taken from ``.venv/suites/sources/NAME``; if they are
not there, a line says how to get them. Each test file runs in a process of its own, in bfloat16, in
float16, and if a test failed, in float32. amp_tf converts graphs, so calls of built layers
and of some functions are made ``tf.function``s, in float32, too. Under amp_tf a comparison that
fails is tried again within 4 % (bfloat16) or .8 % (float16) of the largest value, and the test
counts as *tolerated*. A test that fails with amp_tf alone is a defect, or stands in ``named.py``
with its reason; the status is 1 if one does not. With ``--rows``, files that ran are not run again,
so that a suite may be run in pieces.
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

#: Of the largest value, by mode; float32 is last, because only what failed in 16 bit runs in it.
SHARES = {"bfloat16": 0.04, "float16": 0.008, "float32": 0.0}
QUICK = 600.0  #: seconds


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
    suite: Suite,
    files: Sequence[str],
    python: Path,
    site: Path,
    *,
    until: float = math.inf,
    limit: float = 180.0,
) -> Iterator[tuple[dict[str, Any], list[outcomes.FileRun]]]:
    """Runs files, each in all modes, until a time; yields what :func:`machine` says of the
    environment, and a file's outcomes.

    Args:
        suite, python, site: as for :func:`start`.
        files: their paths.
        until: by the monotonic clock; no file begins later.
        limit: seconds that a file may take in a mode.
    """
    with contextlib.ExitStack() as stack:
        processes = {}
        for mode in SHARES:
            processes[mode] = start(suite, mode, python, site)
            stack.callback(processes[mode].close)
        for file in files:
            if time.monotonic() > until:
                return
            found: list[outcomes.FileRun] = []
            for mode, process in processes.items():
                if mode == "float32" and not any(run.failed for run in found):
                    break
                answer = process.ask(file=file, limit=limit)
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
    parser.add_argument("--seconds", type=float, help="of all suites together")
    parser.add_argument(
        "--limit", type=float, default=180.0, help="of a file in one type, seconds; %(default)s"
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="keeps the outcomes")
    asked = parser.parse_args(given)
    begin = time.monotonic()
    seconds = asked.seconds or (QUICK if asked.quick else math.inf)
    facts, runs = outcomes.read(asked.rows) if asked.rows else ({}, [])
    done = {run.file for run in runs}
    wanted = [suites.SUITES[name] for name in names_in(asked.suites)]
    for suite in wanted:
        print(suites.missing(suite), end="", file=sys.stderr)
    left = [suite for suite in wanted if not suites.missing(suite)]
    while left:
        now = time.monotonic()
        until = now + (begin + seconds - now) / len(left)
        suite = left.pop()  # Keras' is the largest, and has what the others leave
        with contextlib.redirect_stdout(sys.stderr):  # the page alone goes to stdout
            venv = suites.prepare(suite)
        site = suites.folder_of(suite, venv)
        files = sorted(path.relative_to(site).as_posix() for path in site.glob(suite.files))
        pattern = suite.quick if asked.quick else asked.only
        chosen = [file for file in files if re.search(pattern, file) and file not in done]
        version = venv.version_of(suite.distribution)
        for machine, found in run_files(
            suite, chosen, venv.python, site, until=until, limit=asked.limit
        ):
            about = {suite.distribution: version, "test files": len(files), **machine}
            if suite.source:
                about["tests of"] = suite.source
            facts[suite.name] = outcomes.joined(facts.get(suite.name, {}), about)
            runs += outcomes.beside_float32(found)
            if asked.rows:
                outcomes.write(asked.rows, facts, runs)
    print(outcomes.page(facts, runs))
    return int(any(not reason for _, _, reason in outcomes.failed_only_here(runs)))


if __name__ == "__main__":
    sys.exit(main())
