"""What each part of the rewrite is worth: every part left out, one at a time, on the models that
show it.

    python -m benchmarks.step_time.ablation [PARTS] [--rounds 6] [--seconds 0.4]
    python -m benchmarks.step_time.ablation --rounds 0             counts alone, which do not depend on the load

For each model, float32, amp_tf and amp_tf without each of the parts take turns, a process each.
Nodes and casts are counted over all graphs of the first steps, exactly; times vary with the
machine, so that few parts show in both.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.models import BENCHMARKS, SIZES
from benchmarks.results import machine
from benchmarks.step_time import options, results, suite
from benchmarks.step_time.modes import WAYS, modes
from benchmarks.step_time.parts import PARTS, Part
from benchmarks.step_time.suite import Row
from benchmarks.step_time.tables import REFERENCE, SUBJECT, median_ratio, ratio_cell

PRECISION = "bfloat16"


@dataclasses.dataclass(frozen=True)
class Job:
    """One model in one way, and the parts that are left out of it."""

    model: str
    way: str
    parts: tuple[Part, ...]

    @property
    def modes(self) -> list[str]:
        """What takes turns: float32, what the parts are compared with, and each part left out."""
        return [REFERENCE, SUBJECT, *(f"without {part.name}" for part in self.parts)]


def jobs(parts: Iterable[Part], models: Sequence[str] = ()) -> list[Job]:
    """What has to run to show some parts, each model and way once; all models that show them, or
    only some.
    """
    found: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        for model, way in part.shown_by:
            if not models or model in models:
                found.setdefault((model, way), []).append(part)
    return [Job(model, way, tuple(rows)) for (model, way), rows in found.items()]


def table(parts: Iterable[Part], rows: Sequence[Row]) -> str:
    """One line for each part, model and way, as Markdown, and then one for each part."""
    head = ["left out", "model", "way", "amp_tf over float32", "without it", "worth"]
    head += ["nodes converted", "without it", "casts", "without it"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|---|" + "---:|" * (len(head) - 3)]
    by_key = {(row.model, row.way, row.mode): row for row in rows if not row.error}
    speedups: dict[str, list[float]] = {}
    for part in parts:
        for model, way in part.shown_by:
            names = (REFERENCE, SUBJECT, f"without {part.name}")
            if any((model, way, name) not in by_key for name in names):
                continue
            reference, base, without = (by_key[model, way, name] for name in names)
            cells = [part.name, BENCHMARKS[model].title, way]
            cells += [
                ratio_cell(base, reference),
                ratio_cell(without, reference),
                ratio_cell(base, without),
            ]
            cells += [
                f"{base.converted:,}",
                f"{without.converted:,}",
                f"{base.casts:,}",
                f"{without.casts:,}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
            if base.ms:
                speedups.setdefault(part.name, []).append(median_ratio(base, without))
    lines += ["", "| part | speedup |", "|---|---:|"]
    for name, ratios in speedups.items():
        lines.append(f"| {name} | {min(ratios):.2f} – {max(ratios):.2f} |")
    lines += [
        "",
        *(
            f"{row.model} {row.way} {row.mode}: {row.error.splitlines()[-1]}"
            for row in rows
            if row.error
        ),
    ]
    return "\n".join(lines).strip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="?", default=",".join(PARTS), help=f"of {', '.join(PARTS)}; all by default"
    )
    parser.add_argument("--models", default="", help="only these of the models that show the parts")
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.4, help="length of a round")
    parser.add_argument("--json", type=Path, help="write all figures here")
    asked = parser.parse_args(arguments)
    parts = [PARTS[name] for name in options.names_in(asked.parts)]
    settings = suite.Settings(asked.size, PRECISION, asked.rounds, asked.seconds)
    available = modes(PRECISION)
    found = results.Results(machine("python -m benchmarks.step_time.ablation"), PRECISION, ())
    begin = time.monotonic()
    for job in jobs(parts, options.names_in(asked.models)):
        rows = suite.measure(
            job.model, None, [available[name] for name in job.modes], [WAYS[job.way]], settings
        )
        found = results.Results(found.facts, PRECISION, (*found.rows, *rows))
        print(f"{job.model}, {job.way}: done, {time.monotonic() - begin:.0f} s", file=sys.stderr)
        if asked.json:
            found.write(asked.json)
    print(
        *(f"{key}: {value}" for key, value in found.facts.items()),
        "",
        table(parts, found.rows),
        sep="\n",
    )
    return 1 if any(row.error for row in found.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
