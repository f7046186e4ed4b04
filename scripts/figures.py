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
    rows = json.loads((BENCHMARKS / "public/table.json").read_text(encoding="utf-8"))
    found = {(row["program"], row["mode"]): row for row in rows if row["seed"] == 0}
    modes = (
        "float32",
        "policy",
        "all listed",
    )  # the last: amp_tf, and what AMP_TF_PRECISION=bfloat16 converts
    cells = [
        " | ".join([name, *(_metric(found[program, mode]) for mode in modes)])
        for program, name in PROGRAMS.items()
    ]
    head = " | ".join(["program", "float32", "policy", "amp_tf"])
    lines = [f"| {head} | {head} |", "|---" * 8 + "|"]
    return "\n".join(
        [
            *lines,
            *(f"| {left} | {right} |" for left, right in zip(cells[::2], cells[1::2], strict=True)),
        ]
    )


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
        ]
        cells += [_span(beside), _near(beside), _span(moved), _near(moved)]
        cells += [_span(_ratios(rows, "roofline_us", 0, which)) for which in (2, 1)]
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
    rows = json.loads((BENCHMARKS / "gpu/compiled.json").read_text(encoding="utf-8"))
    chosen = [
        row for row in rows if (row["size"], row["target"], row["way"]) == ("wide", target, way)
    ]
    found = {(row["variant"], row["model"]): row for row in chosen}
    variants = ("float32", f"policy_{precision}", f"amp_{precision}")
    models = [model for variant, model in found if variant == variants[2]]
    return [[found[variant, model] for variant in variants] for model in models]


def _ratios(rows: list[list[dict[str, Any]]], figure: str, over: int, under: int) -> list[float]:
    return [row[over][figure] / row[under][figure] for row in rows]


def _span(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} – {max(ratios):.2f}"


def _near(ratios: list[float]) -> str:
    return str(sum(ratio <= 1.03 for ratio in ratios))


def compare() -> str:
    """docs/compare.md's sentence on what a comparison takes."""
    (table,) = _tables("compare_cost")
    places = [table["columns"].index(name) for name in ("all", "with nodes")]
    steps, memory = ([float(row[place]) for row in table["rows"]] for place in places)
    return _wrapped(
        f"It takes as long as {min(steps):.0f} to {max(steps):.0f} training steps, and up to "
        f"{max(memory):.2f} times "
        "the memory of training ([benchmarks](../benchmarks/README.md#comparing))."
    )


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _tables(name: str) -> list[dict[str, Any]]:
    return list(
        json.loads((BENCHMARKS / f"results/{name}.json").read_text(encoding="utf-8"))["tables"]
    )


def results(name: str) -> str:
    """The tables of a file of ``benchmarks/results``, under the command that made them, and when
    and where it ran.
    """
    found = json.loads((BENCHMARKS / f"results/{name}.json").read_text(encoding="utf-8"))
    facts = found["machine"]
    tensorflow = facts.get("tensorflow-cpu") or facts["tensorflow"]
    versions = f"TensorFlow {tensorflow}, Keras {facts['keras']}, Python {facts['python']}"
    head = (
        f"`{facts['command']}`  \n{facts['date']}, {facts['cores']} cores of {facts['cpu']}, "
        f"{versions}"
    )
    return "\n\n".join(
        [head, *(_table(table["columns"], table["rows"]) for table in found["tables"])]
    )


def _table(columns: list[str], rows: list[list[str]]) -> str:
    """In Markdown; columns of numbers are aligned to the right."""
    is_number = [
        all(re.match(r"[-+−]?\.?\d|$", row[place]) for row in rows) for place in range(len(columns))
    ]
    lines = [" | ".join(row) for row in (columns, *rows)]
    marks = "|".join("---:" if right else "---" for right in is_number)
    return "\n".join([f"| {lines[0]} |", f"|{marks}|", *(f"| {line} |" for line in lines[1:])])
