"""Measures the benchmark models in every mode and prints the table.

    python -m benchmarks.step_time                                          the table of a CPU
    python -m benchmarks.step_time --models convnet --batches 8 16 32       one model by batch size
    python -m benchmarks.step_time --ways fit_jit --modes float32,amp_tf    under XLA
    python -m benchmarks.step_time --modes float32,amp_tf,amp_tf@../before  with another checkout

One process for each model and mode; the modes take turns over the rounds, so that what slows the
machine down slows all of them. Medians, ratios with their spread, peak resident memory, time of the
first step, and how far the losses of the first steps are from float32's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.models import benchmark, names
from benchmarks.results import machine, print_facts
from benchmarks.step_time import options, results, suite, tables
from benchmarks.step_time.modes import COMPARED, WAYS, modes


def new_parser() -> argparse.ArgumentParser:
    """The command line; without arguments it is the whole table of a CPU, in less than 40 minutes
    on 2 cores.
    """
    parser = options.new_parser(__doc__, models="--models", modes=COMPARED)
    options.add_ways(parser, "fit,predict,loop")
    parser.add_argument(
        "--batches",
        nargs="*",
        type=int,
        metavar="N",
        help="batch sizes; without a value, each model's own sweep",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="length of a round")
    parser.add_argument(
        "--prepare",
        type=int,
        default=1,
        metavar="N",
        help="modes that trace at once; with 2, no times of first steps",
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument(
        "--read", type=Path, metavar="JSON", help="show these figures, measure nothing"
    )
    return parser


def batches(model: str, asked: argparse.Namespace) -> Sequence[int | None]:
    """The batch sizes to run a model with; ``None`` is its own."""
    if asked.batches is None:
        return (None,)
    return asked.batches or benchmark(model).workload(asked.size).batches


def measure(asked: argparse.Namespace) -> results.Results:
    """Runs everything that was asked for; what is there is written to the file after each model."""
    available = modes(asked.precision)
    chosen = [available[name] for name in options.names_in(asked.modes)]
    ways = [WAYS[name] for name in options.names_in(asked.ways)]
    settings = suite.Settings(
        asked.size, asked.precision, asked.rounds, asked.seconds, asked.prepare
    )
    found = results.Results(machine("python -m benchmarks.step_time"), asked.precision, ())
    for model in names(asked.models):
        for batch in batches(model, asked):
            rows = (*found.rows, *suite.measure(model, batch, chosen, ways, settings))
            found = results.Results(found.facts, found.precision, rows)
            print(f"{model}: done", file=sys.stderr)
            if asked.json:
                found.write(asked.json)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    asked = new_parser().parse_args(arguments)
    found = results.read(asked.read) if asked.read else measure(asked)
    print_facts(found.facts)
    print(tables.table(found.rows, found.modes))
    return int(any(row.error for row in found.rows))


if __name__ == "__main__":
    sys.exit(main())
