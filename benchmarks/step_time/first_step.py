"""What the first step takes: a process of its own for each model, way, mode and round.

    python -m benchmarks.step_time.first_step [MODELS] [--ways fit,predict] [--rounds 5]

The first step traces, optimizes the graph, makes oneDNN's kernels, and runs. Two of its parts are told apart: what
amp_tf's rewrites take (CPU time of the threads that they run on, from TensorFlow's call to the answer), and what oneDNN
takes to make kernels (its own account, ``ONEDNN_VERBOSE=profile_create``), which differs by precision whoever asks for
it: hence the Keras policy as a third mode. Ratios are medians of the ratios within a round, modes taking turns.
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

from benchmarks.models import BENCHMARKS, SIZES, names
from benchmarks.step_time.modes import WAYS, Mode, environment, modes

REFERENCE = "float32"
_MADE = ",create:cache_miss,"


@dataclasses.dataclass(frozen=True)
class FirstStep:
    """One process.

    Attributes:
        total_ms: from the call of fit, predict or the function to the end of its first step.
        rewrite_ms: CPU time of amp_tf's rewrites; 0 in other modes.
        kernels_ms: what oneDNN took to make kernels.
    """

    total_ms: float
    rewrite_ms: float
    kernels_ms: float


def kernel_ms(lines: Iterable[str]) -> float:
    """The milliseconds of all kernels made, from oneDNN's lines: the last field is the time."""
    return sum(float(line.rpartition(",")[2]) for line in lines if line.startswith("onednn_verbose") and _MADE in line)


def watch_rewrites() -> list[float]:
    """A list that grows by the CPU milliseconds of each call of amp_tf's plugin; call it before the first graph."""
    from amp_tf.config import AmpConfig
    from amp_tf.hooks.grappler import plugin

    taken: list[float] = []
    on_graph = plugin._on_graph

    def timed(*arguments: Any) -> int:
        begin = time.thread_time()
        try:
            return on_graph(*arguments)
        finally:
            taken.append((time.thread_time() - begin) * 1e3)

    plugin._on_graph = timed
    plugin.install(AmpConfig.from_env())
    return taken


def work(options: dict[str, Any]) -> None:
    """Makes the first step in this process and prints what it took, as the last line, in JSON."""
    from benchmarks.step_time import worker

    mode = modes(options["precision"])[options["mode"]]
    worker.set_up(mode)
    rewrites = watch_rewrites() if mode.variables else []
    runner = worker.new_runner(options, WAYS[options["way"]])
    rewrites.clear()
    begin = time.perf_counter()
    total = runner.steps(1).ends[0] - begin
    print("\n" + json.dumps({"total_ms": total * 1e3, "rewrite_ms": sum(rewrites)}), flush=True)


def measure(options: dict[str, Any], mode: Mode) -> FirstStep:
    """The first step of one new process.

    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote to stderr.
    """
    command = [sys.executable, "-m", "benchmarks.step_time.first_step", "--work", json.dumps(options)]
    environ = {**environment(mode), "ONEDNN_VERBOSE": "profile_create"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    lines = done.stdout.strip().splitlines()
    return FirstStep(**json.loads(lines[-1]), kernels_ms=kernel_ms(lines))


def table(found: dict[tuple[str, str], dict[str, list[FirstStep]]], others: Sequence[Mode]) -> str:
    """One line for each model and way, medians over the rounds, as Markdown."""
    titles = [f"{mode.title} ×" for mode in others]
    kernels = ["kernels made, ms: float32", *(mode.title for mode in others)]
    head = ["model", "way", "float32 ms", *titles, "amp_tf rewrites, ms of CPU", *kernels]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    for (model, way), by_mode in found.items():
        reference = by_mode[REFERENCE]
        cells = [BENCHMARKS[model].title, way, f"{_median(step.total_ms for step in reference):.0f}"]
        for mode in others:
            pairs = zip(by_mode[mode.name], reference, strict=True)
            cells.append(f"{_median(step.total_ms / base.total_ms for step, base in pairs):.2f}")
        cells.append(f"{_median(step.rewrite_ms for step in by_mode.get('amp_tf', reference)):.0f}")
        cells += [f"{_median(step.kernels_ms for step in steps):.0f}" for steps in by_mode.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="?", default="all", help="names, comma-separated, or all")
    parser.add_argument("--ways", default="fit,predict")
    parser.add_argument("--modes", default="policy,amp_tf", help="beside float32")
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--precision", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(json.loads(options.work))
        return 0
    available = modes(options.precision)
    others = [available[name] for name in options.modes.split(",")]
    found: dict[tuple[str, str], dict[str, list[FirstStep]]] = {}
    for model in names(options.models):
        for way in options.ways.split(","):
            by_mode: dict[str, list[FirstStep]] = {mode.name: [] for mode in (available[REFERENCE], *others)}
            asked = {"model": model, "way": way, "size": options.size, "batch": None, "precision": options.precision}
            for _ in range(options.rounds):
                for name, steps in by_mode.items():
                    steps.append(measure({**asked, "mode": name}, available[name]))
            found[model, way] = by_mode
            print(f"{model}, {way}: done", file=sys.stderr)
    print(table(found, others))
    return 0


if __name__ == "__main__":
    sys.exit(main())
