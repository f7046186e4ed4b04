"""Steps compiled by XLA for GPUs that are not there: products by type, casts, bytes, a roofline,
memory.

    python -m benchmarks.gpu compile --targets h100,a100,v100 --models all --json gpu.json > gpu.md

Exports the steps, makes the environment of the compiler where it is missing
(:mod:`benchmarks.gpu.environment`), and compiles each step for each target. The table has Keras'
policy and amp_tf beside float32, and amp_tf beside the policy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import environment, export
from benchmarks.gpu.targets import TARGETS
from benchmarks.models.cases import CASES, names

Row = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    export.add_arguments(parser)
    parser.add_argument("--targets", default=",".join(TARGETS), help="names, comma-separated")
    parser.add_argument(
        "--exported", action="store_true", help="the steps are in the folder already"
    )
    parser.add_argument(
        "--json", type=Path, help="write all rows here; rows of other steps in it are kept"
    )
    parser.add_argument(
        "--hlo", action="store_true", help="keep the optimized HLO beside the steps"
    )


def main(options: argparse.Namespace) -> int:
    environment.prepare()
    failed = 0
    found = read(options.json) if options.json and options.json.exists() else []
    if not options.exported:
        failed += export.main(options)
    for model in names(options.models):
        for target in options.targets.split(","):
            rows, status = compile_model(model, target, options)
            failed += status
            done = {_key(row) for row in rows}
            found = [row for row in found if _key(row) not in done] + rows
            if options.json:
                write(options.json, found)
    print(table(found))
    return 1 if failed else 0


def compile_model(
    model: str, target: str, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], int]:
    """The rows of one model for one target, and 0 where all of its steps could be compiled."""
    stems = [
        f"{model}-{way}-{variant}"
        for way in options.ways.split(",")
        for variant in options.variants.split(",")
        if TARGETS[target].has_bfloat16 or not variant.endswith("bfloat16")
    ]
    files = [path for stem in stems if (path := options.out / f"{stem}.mlir.gz").exists()]
    if not files:
        return [], 1
    command = [environment.PYTHON, "-m", "benchmarks.gpu.compiler", "--targets", target]
    command += ["--hlo"] if options.hlo else []
    ended = subprocess.run(
        [*command, *(path.absolute() for path in files)],
        env=environment.variables(),
        cwd=environment.ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    rows = []
    for line in ended.stdout.splitlines():
        row = json.loads(line)
        manifest = json.loads((options.out / f"{row.pop('file')}.json").read_text())
        rows.append(
            {name: manifest[name] for name in ("model", "size", "way", "batch", "variant")} | row
        )
    return rows, int(ended.returncode != 0 or len(files) < len(stems))


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON file that this command wrote."""
    return list(json.loads(path.read_text()))


def write(path: Path, rows: Sequence[Row]) -> None:
    """Writes rows, one a line, in the order of the tables."""
    lines = ",\n".join(json.dumps(row) for row in sorted(rows, key=_key))
    path.write_text(f"[\n{lines}\n]\n")


def _key(row: Row) -> tuple[int, ...]:
    orders: tuple[tuple[Any, str], ...] = (
        (list(TARGETS), "target"),
        (list(CASES), "model"),
        (export.WAYS, "way"),
        (list(export.VARIANTS), "variant"),
    )
    return tuple(order.index(row[name]) for order, name in orders)


def peers(rows: Sequence[Row], row: Row) -> tuple[Row | None, Row | None]:
    """The rows of the same step and target in float32 and, for amp_tf, under Keras' policy."""
    beside = {other["variant"]: other for other in rows if _key(other)[:3] == _key(row)[:3]}
    kind, _, precision = row["variant"].partition("_")
    return beside.get("float32"), beside.get(f"policy_{precision}") if kind == "amp" else None


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, a table for each target."""
    sections = []
    for name, target in TARGETS.items():
        own = sorted((row for row in rows if row["target"] == name), key=_key)
        if own:
            sections += [f"### {target.title}", "", *_lines(own), ""]
    return "\n".join(sections).rstrip()


_HEADS = (
    "model, batch | | | products | cast kernels (runs) | MiB moved | × float32 | × policy | "
    "roofline ms | speed-up "
    "| temporary MiB | × float32 | × policy | peak MiB | × float32"
)
TITLES = {
    "float32": "float32",
    "policy_float16": "policy f16",
    "amp_float16": "amp_tf f16",
    "policy_bfloat16": "policy bf16",
    "amp_bfloat16": "amp_tf bf16",
}


def _lines(rows: Sequence[Row]) -> list[str]:
    heads = _HEADS.split(" | ")
    numeric = len(heads) - 4
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---|" + "---:|" * numeric]
    for row in rows:
        float32, policy = peers(rows, row)
        cells = [f"{CASES[row['model']].title}, {row['batch']}", row["way"], TITLES[row["variant"]]]
        cells += [", ".join(f"{count} {kinds}" for kinds, count in row["products"].items())]
        cells += [f"{row['casts']} ({row['cast_runs']})"]
        cells += [f"{row['mib']:,.0f}", _ratio(row, float32, "mib"), _ratio(row, policy, "mib")]
        cells += [f"{row['roofline_us'] / 1e3:.2f}", _ratio(float32, row, "roofline_us")]
        cells += [
            f"{row['temp_mib']:,.1f}",
            _ratio(row, float32, "temp_mib"),
            _ratio(row, policy, "temp_mib"),
        ]
        cells += [f"{row['peak_mib']:,.1f}", _ratio(row, float32, "peak_mib")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _ratio(row: Row | None, other: Row | None, name: str) -> str:
    return f"{row[name] / other[name]:.2f}" if row and other and other[name] else ""
