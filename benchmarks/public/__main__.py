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
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.public.worker import PROGRAMS
from benchmarks.results import machine
from benchmarks.step_time import suite
from benchmarks.step_time.modes import Mode, modes
from benchmarks.step_time.options import names_in

COMPARED = ("float32", "policy", "amp_tf", "all listed")
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
            options = {"program": program, "mode": mode.name, "precision": precision}
            options["arguments"] = [*arguments, "--seed", str(seed)]
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
    heads = ["program", "mode", "held-out metric", "seeds", "differs", "ms a step"]
    heads += ["speed × float32", "memory × float32", "nodes / casts"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---:|---|---:|---:|---:|---:|"]
    for program in dict.fromkeys(row.program for row in rows):
        own = [row for row in rows if row.program == program and row.is_for(precision)]
        reference = {run.seed: run for run in own if run.mode == "float32" and not run.error}
        for name, mode in modes(precision).items():
            runs = [run for run in own if run.mode == name]
            if runs and reference:
                cells = [program, mode.title, *_cells(runs, reference)]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(runs: Sequence[Run], reference: Mapping[int, Run]) -> list[str]:
    """The figures of one mode beside float32's runs, by seed."""
    done = [run for run in runs if run.value is not None and run.seed in reference]
    if not done:
        return [f"**fails**: {runs[0].error.replace('|', '/')[:160]}", *[""] * 6]
    values = [run.value for run in done if run.value is not None]
    mean = statistics.fmean(values)
    spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    cells = [f"{done[0].metric} {mean:.4g}{spread}", str(len(done))]
    theirs = [run.value for run in reference.values() if run.value is not None]
    if len(theirs) < ENOUGH:
        cells.append("?")
    else:
        base = statistics.fmean(reference[run.seed].value or 0.0 for run in done)
        off = mean - base
        cells.append(f"{off:+.2g}" if abs(off) > 2 * statistics.stdev(theirs) else "no")
    ours = []
    others = []
    for run in done:
        other = reference[run.seed]
        for turn in run.ms.keys() & other.ms.keys():
            ours.append(run.ms[turn])
            others.append(other.ms[turn])
    if ours:
        ratios = [theirs / mine for mine, theirs in zip(ours, others, strict=True)]
        cells += [f"{statistics.median(ours):.1f}", f"{statistics.median(ratios):.2f}"]
    else:  # a program so short that its modes ran in different turns
        cells += ["–", "–"]
    memory = [run.mib / reference[run.seed].mib for run in done]
    cells += [f"{statistics.median(memory):.2f}", f"{done[0].converted} / {done[0].casts}"]
    return cells


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
    rows = (
        [Run(**row) for row in json.loads(asked.rows.read_text())]
        if asked.rows and asked.rows.exists()
        else []
    )
    for seed in range(asked.seeds):
        for name in chosen:
            own = (row for row in rows if row.program == name and row.seed == seed)
            known = {row.mode for row in own if row.is_for(asked.precision)}
            missing = [
                modes(asked.precision)[mode] for mode in names_in(asked.modes) if mode not in known
            ]
            found = measure(name, asked.precision, missing, seed, asked.arguments)
            for row in found:
                print(
                    f"{name}, {row.mode}, seed {seed}: {row.error or row.value}",
                    file=sys.stderr,
                    flush=True,
                )
            rows += found
            if asked.rows:
                asked.rows.write_text(
                    "[\n"
                    + ",\n".join(json.dumps(dataclasses.asdict(row)) for row in rows)
                    + "\n]\n"
                )
    facts = machine("python -m benchmarks.public")
    print("# Ten programs", "", *(f"{key}: {value}  " for key, value in facts.items()), sep="\n")
    print("", table(rows, asked.precision), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
