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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu import environment, export
from benchmarks.gpu.targets import TARGETS
from benchmarks.models.cases import CASES, names

Row = Mapping[str, Any]
Key = tuple[int, int, int, int]

_OF_STEP = ("model", "size", "way", "batch", "variant")


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
    """Compiles the steps and prints the table; 1 if one of them failed."""
    environment.prepare()
    failed = 0
    found: dict[Key, Row] = {}
    if options.json and options.json.exists():
        found = by_key(read(options.json))
    if not options.exported:
        failed += export.main(options)
    for model in names(options.models):
        for target in options.targets.split(","):
            rows, status = compile_model(model, target, options)
            failed += status
            found |= by_key(rows)
            if options.json:
                write(options.json, found.values())
    print(table(found.values()))
    return int(failed > 0)


def compile_model(
    model: str, target: str, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], int]:
    """Compiles the steps of one model for one target.

    Returns:
        The rows, and 0 if each step has one, else 1.
    """
    stems = _stems(model, target, options)
    paths = [options.out / f"{stem}.mlir.gz" for stem in stems]
    files = [path.absolute() for path in paths if path.exists()]
    if not files:
        return [], 1
    command = [environment.PYTHON, "-m", "benchmarks.gpu.compiler", "--targets", target]
    if options.hlo:
        command.append("--hlo")
    ended = subprocess.run(
        [*command, *files],
        env=environment.variables(),
        cwd=environment.ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    rows = []
    for line in ended.stdout.splitlines():
        figures = json.loads(line)
        stem = figures.pop("file")
        manifest = json.loads((options.out / f"{stem}.json").read_text())
        row = {name: manifest[name] for name in _OF_STEP}
        rows.append(row | figures)
    return rows, int(ended.returncode != 0 or len(files) < len(stems))


def _stems(model: str, target: str, options: argparse.Namespace) -> list[str]:
    """Returns the names of a model's files, without those that the target has no type for."""
    stems = []
    for way in options.ways.split(","):
        for variant in options.variants.split(","):
            if TARGETS[target].has_bfloat16 or not variant.endswith("bfloat16"):
                stems.append(f"{model}-{way}-{variant}")
    return stems


def read(path: Path) -> list[dict[str, Any]]:
    """Reads the rows of a JSON file that this command wrote."""
    return list(json.loads(path.read_text()))


def write(path: Path, rows: Iterable[Row]) -> None:
    """Writes rows, one a line, in the order of the tables."""
    lines = ",\n".join(map(json.dumps, sorted(rows, key=_key)))
    path.write_text(f"[\n{lines}\n]\n")


def by_key(rows: Iterable[Row]) -> dict[Key, Row]:
    """Returns the rows by their places in the tables."""
    return {_key(row): row for row in rows}


def _key(row: Row, variant: str = "") -> Key:
    """Returns the place of a row in the tables, or that of another variant of the same step."""
    return (
        [*TARGETS].index(row["target"]),
        [*CASES].index(row["model"]),
        export.WAYS.index(row["way"]),
        [*export.VARIANTS].index(variant or row["variant"]),
    )


def table(rows: Iterable[Row]) -> str:
    """Renders the rows as Markdown, a table for each target."""
    found = by_key(rows)
    sections = []
    for name, target in TARGETS.items():
        lines = []
        for _, row in sorted(found.items()):
            if row["target"] == name:
                lines.append(_line(row, found))
        if lines:
            sections += [f"### {target.title}", "", *_HEAD, *lines, ""]
    return "\n".join(sections).rstrip()


_HEAD = (
    "| model, batch | | | products | cast kernels (runs) | MiB moved | × float32 | × policy "
    "| roofline ms | speed-up | temporary MiB | × float32 | × policy | peak MiB | × float32 |",
    "|---|---|---|---|" + "---:|" * 11,
)
TITLES = {
    "float32": "float32",
    "policy_float16": "policy f16",
    "amp_float16": "amp_tf f16",
    "policy_bfloat16": "policy bf16",
    "amp_bfloat16": "amp_tf bf16",
}


def _line(row: Row, found: Mapping[Key, Row]) -> str:
    """Returns a row's line, with its ratios to float32's and, for amp_tf, to the policy's."""
    float32 = found.get(_key(row, "float32"))
    policy = None
    if row["variant"].startswith("amp"):
        policy = found.get(_key(row, row["variant"].replace("amp", "policy")))
    cells = [f"{CASES[row['model']].title}, {row['batch']}", row["way"], TITLES[row["variant"]]]
    cells.append(", ".join(f"{count} {kinds}" for kinds, count in row["products"].items()))
    cells.append(f"{row['casts']} ({row['cast_runs']})")
    cells.append(f"{row['mib']:,.0f}")
    cells += [_ratio(row, float32, "mib"), _ratio(row, policy, "mib")]
    cells.append(f"{row['roofline_us'] / 1e3:.2f}")
    cells.append(_ratio(float32, row, "roofline_us"))
    cells.append(f"{row['temp_mib']:,.1f}")
    cells += [_ratio(row, float32, "temp_mib"), _ratio(row, policy, "temp_mib")]
    cells.append(f"{row['peak_mib']:,.1f}")
    cells.append(_ratio(row, float32, "peak_mib"))
    return f"| {' | '.join(cells)} |"


def _ratio(row: Row | None, other: Row | None, name: str) -> str:
    """Returns one figure over another, as text; nothing where one is missing."""
    if not (row and other and other[name]):
        return ""
    return f"{row[name] / other[name]:.2f}"
