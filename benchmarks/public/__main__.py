"""Runs ten programs after published papers, unchanged, in float32, under Keras' policy and under
amp_tf's variable.

    python -m benchmarks.public [--only REGEX] [--modes float32,policy] [--rows FILE] > table.md

Each run is a process of its own. The modes of a program live side by side and take turns of a few
seconds, so that what slows the machine down slows all of them. A step is a call of the
``tf.function`` that takes most of a program's time; memory is the process' peak less what it had
when TensorFlow and Keras were imported. The programs know nothing of 16 bit: the policy is set
before they begin, and what does not run with it stands in the table with its error. Seeds differ in
initialization and order of the data. A mode is compared with float32 from the same seeds; its
metric counts as different where the means differ by more than twice the standard deviation of
float32's seeds, of which it takes three to say anything ("?" otherwise). With ``--rows``, runs that
the file has are not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.public.worker import PROGRAMS
from benchmarks.results import machine, table_row
from benchmarks.step_time import suite
from benchmarks.step_time.modes import Mode, modes
from benchmarks.step_time.options import names_in

COMPARED = ("float32", "policy", "amp_tf", "all listed")
COLUMNS = (
    "program",
    "mode",
    "held-out metric",
    "seeds",
    "differs",
    "ms a step",
    "speed × float32",
    "memory × float32",
    "nodes / casts",
)
SECONDS = 3.0  #: of a turn
ENOUGH = 3  #: seeds of float32 that say how far the metric varies by itself


@dataclasses.dataclass(frozen=True)
class Run:
    """One program in one mode from one seed.

    Attributes:
        program, precision, mode, seed: what ran.
        metric: its name.
        value: on held-out data; ``None`` where it failed.
        chance: what knows nothing would get.
        ms: the median milliseconds of a step in each turn.
        mib: what memory grew by.
        converted, casts: nodes that amp_tf converted and casts that it inserted, in all graphs.
        error: why there is no value.
    """

    program: str
    precision: str
    mode: str
    seed: int
    metric: str = ""
    value: float | None = None
    chance: float = 0.0
    ms: dict[str, float] = dataclasses.field(default_factory=dict)
    mib: float = 0.0
    converted: int = 0
    casts: int = 0
    error: str = ""

    def is_for(self, precision: str) -> bool:
        """Returns True if it stands in the table of a 16-bit type; float32 does in both."""
        return self.mode == "float32" or self.precision == precision


def names() -> list[str]:
    """The programs."""
    return sorted(path.stem for path in PROGRAMS.glob("*.py"))


def measure(
    program: str, precision: str, chosen: Sequence[Mode], seed: int, arguments: Sequence[str]
) -> list[Run]:
    """Runs a program in some modes, which take turns."""
    processes: dict[str, suite.Process] = {}
    rows = []
    try:
        for mode in chosen:
            options = {
                "program": program,
                "mode": mode.name,
                "precision": precision,
                "arguments": [*arguments, "--seed", str(seed)],
            }
            processes[mode.name] = suite.Process("benchmarks.public.worker", mode, options)
        while processes:
            for name in list(processes):
                try:
                    ended = processes[name].ask(do="go", seconds=SECONDS).get("ended")
                except RuntimeError as error:  # the process is gone
                    ended = {"error": str(error).splitlines()[-1]}
                if ended is not None:
                    rows.append(Run(program, precision, name, seed, **ended))
                    processes.pop(name).close()
    finally:
        for process in processes.values():
            process.close()
    return rows


def table(rows: Sequence[Run], precision: str) -> str:
    """Markdown: a row for each program and mode."""
    lines = [table_row(COLUMNS), "|---|---|---|---:|---|---:|---:|---:|---:|"]
    for program in dict.fromkeys(row.program for row in rows):
        own = [row for row in rows if row.program == program and row.is_for(precision)]
        reference = {run.seed: run for run in own if run.mode == "float32" and not run.error}
        for name, mode in modes(precision).items():
            runs = [run for run in own if run.mode == name]
            if runs and reference:
                lines.append(table_row([program, mode.title, *_cells(runs, reference)]))
    return "\n".join(lines)


def _cells(runs: Sequence[Run], reference: Mapping[int, Run]) -> list[str]:
    """The figures of one mode beside float32's runs, by seed."""
    done = []
    values = []
    memory = []
    steps_ms = []
    ratios = []
    for run in runs:
        if run.value is None or run.seed not in reference:
            continue
        done.append(run)
        values.append(run.value)
        other = reference[run.seed]
        memory.append(run.mib / other.mib)
        for turn in run.ms.keys() & other.ms.keys():
            steps_ms.append(run.ms[turn])
            ratios.append(other.ms[turn] / run.ms[turn])
    if not done:
        return [f"**fails**: {runs[0].error.replace('|', '/')[:160]}", *[""] * 6]
    mean = statistics.fmean(values)
    metric = f"{done[0].metric} {mean:.4g}"
    if len(values) > 1:
        metric += f" ± {statistics.stdev(values):.2g}"
    # A program may be so short that its modes ran in different turns.
    speed = ["–", "–"]
    if ratios:
        speed = [f"{statistics.median(steps_ms):.1f}", f"{statistics.median(ratios):.2f}"]
    return [
        metric,
        str(len(done)),
        _difference(mean, [run.seed for run in done], reference),
        *speed,
        f"{statistics.median(memory):.2f}",
        f"{done[0].converted} / {done[0].casts}",
    ]


def _difference(mean: float, seeds: Sequence[int], reference: Mapping[int, Run]) -> str:
    """The difference of a mean and float32's over the same seeds, where it is more than chance."""
    values = {seed: run.value for seed, run in reference.items() if run.value is not None}
    if len(values) < ENOUGH:
        return "?"
    off = mean - statistics.fmean(values[seed] for seed in seeds)
    if abs(off) <= 2 * statistics.stdev(values.values()):
        return "no"
    return f"{off:+.2g}"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="the programs whose names match"
    )
    parser.add_argument(
        "--modes", default=",".join(COMPARED), help="comma-separated; %(default)s by default"
    )
    parser.add_argument(
        "--precision", default="bfloat16", choices=("bfloat16", "float16"), help="of the policy"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="keeps the runs, and goes on with those that it has",
    )
    parser.add_argument(
        "arguments", nargs="*", help="for the programs, after --: --steps 100, --batch 8"
    )
    asked = parser.parse_args(given)
    chosen = [name for name in names() if re.search(asked.only, name)]
    rows = []
    if asked.rows and asked.rows.exists():
        rows = [Run(**row) for row in json.loads(asked.rows.read_text())]
    available = modes(asked.precision)
    for seed, name in itertools.product(range(asked.seeds), chosen):
        known = set()
        for row in rows:
            if row.program == name and row.seed == seed and row.is_for(asked.precision):
                known.add(row.mode)
        missing = [available[mode] for mode in names_in(asked.modes) if mode not in known]
        for row in measure(name, asked.precision, missing, seed, asked.arguments):
            text = f"{name}, {row.mode}, seed {seed}: {row.error or row.value}"
            print(text, file=sys.stderr, flush=True)
            rows.append(row)
        if asked.rows:
            written = ",\n".join(json.dumps(dataclasses.asdict(row)) for row in rows)
            asked.rows.write_text(f"[\n{written}\n]\n")
    print("# Ten programs\n")
    for key, value in machine("python -m benchmarks.public").items():
        print(f"{key}: {value}  ")
    print(f"\n{table(rows, asked.precision)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
