"""Export of steps as XLA is given them, and their run by JAX alone; on the CPU and at the tiny size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.gpu import environment
from benchmarks.gpu import export as exporter
from tests import processes

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("float32", "float32_strict", "amp_bfloat16", "amp_float16", "policy_float16")
WITH_JAX = environment.COMPILER.python
JAX_PYTHON = os.environ.get("JAX_PYTHON", str(WITH_JAX) if WITH_JAX.exists() else sys.executable)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    command = [sys.executable, "-m", "benchmarks.gpu", "export", "--models", "ncf", "--size", "tiny"]
    command += ["--variants", ",".join(VARIANTS)]
    processes.run([*command, "--out", str(folder)], check=True, cwd=ROOT)
    return folder


def manifest(folder: Path, variant: str, way: str = "train") -> dict:
    return json.loads((folder / f"ncf-{way}-{variant}.json").read_text())


def test_each_variant_multiplies_in_its_own_type(exported):
    products = {variant: Counter(manifest(exported, variant)["products"]) for variant in VARIANTS}
    count = sum(products["float32"].values())
    assert count > 0
    assert products["float32"] == products["float32_strict"] == {"dot f32": count}
    assert products["amp_bfloat16"] == {"dot bf16": count}
    assert products["amp_float16"] == products["policy_float16"] == {"dot f16": count}
    assert manifest(exported, "float32")["casts"] == 0 < manifest(exported, "amp_float16")["casts"]
    inference = manifest(exported, "amp_float16", "predict")
    assert sum(inference["products"].values()) < count
    assert {row["role"] for row in inference["arguments"]} == {"input", "weight"}


def run_by_jax(*arguments: str) -> subprocess.CompletedProcess:
    if subprocess.run([JAX_PYTHON, "-c", "import jax"], capture_output=True, check=False).returncode:
        pytest.skip("the run tool needs JAX: pip install jax, or JAX_PYTHON=<a Python that has it>")
    command = [JAX_PYTHON, "-m", "benchmarks.gpu", "run", *arguments]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)


def test_run_prints_a_table_in_which_every_variant_agrees_with_float32(exported, tmp_path):
    ended = run_by_jax(str(exported), "--rounds", "2", "--round-s", "0.01", "--json", str(tmp_path / "result.json"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["failures"] == []
    assert result["left_out"] == []
    rows = {(row["way"], row["variant"]): row for row in result["rows"]}
    assert set(rows) == {(way, variant) for way in exporter.WAYS for variant in VARIANTS}
    assert all(row["agrees"] and row["ms"] > 0 and row["temp_mib"] >= 0 for row in rows.values())
    assert rows["train", "float32"]["speedup"] == rows["train", "float32"]["memory_ratio"] == 1.0
    assert 0 < rows["predict", "amp_bfloat16"]["cosine"] < 1
    assert "| NCF | train | 64 | amp_bfloat16 |" in ended.stdout
    assert "attention: this is not a GPU" in ended.stdout
