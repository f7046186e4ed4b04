"""Measures the benchmark models in every mode and prints the table.

    python -m benchmarks.step_time --models convnet,bert --ways fit,predict --json result.json

One process for each model and mode; the modes take turns over the rounds, so that what slows the machine down slows all
of them. Medians, ratios with their spread, peak resident memory, time of the first step, and how far the losses of the
first steps are from float32's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.models import BENCHMARKS, SIZES, names
from benchmarks.step_time import suite, tables
from benchmarks.step_time.ablation import PARTS
from benchmarks.step_time.modes import COMPARED, WAYS, modes


def machine() -> dict[str, Any]:
    """Date, CPU and versions."""
    info = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    versions = {}
    for package in ("tensorflow", "tensorflow-cpu", "keras"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **versions,
        "command": " ".join(["python -m benchmarks.step_time", *sys.argv[1:]]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="all", help="names, comma-separated, or all")
    parser.add_argument("--ways", default="fit,predict", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--modes", default=",".join(COMPARED), help=f"of {', '.join(COMPARED)}; all by default")
    parser.add_argument("--without", default="", help=f"also amp_tf without each of: {', '.join(PARTS)}")
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--precision", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--all-batches", action="store_true", help="every batch size of each model's sweep")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, help="write a bar chart here (needs matplotlib)")
    options = parser.parse_args()
    available = modes(options.precision)
    chosen = [available[name] for name in options.modes.split(",")]
    chosen += [available[f"without {part.strip()}"] for part in options.without.split(",") if part]
    ways = [WAYS[name] for name in options.ways.split(",")]
    settings = suite.Settings(options.size, options.precision, options.rounds, options.seconds)
    facts = machine()
    rows: list[suite.Row] = []
    for model in names(options.models):
        figures = BENCHMARKS[model].sizes[options.size]
        for batch in figures.batches if options.all_batches else (None,):
            rows += suite.measure(model, batch, chosen, ways, settings)
            print(f"{model}: done", file=sys.stderr)
            if options.json:
                plain = [dataclasses.asdict(row) for row in rows]
                options.json.write_text(json.dumps({"machine": facts, "rows": plain}, indent=1))
    print(*(f"{key}: {value}" for key, value in facts.items()), "", tables.table(rows, chosen), sep="\n")
    if options.plot:
        from benchmarks.step_time.plots import plot

        plot(rows, chosen, options.plot)
    return 1 if any(row.error for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
