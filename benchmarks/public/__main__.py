"""Runs ten programs after published papers, unchanged, in float32, under Keras' policy and under
amp_tf's variable.

    python -m benchmarks.public [--only REGEX] [--modes float32,policy,amp_tf] [--seeds 3] [--rows
    FILE] [--table FILE]

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
import math
import re
import statistics
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks.public.worker import PROGRAMS
from benchmarks.results import machine
from benchmarks.step_time import suite, tables
from benchmarks.step_time.modes import Mode, modes
from benchmarks.step_time.options import names_in

COMPARED = ("float32", "policy", "amp_tf", "all listed")
SECONDS = 3.0  #: of a turn
ENOUGH = 3  #: seeds of float32 that say how far the metric varies by itself


@dataclasses.dataclass(frozen=True)
class Run:
    """One program in one mode from one seed.

    Attributes:
        program, precision, mode, seed, batch: what ran.
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
    batch: int
    metric: str = ""
    value: float | None = None
    chance: float = 0.0
    ms: dict[str, float] = dataclasses.field(default_factory=dict)
    mib: float = 0.0
    converted: int = 0
    casts: int = 0
    error: str = ""

    def is_for(self, precision: str) -> bool:
        """Whether it stands in the table of a 16-bit type; float32 does in both."""
        return self.mode == "float32" or self.precision == precision


def names() -> list[str]:
    """The programs."""
    return sorted(path.stem for path in PROGRAMS.glob("*.py"))


def batch_of(program: str, arguments: Sequence[str]) -> int:
    """The batch size that a program is asked for, or has by itself."""
    if "--batch" in arguments:
        return int(arguments[arguments.index("--batch") + 1])
    found = re.search(
        r'"--batch", type=int, default=(\d+)', (PROGRAMS / f"{program}.py").read_text()
    )
    assert found, program
    return int(found[1])


def measure(
    program: str, precision: str, chosen: Sequence[Mode], seed: int, arguments: Sequence[str]
) -> list[Run]:
    """Runs a program in some modes, which take turns."""
    batch = batch_of(program, arguments)
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
                    rows.append(Run(program, precision, name, seed, batch, **ended))
                    processes.pop(name).close()
    finally:
        for process in processes.values():
            process.close()
    return rows


def table(rows: Sequence[Run], precision: str) -> str:
    """Markdown: a row for each program and mode."""
    lines = [
        "| program | batch | mode | held-out metric | seeds | of what float32 learned | differs | "
        "ms a step "
        "| speed × float32 | memory, MiB | × float32 | nodes / casts |",
        "|---|---:|---|---|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for program in dict.fromkeys(row.program for row in rows):
        own = [row for row in rows if row.program == program and row.is_for(precision)]
        by_mode = {name: [row for row in own if row.mode == name] for name in modes(precision)}
        reference = [row for row in by_mode["float32"] if row.value is not None]
        beside = {
            row.seed for row in own if row.mode != "float32"
        }  # from other seeds float32 ran alone, at other times
        lines += [
            _line(modes(precision)[name], runs, reference, beside)
            for name, runs in by_mode.items()
            if runs and reference
        ]
    return "\n".join(lines)


def _line(
    mode: Mode, runs: Sequence[Run], reference: Sequence[Run], beside: Collection[int]
) -> str:
    first = runs[0]
    cells = [first.program, str(first.batch), mode.title]
    values = {run.seed: run.value for run in runs if run.value is not None}
    if not values:
        return (
            "| "
            + " | ".join([*cells, f"**fails**: {first.error.replace('|', '/')[:160]}", *[""] * 8])
            + " |"
        )
    theirs: dict[int, Any] = {run.seed: run.value for run in reference}
    mean, base = (
        statistics.fmean(values.values()),
        statistics.fmean(theirs.get(seed, math.nan) for seed in values),
    )
    spread = f" ± {statistics.stdev(values.values()):.2g}" if len(values) > 1 else ""
    cells += [f"{first.metric} {mean:.4g}{spread}", str(len(values))]
    is_reference = mode.name == "float32"
    cells.append("" if is_reference else f"{(mean - first.chance) / (base - first.chance):.1%}")
    if is_reference:
        cells.append("")
    elif len(theirs) < ENOUGH:
        cells.append("?")
    else:
        cells.append(
            f"{mean - base:+.2g}"
            if abs(mean - base) > 2 * statistics.stdev(theirs.values())
            else "no"
        )
    timed = [run for run in runs if not is_reference or run.seed in beside] or runs
    pairs = [
        pair
        for run in timed
        for other in reference
        if run.seed == other.seed
        for pair in _turns(run, other)
    ]
    ours, others = (suite.Row("", "", "", ms=times) for times in zip(*pairs, strict=True))
    cells.append(f"{statistics.median(ours.ms):.1f}")
    speed = f"{tables.median_ratio(ours, others):.2f} ± {tables.spread(ours, others):.2f}"
    mib, base_mib = (statistics.median(run.mib for run in some) for some in (runs, reference))
    cells += [
        "" if is_reference else speed,
        f"{mib:.0f}",
        "" if is_reference else f"{mib / base_mib:.2f}",
    ]
    return (
        "| "
        + " | ".join([*cells, f"{first.converted} / {first.casts}" if mode.is_ours else ""])
        + " |"
    )


def _turns(run: Run, other: Run) -> list[tuple[float, float]]:
    """The times of both in the turns that both had; where there are none, those that come after one
    another.
    """
    shared = [(run.ms[turn], other.ms[turn]) for turn in run.ms if turn in other.ms]
    return shared or list(zip(run.ms.values(), other.ms.values(), strict=False))


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="the programs whose names match"
    )
    parser.add_argument(
        "--list", action="store_true", help="say what the programs are, and run none"
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
    parser.add_argument("--table", type=Path, metavar="FILE", help="writes the table")
    parser.add_argument(
        "arguments", nargs="*", help="for the programs, after --: --steps 100, --batch 8"
    )
    asked = parser.parse_args(given)
    chosen = [name for name in names() if re.search(asked.only, name)]
    if asked.list:
        for name in chosen:
            print(f"{name}: {(PROGRAMS / f'{name}.py').read_text().splitlines()[0].strip(chr(34))}")
        return 0
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
    facts = "\n".join(
        f"{key}: {value}  " for key, value in machine("python -m benchmarks.public").items()
    )
    text = f"{facts}\n\n{table(rows, asked.precision)}\n"
    print(text)
    if asked.table:
        asked.table.write_text(f"# Ten programs\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
