"""Accuracy in float32, bfloat16 and float16, by amp_tf and by Keras policies: a table with a gate.

    python -m benchmarks.accuracy [--seeds 5] [--tasks "digits MLP" …] [--modes …] [--results results.jsonl]

Every mode is a process of its own that runs the same script. Data and their order are the same for all; seeds differ
in the initialization. A mode passes where its mean differs from float32's by at most twice the pooled standard
deviation of the seeds. The exit status is 1 if one of amp_tf's does not, or if amp_tf converted nothing. With
``--results``, runs that the file has are not repeated.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SWITCH = "TF_ENABLE_AUTO_MIXED_PRECISION"
REFERENCE = "float32"
# mode -> policy, environment
MODES: dict[str, tuple[str, dict[str, str]]] = {
    REFERENCE: ("float32", {}),
    "bfloat16, amp_tf": ("float32", {SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}),
    "bfloat16, Keras policy": ("mixed_bfloat16", {}),
    "float16, amp_tf": ("float32", {SWITCH: "1", "AMP_TF_PRECISION": "float16"}),
    "float16, Keras policy": ("mixed_float16", {}),
}
Values = dict[tuple[str, str], dict[int, float]]


def run_mode(mode: str, tasks: list[str], seeds: int, results: Path | None) -> list[dict[str, object]]:
    """The rows of one mode: task, seed, value, seconds."""
    policy, variables = MODES[mode]
    environ = {name: value for name, value in os.environ.items() if "MIXED_PRECISION" not in name} | variables
    environ |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    module = ["-m", "amp_tf", "-m"] if variables else ["-m"]
    command = [sys.executable, *module, "benchmarks.accuracy.train", "--policy", policy, "--seeds", str(seeds)]
    process = subprocess.Popen(
        [*command, "--tasks", *tasks], env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    rows = []
    for line in process.stdout:
        if line.startswith("{"):
            rows.append({"mode": mode, **json.loads(line)})
            if results:
                with results.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{mode}: exit status {process.returncode}\n{errors[-3000:]}")
    if variables and not re.search(r"amp_tf: .* nodes converted to", errors):
        raise SystemExit(f"{mode}: amp_tf converted nothing\n{errors[-3000:]}")
    return rows


def compare(values: dict[int, float], reference: dict[int, float]) -> tuple[float, float]:
    """The difference of the means and the pooled standard deviation of the seeds."""
    deviations = [statistics.stdev(v.values()) if len(v) > 1 else 0.0 for v in (values, reference)]
    difference = statistics.fmean(values.values()) - statistics.fmean(reference.values())
    return difference, math.sqrt(sum(d * d for d in deviations) / 2)


def render(values: Values, tasks: list[str]) -> tuple[list[str], bool]:
    """The table, and whether each of amp_tf's rows passes."""
    lines = ["| task | mode | seeds | mean | standard deviation | difference | gate (2 pooled) | |",
             "|---|---|---:|---:|---:|---:|---:|---|"]  # fmt: skip
    passed = True
    for task in tasks:
        for mode in MODES:
            seen, reference = values.get((task, mode)), values.get((task, REFERENCE))
            if not seen or not reference:
                continue
            mean = statistics.fmean(seen.values())
            deviation = statistics.stdev(seen.values()) if len(seen) > 1 else 0.0
            difference, pooled = compare(seen, reference)
            good = abs(difference) <= 2 * pooled
            passed &= good or "amp_tf" not in mode
            verdict = "" if mode == REFERENCE else "pass" if good else "**fail**"
            lines.append(
                f"| {task} | {mode} | {len(seen)} | {mean:.4f} | {deviation:.4f} | {difference:+.4f} | "
                f"{2 * pooled:.4f} | {verdict} |"
            )
    lines += ["", f"| task | {' | '.join(MODES)} |", "|---|" + "---:|" * len(MODES)]
    for task in tasks:
        seen = [values.get((task, mode), {}).values() for mode in MODES]
        cells = [
            f"{statistics.fmean(one):.4f}" + (f" ± {statistics.stdev(one):.4f}" if len(one) > 1 else "") if one else ""
            for one in seen
        ]
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return lines, passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    names = ["digits MLP", "digits CNN", "denoising autoencoder", "recommender", "character LSTM"]
    tasks = arguments.tasks or [*names, "character transformer"]
    known = arguments.results and arguments.results.exists()
    rows = [json.loads(line) for line in arguments.results.read_text().splitlines()] if known else []
    for mode in arguments.modes:
        done = collections.Counter(row["task"] for row in rows if row["mode"] == mode)
        missing = [task for task in tasks if done[task] < arguments.seeds]
        if missing:
            rows += run_mode(mode, missing, arguments.seeds, arguments.results)
    values: Values = collections.defaultdict(dict)
    for row in rows:
        values[row["task"], row["mode"]][row["seed"]] = row["value"]
    lines, passed = render(values, tasks)
    print("\n".join(lines))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
