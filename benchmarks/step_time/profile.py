"""Where the time of a step goes: a table of ops, each mode beside the others, from TensorFlow's profiler.

    python -m benchmarks.step_time.profile mobilenetv2 --way fit --modes float32,tf_pass,amp_tf

One process for each mode. A figure is the time inside the kernels of one op, summed over threads, in milliseconds of a
step, with how many of them ran; so columns add up to more than the step where kernels run side by side, and a kernel
that waits for the cores that another one uses counts twice. Find out what differs here; measure what it costs with
``python -m benchmarks.step_time``.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.models import names
from benchmarks.step_time import options
from benchmarks.step_time.modes import COMPARED, WAYS, environment, modes
from benchmarks.step_time.traces import Event, record

STEPS = 6


@dataclasses.dataclass(frozen=True)
class Figure:
    """What one op took in a step: ``ms`` milliseconds in ``count`` kernels."""

    ms: float
    count: float


def kernels(events: Iterable[Event]) -> Iterator[tuple[str, float]]:
    """The kernels that the profiler saw, as (op, milliseconds)."""
    from tensorflow.python.framework import op_def_registry

    for event in events:
        node, separator, op = event.name.rpartition(":")
        if node and separator and op_def_registry.get(op) is not None:
            yield op, event.ms


def profiled(run: Any) -> dict[str, Figure]:
    """The ops of :data:`STEPS` steps, by name."""
    total: dict[str, float] = collections.defaultdict(float)
    count: dict[str, int] = collections.Counter()
    for op, ms in kernels(record(lambda: run.steps(STEPS))):
        total[op] += ms
        count[op] += 1
    return {op: Figure(total[op] / STEPS, count[op] / STEPS) for op in total}


def worker(job: dict[str, Any]) -> None:
    """Profiles one mode and prints the figures as one JSON line."""
    from benchmarks.step_time.worker import prepare, set_up

    set_up(modes(job["precision"])[job["mode"]])
    runner, _ = prepare(job, WAYS[job["way"]])
    figures = profiled(runner)
    print("figures:" + json.dumps({op: dataclasses.astuple(figure) for op, figure in figures.items()}), flush=True)


def measure(job: dict[str, Any]) -> dict[str, Figure]:
    """The figures of one mode, from a process of its own.

    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote.
    """
    mode = modes(job["precision"])[job["mode"]]
    command = [mode.python, "-m", "benchmarks.step_time.profile", "--worker", json.dumps(job)]
    done = subprocess.run(command, env=environment(mode), capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("figures:")]
    if not lines:
        raise RuntimeError(done.stderr[-1500:])
    return {op: Figure(*figure) for op, figure in json.loads(lines[0][len("figures:") :]).items()}


def table(by_mode: dict[str, dict[str, Figure]], rows: int) -> str:
    """The ops that take the most in any mode, as Markdown."""
    most = {
        op: max(figures.get(op, Figure(0, 0)).ms for figures in by_mode.values())
        for op in set().union(*by_mode.values())
    }
    lines = ["| op | " + " | ".join(f"{mode} ms (kernels)" for mode in by_mode) + " |"]
    lines.append("|---|" + "---:|" * len(by_mode))
    for op in sorted(most, key=lambda op: -most[op])[:rows]:
        cells = [
            f"{figures[op].ms:.2f} ({figures[op].count:.0f})" if op in figures else "–" for figures in by_mode.values()
        ]
        lines.append(f"| {op} | " + " | ".join(cells) + " |")
    totals = [f"{sum(figure.ms for figure in figures.values()):.2f}" for figures in by_mode.values()]
    return "\n".join([*lines, "| all | " + " | ".join(totals) + " |"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options.new_parser(__doc__, modes=COMPARED)
    parser.add_argument("--way", default="fit", choices=WAYS)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.worker:
        worker(json.loads(asked.worker))
        return 0
    for model in names(asked.models):
        job = {"model": model, "size": asked.size, "batch": asked.batch, "way": asked.way, "precision": asked.precision}
        by_mode = {mode: measure({**job, "mode": mode}) for mode in options.names_in(asked.modes)}
        print(f"**{model}, {asked.way}**", "", table(by_mode, asked.rows), "", sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
