"""TensorFlow's graph optimizers for GPUs that are not there: what they make of steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from benchmarks.gpu import grappler, judge
from tests import processes

ROOT = Path(__file__).resolve().parents[2]
COUNTS = ("convolutions", "products", "casts")
"""What ``tensorflow-cpu`` has, too; the CUDA wheel leaves a Transpose more in BERT."""


def rows(mode: str, models: str, python: str = sys.executable, capability: str = "9.0") -> list[dict[str, Any]]:
    command = [python, "-m", "benchmarks.gpu", "grappler", "--here", "--modes", mode]
    command += ["--models", models, "--capabilities", capability]
    ended = processes.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return list(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize("mode", ["float32", "policy", "amp_tf"])
def test_optimizers_make_of_steps_here_what_the_judged_rows_say(mode: str) -> None:
    models = judge.GRAPPLED_MODELS
    judged = {(row["model"], row["mode"]): row for row in grappler.read(judge.GRAPPLED) if row["capability"] == "9.0"}
    for row in rows(mode, models):
        if tf.__version__.startswith("2.21."):  # the version of the judged rows
            assert {name: row[name] for name in COUNTS} == {
                name: judged[row["model"], mode][name] for name in COUNTS
            }, f"{row['model']}: if this is meant, python -m benchmarks.gpu judge makes the rows anew"
        if mode != "float32":  # tensor cores want it; without the plugin's own toggle it is NCHW
            assert not any("NCHW" in kind for kind in row["convolutions"])
