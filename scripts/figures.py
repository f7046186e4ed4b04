"""The tables of figures in README.md and benchmarks/README.md, from the JSON files that benchmarks wrote."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

BENCHMARKS = pathlib.Path(__file__).resolve().parent.parent / "benchmarks"
#: Of each program of benchmarks.public: how readers know it, and how its metric is called.
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
    """Two programs a row: the metric in float32, under Keras' policy and under amp_tf in bfloat16, of one seed."""
    rows = json.loads((BENCHMARKS / "public/table.json").read_text(encoding="utf-8"))
    found = {(row["program"], row["mode"]): row for row in rows if row["seed"] == 0}
    modes = ("float32", "policy", "all listed")  # the last: amp_tf, and what AMP_TF_PRECISION=bfloat16 converts
    cells = [
        " | ".join([name, *(_metric(found[program, mode]) for mode in modes)]) for program, name in PROGRAMS.items()
    ]
    head = " | ".join(["program", "float32", "policy", "amp_tf"])
    lines = [f"| {head} | {head} |", "|---" * 8 + "|"]
    return "\n".join([*lines, *(f"| {left} | {right} |" for left, right in zip(cells[::2], cells[1::2], strict=True))])


def _metric(row: dict[str, Any]) -> str:
    return row["error"].partition(":")[0] or f"{row['value']:.4g}"


def gpus() -> str:
    """What XLA made of steps for GPUs, over all models: ratios to float32 and to Keras' policy."""
    rows = json.loads((BENCHMARKS / "gpu/compiled.json").read_text(encoding="utf-8"))
    found = {(row["target"], row["way"], row["variant"], row["model"]): row for row in rows if row["size"] == "wide"}
    lines = [
        "| compiled for | models | temporary memory × float32 | × the policy's | bytes moved × the policy's |",
        "|---|---:|---:|---:|---:|",
    ]
    for target, way, precision in GPU_KINDS:
        variants = ("float32", f"policy_{precision}", f"amp_{precision}")
        models = [model for *kind, model in found if tuple(kind) == (target, way, variants[2])]
        triples = [[found[target, way, variant, model] for variant in variants] for model in models]
        memory = [ours["temp_mib"] / plain["temp_mib"] for plain, _, ours in triples]
        beside = [ours["temp_mib"] / policy["temp_mib"] for _, policy, ours in triples]
        moved = [ours["mib"] / policy["mib"] for _, policy, ours in triples]
        ratios = " | ".join(f"{min(one):.2f} – {max(one):.2f}" for one in (memory, beside, moved))
        lines.append(f"| {target.upper()}, {way}, {precision} | {len(models)} | {ratios} |")
    return "\n".join(lines)


def results(name: str) -> str:
    """The tables of a file of ``benchmarks/results``, under the command that made them, and when and where it ran."""
    found = json.loads((BENCHMARKS / f"results/{name}.json").read_text(encoding="utf-8"))
    facts = found["machine"]
    tensorflow = facts.get("tensorflow-cpu") or facts["tensorflow"]
    versions = f"TensorFlow {tensorflow}, Keras {facts['keras']}, Python {facts['python']}"
    head = f"`{facts['command']}`  \n{facts['date']}, {facts['cores']} cores of {facts['cpu']}, {versions}"
    return "\n\n".join([head, *(_table(table["columns"], table["rows"]) for table in found["tables"])])


def _table(columns: list[str], rows: list[list[str]]) -> str:
    """In Markdown; columns of numbers are aligned to the right."""
    is_number = [all(re.match(r"[-+−]?\.?\d|$", row[place]) for row in rows) for place in range(len(columns))]
    lines = [" | ".join(row) for row in (columns, *rows)]
    marks = "|".join("---:" if right else "---" for right in is_number)
    return "\n".join([f"| {lines[0]} |", f"|{marks}|", *(f"| {line} |" for line in lines[1:])])
