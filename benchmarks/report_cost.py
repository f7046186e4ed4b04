"""What a report costs a run: ``AMP_TF_REPORT`` beside the same training without it.

    python -m benchmarks.report_cost [--models resnet50,bert,gnmt] [--ways fit,fit_jit] [--seconds 60] [--keep FOLDER]

Each model trains for a minute in a process of its own with ``AMP_TF_REPORT``, and in another one for two steps without
it. Told are the CPU time of writing the report as the process ends, what the rewrites took more because they keep what
figures are made of, and both as a share of the run. Times are CPU times of the thread, so that other work on the
machine changes them little. With ``--keep`` the reports stay in a folder, for ``amp-tf report``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.step_time.modes import WAYS, environment, modes

ROOT = Path(__file__).resolve().parents[1]
MODE, PRECISION = "amp_tf", "bfloat16"  # of the Keras policy, which has no part in this


@dataclasses.dataclass(frozen=True)
class Cost:
    """One process.

    Attributes:
        nodes: of the graphs in its report.
        rewrites: CPU seconds of all rewrites.
        written: CPU seconds of writing the report; 0 without one.
        size: bytes of the report.
        seconds: of the whole process' training.
    """

    nodes: int
    rewrites: float
    written: float
    size: int
    seconds: float


def watch_rewrites() -> list[float]:
    """A list that grows by the CPU milliseconds of each call of amp_tf's plugin; call it before the first graph."""
    from amp_tf.config import AmpConfig
    from amp_tf.hooks import plugin

    taken: list[float] = []
    on_graph = plugin._on_graph

    def timed(*arguments: Any) -> None:
        begin = time.thread_time()
        try:
            on_graph(*arguments)
        finally:
            taken.append((time.thread_time() - begin) * 1e3)

    plugin._on_graph = timed
    plugin.install(AmpConfig.from_env())
    return taken


def work(job: dict[str, Any]) -> None:
    """Trains in this process, writes the report as its end would, and prints what that took, in JSON."""
    from benchmarks.step_time import worker

    begin = time.perf_counter()
    worker.set_up(modes(PRECISION)[MODE])
    rewrites = watch_rewrites()

    from amp_tf.hooks import report_files
    from amp_tf.hooks import state as process_state

    runner = worker.new_runner({**job, "mode": MODE}, WAYS[job["way"]])
    while True:
        runner.steps(2)
        if time.perf_counter() - begin > job["seconds"]:
            break
    seconds, start = time.perf_counter() - begin, time.thread_time()
    report_files.write()
    written = time.thread_time() - start
    folder = process_state.settings().report_path
    files = list(Path(folder).glob("*.json")) if folder else []
    newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
    nodes, size = (json.loads(newest.read_text())["total"], newest.stat().st_size) if newest else (0, 0)
    cost = Cost(nodes, sum(rewrites) / 1e3, written, size, seconds)
    print("\n" + json.dumps(dataclasses.asdict(cost)), flush=True)


def measure(job: dict[str, Any], folder: str = "") -> Cost:
    """The figures of one new process.

    Args:
        job: model, size, way and seconds.
        folder: of the report; none is written if it is empty.

    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote to stderr.
    """
    own = [*("--models", job["model"]), *("--ways", job["way"]), *("--size", job["size"])]
    command = [sys.executable, "-m", "benchmarks.report_cost", "--train", *own, "--seconds", str(job["seconds"])]
    variables = {"AMP_TF_REPORT": folder} if folder else {}
    environ = {**environment(modes(PRECISION)[MODE]), "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    return Cost(**json.loads(done.stdout.strip().splitlines()[-1]))


def line(title: str, way: str, with_report: Cost, without: Cost) -> str:
    """A row of the table."""
    more = with_report.rewrites - without.rewrites
    share = (with_report.written + more) / with_report.seconds
    return (
        f"| {title} | {way} | {with_report.nodes:,} | {with_report.size / 1e6:.1f} | {with_report.written:.2f} "
        f"| {more:+.2f} | {with_report.seconds:.0f} | {share:.1%} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=models.names, default=["resnet50", "bert", "gnmt"])
    parser.add_argument("--ways", default="fit", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--size", choices=models.SIZES, default="small")
    parser.add_argument("--seconds", type=float, default=60.0, help="that each run takes")
    parser.add_argument("--keep", type=Path, help="a folder for the reports")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    jobs = [
        {"model": model, "size": options.size, "precision": PRECISION, "way": way, "batch": None}
        for model in options.models
        for way in options.ways.split(",")
    ]
    if options.train:
        work({**jobs[0], "seconds": options.seconds})
        return 0
    print("| model | way | nodes | report, MB | written, s | rewrites, s more | the run, s | share of it |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for job in jobs:
        with tempfile.TemporaryDirectory() as scratch:
            folder = options.keep / f"{job['model']}_{job['way']}" if options.keep else Path(scratch)
            with_report = measure({**job, "seconds": options.seconds}, str(folder.resolve()))
        without = measure({**job, "seconds": 0.0})
        print(line(models.benchmark(job["model"]).title, job["way"], with_report, without), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
