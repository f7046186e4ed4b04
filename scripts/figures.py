"""The tables of figures in README.md and benchmarks/README.md, from the JSON files that benchmarks
wrote.
"""

from __future__ import annotations

import json
import pathlib
import re
import textwrap
from typing import Any

BENCHMARKS = pathlib.Path(__file__).resolve().parent.parent / "benchmarks"
#: The programs of benchmarks.public: the name for readers, and the metric.
PROGRAMS = {
    "ranking": "DLRM, AUC",
    "language": "GPT, bits per character",
    "segmentation": "3-D U-Net, Dice",
    "detection": "CenterNet, AP50",
    "molecule": "SchNet, force MAE in meV/Å",
    "speech": "CTC, label error rate",
    "genomics": "Basenji, Pearson's r",
    "forecast": "N-BEATS, sMAPE in %",
    "diffusion": "DDPM, noise MSE",
    "retrieval": "two towers, recall at 100",
}
GPU_KINDS = (
    ("h100", "train", "float16"),
    ("h100", "train", "bfloat16"),
    ("a100", "train", "float16"),
    ("v100", "train", "float16"),
    ("h100", "predict", "float16"),
)


def programs() -> str:
    """Two programs a row: the metric in float32, under Keras' policy and under amp_tf in bfloat16,
    of one seed.
    """
    found = {}
    for row in _read("public/table.json"):
        if row["seed"] == 0:
            found[row["program"], row["mode"]] = row
    cells = ["program | float32 | policy | amp_tf"] * 2
    for program, name in PROGRAMS.items():
        parts = [name]
        # The last mode is amp_tf with AMP_TF_PRECISION=bfloat16.
        for mode in ("float32", "policy", "all listed"):
            parts.append(_metric(found[program, mode]))
        cells.append(" | ".join(parts))
    lines = []
    for left, right in zip(cells[::2], cells[1::2], strict=True):
        lines.append(f"| {left} | {right} |")
    lines.insert(1, "|---" * 8 + "|")
    return "\n".join(lines)


def _metric(row: dict[str, Any]) -> str:
    return row["error"].partition(":")[0] or f"{row['value']:.4g}"


def gpus() -> str:
    """The compiled steps for GPUs, beside float32 and beside Keras' policy, over all models."""
    lines = [
        "| compiled for | models | temporary memory × float32 | × the policy's | of them up to "
        "1.03 "
        "| bytes × the policy's | of them up to 1.03 | speed-up bound | the policy's |",
        "|---" + "|---:" * 8 + "|",
    ]
    for target, way, precision in GPU_KINDS:
        rows = _compiled(target, way, precision)
        beside = _ratios(rows, "temp_mib", 2, 1)
        moved = _ratios(rows, "mib", 2, 1)
        cells = [
            f"{target.upper()}, {way}, {precision}",
            str(len(rows)),
            _span(_ratios(rows, "temp_mib", 2, 0)),
            _span(beside),
            _near(beside),
            _span(moved),
            _near(moved),
            _span(_ratios(rows, "roofline_us", 0, 2)),
            _span(_ratios(rows, "roofline_us", 0, 1)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def gpu() -> str:
    """README.md's sentence on memory on GPUs."""
    beside = _ratios(_compiled("h100", "train", "float16"), "temp_mib", 2, 1)
    return _wrapped(
        f"- On an H100, {_near(beside)} of the {len(beside)} models need at most 3 % more "
        "temporary memory than under "
        f"Keras' policy, the others up to {max(beside):.2f} times as much "
        "([figures](benchmarks/gpu/README.md)).",
        "  ",
    )


def _compiled(target: str, way: str, precision: str) -> list[list[dict[str, Any]]]:
    """For each model three rows: in float32, under the policy and with amp_tf."""
    found: dict[str, dict[str, Any]] = {}
    for row in _read("gpu/compiled.json"):
        if (row["size"], row["target"], row["way"]) == ("wide", target, way):
            found.setdefault(row["model"], {})[row["variant"]] = row
    amp = f"amp_{precision}"
    policy = f"policy_{precision}"
    chosen = []
    for of_model in found.values():
        if amp in of_model:
            chosen.append([of_model["float32"], of_model[policy], of_model[amp]])
    return chosen


def _ratios(rows: list[list[dict[str, Any]]], figure: str, over: int, under: int) -> list[float]:
    return [row[over][figure] / row[under][figure] for row in rows]


def _span(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} – {max(ratios):.2f}"


def _near(ratios: list[float]) -> str:
    return str(sum(ratio <= 1.03 for ratio in ratios))


def compare() -> str:
    """docs/compare.md's sentence on what a comparison takes."""
    (table,) = _read("results/compare_cost.json")["tables"]
    steps = _column(table, "all")
    memory = _column(table, "with nodes")
    return _wrapped(
        f"It takes as long as {min(steps):.0f} to {max(steps):.0f} training steps, and up to "
        f"{max(memory):.2f} times "
        "the memory of training ([benchmarks](../benchmarks/README.md#comparing))."
    )


def _column(table: dict[str, Any], name: str) -> list[float]:
    place = table["columns"].index(name)
    return [float(row[place]) for row in table["rows"]]


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _read(path: str) -> Any:
    """A JSON file of the benchmarks."""
    return json.loads((BENCHMARKS / path).read_text(encoding="utf-8"))


def results(name: str) -> str:
    """The tables of a file of ``benchmarks/results``, under the command that made them, and when
    and where it ran.
    """
    found = _read(f"results/{name}.json")
    facts = found["machine"]
    tensorflow = facts.get("tensorflow-cpu") or facts["tensorflow"]
    versions = f"TensorFlow {tensorflow}, Keras {facts['keras']}, Python {facts['python']}"
    machine = f"{facts['date']}, {facts['cores']} cores of {facts['cpu']}, {versions}"
    parts = [f"`{facts['command']}`  \n{machine}"]
    for table in found["tables"]:
        parts.append(_table(table["columns"], table["rows"]))
    return "\n\n".join(parts)


def _table(columns: list[str], rows: list[list[str]]) -> str:
    """In Markdown; columns of numbers are aligned to the right."""
    marks = "|"
    for cells in zip(*rows, strict=True):
        is_number = all(re.match(r"[-+−]?\.?\d|$", cell) for cell in cells)
        marks += "---:|" if is_number else "---|"
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    lines.insert(1, marks)
    return "\n".join(lines)
