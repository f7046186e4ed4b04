"""What the first step takes: a process of its own for each model, way, mode and round.

    python -m benchmarks.step_time.first_step [MODELS] [--ways fit,predict] [--rounds 5] [--modes plugin,policy,amp_tf]

The first step traces, optimizes the graph, makes oneDNN's kernels, and runs. Told apart are what amp_tf's rewrites take
(CPU time of the threads that they run on, from TensorFlow's call to the answer), what else differs from float32, and
what oneDNN takes to make kernels (its own account, ``ONEDNN_VERBOSE=profile_create``), which differs by precision
whoever asks for it: hence the Keras policy as a mode. In the mode ``plugin`` amp_tf's plugin hands back each graph:
what TensorFlow takes to serialize graphs for a plugin and to parse them again. Ratios are medians of the ratios within
a round, with half the distance between their quartiles; modes take turns, each round in the opposite order. CPU time
is that of all threads: a first step of 100 ms differs by a third from process to process, its CPU time by less.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.models import benchmark, names
from benchmarks.step_time import options
from benchmarks.step_time.modes import WAYS, Mode, environment, modes

REFERENCE = "float32"
PLUGIN = Mode("plugin", "plugin alone")
_MADE = ",create:cache_miss,"


@dataclasses.dataclass(frozen=True)
class FirstStep:
    """One process.

    Attributes:
        total_ms: from the call of fit, predict or the function to the end of its first step.
        rewrite_ms: CPU time of amp_tf's rewrites; 0 in other modes.
        kernels_ms: what oneDNN took to make kernels.
        cpu_ms: CPU time of all threads in ``total_ms``; other programs on the machine disturb it less.
    """

    total_ms: float
    rewrite_ms: float
    kernels_ms: float
    cpu_ms: float


def kernel_ms(lines: Iterable[str]) -> float:
    """The milliseconds of all kernels made, from oneDNN's lines: the last field is the time."""
    return sum(float(line.rpartition(",")[2]) for line in lines if line.startswith("onednn_verbose") and _MADE in line)


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


def known_modes(precision: str) -> dict[str, Mode]:
    """The modes of the suite, and the plugin alone."""
    return {**modes(precision), PLUGIN.name: PLUGIN}


def work(job: dict[str, Any]) -> None:
    """Makes the first step in this process and prints what it took, as the last line, in JSON."""
    from benchmarks.step_time import worker

    mode = known_modes(job["precision"])[job["mode"]]
    worker.set_up(mode)
    rewrites = watch_rewrites() if mode.is_ours else []
    if mode is PLUGIN:
        from amp_tf.hooks import plugin

        plugin.set_conversion(lambda *_: None)
        job = {**job, "mode": REFERENCE}
    runner = worker.new_runner(job, WAYS[job["way"]])
    rewrites.clear()
    begin, cpu = time.perf_counter(), time.process_time()
    total = runner.steps(1).ends[0] - begin
    taken = {"total_ms": total * 1e3, "rewrite_ms": sum(rewrites), "cpu_ms": (time.process_time() - cpu) * 1e3}
    print("\n" + json.dumps(taken), flush=True)


def measure(job: dict[str, Any], mode: Mode) -> FirstStep:
    """The first step of one new process.

    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote to stderr.
    """
    command = [sys.executable, "-m", "benchmarks.step_time.first_step", "--work", json.dumps(job)]
    environ = {**environment(mode), "ONEDNN_VERBOSE": "profile_create"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    lines = done.stdout.strip().splitlines()
    return FirstStep(**json.loads(lines[-1]), kernels_ms=kernel_ms(lines))


def table(found: dict[tuple[str, str], dict[str, list[FirstStep]]], others: Sequence[Mode]) -> str:
    """One line for each model and way, medians over the rounds, as Markdown."""
    titles = [f"× {mode.title}" for mode in others]
    kernels = ["kernels made, ms: float32", *(mode.title for mode in others)]
    head = [
        "model",
        "way",
        "float32 ms",
        *titles,
        "amp_tf × in CPU time",
        "its rewrites, ms of CPU",
        "the rest, ms",
        *kernels,
    ]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    return "\n".join([*lines, *(_line(model, way, by_mode, others) for (model, way), by_mode in found.items())])


def _line(model: str, way: str, by_mode: dict[str, list[FirstStep]], others: Sequence[Mode]) -> str:
    reference = by_mode[REFERENCE]
    cells = [benchmark(model).title, way, f"{_median(step.total_ms for step in reference):.0f}"]
    for mode in others:
        pairs = zip(by_mode[mode.name], reference, strict=True)
        ratios = [step.total_ms / base.total_ms for step, base in pairs]
        cells.append(f"{_median(ratios):.2f} ± {_half_quartiles(ratios):.2f}")
    own = by_mode.get("amp_tf", reference)
    cells.append(f"{_median(step.cpu_ms / base.cpu_ms for step, base in zip(own, reference, strict=True)):.2f}")
    cells.append(f"{_median(step.rewrite_ms for step in own):.0f}")
    rest = (step.total_ms - step.rewrite_ms - base.total_ms for step, base in zip(own, reference, strict=True))
    cells.append(f"{_median(rest):+.0f}")
    cells += [f"{_median(step.kernels_ms for step in steps):.0f}" for steps in by_mode.values()]
    return "| " + " | ".join(cells) + " |"


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def _half_quartiles(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options.new_parser(__doc__, modes=("policy", "amp_tf"))
    options.add_ways(parser, "fit,predict")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.work:
        work(json.loads(chosen.work))
        return 0
    available = known_modes(chosen.precision)
    others = [available[name] for name in options.names_in(chosen.modes)]
    found: dict[tuple[str, str], dict[str, list[FirstStep]]] = {}
    for model in names(chosen.models):
        for way in options.names_in(chosen.ways):
            by_mode: dict[str, list[FirstStep]] = {mode.name: [] for mode in (available[REFERENCE], *others)}
            asked = {"model": model, "way": way, "size": chosen.size, "batch": None, "precision": chosen.precision}
            for number in range(chosen.rounds):
                for name in list(by_mode)[:: -1 if number % 2 else 1]:
                    by_mode[name].append(measure({**asked, "mode": name}, available[name]))
            found[model, way] = by_mode
            print(_line(model, way, by_mode, others), file=sys.stderr)
    print(table(found, others))
    return 0


if __name__ == "__main__":
    sys.exit(main())
