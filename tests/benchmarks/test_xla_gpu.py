"""Export and run of compiled training steps, on the CPU and at the tiny size."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.xla_gpu import export as exporter
from benchmarks.xla_gpu import run as runner

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("float32", "float32_strict", "amp_bfloat16", "amp_float16", "policy_float16")
JAX_PYTHON = os.environ.get("JAX_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    command = [sys.executable, "-m", "benchmarks.xla_gpu.export", "--models", "small_mlp", "--size", "tiny"]
    environ = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run([*command, "--out", str(folder)], check=True, cwd=ROOT, env={**os.environ, **environ})
    return folder


def manifest(folder: Path, variant: str) -> dict:
    return json.loads((folder / f"small_mlp-b16-{variant}.json").read_text())


def text(folder: Path, variant: str) -> str:
    return gzip.decompress((folder / f"small_mlp-b16-{variant}.mlir.gz").read_bytes()).decode()


def test_each_variant_multiplies_in_its_own_type(exported):
    products = {variant: Counter(manifest(exported, variant)["products"]) for variant in VARIANTS}
    count = sum(products["float32"].values())
    assert count > 0
    assert products["float32"] == products["float32_strict"] == {"dot f32": count}
    assert products["amp_bfloat16"] == {"dot bf16": count}
    assert products["amp_float16"] == products["policy_float16"] == {"dot f16": count}
    assert manifest(exported, "float32")["casts"] == 0 < manifest(exported, "amp_float16")["casts"]


def test_a_step_in_which_amp_tf_converted_nothing_is_refused():
    amp, plain = exporter.VARIANTS["amp_bfloat16"], exporter.VARIANTS["float32"]
    with pytest.raises(RuntimeError, match="amp_bfloat16: no product is in 16 bit"):
        exporter.refuse_unconverted(amp, {"dot f32": 3})
    exporter.refuse_unconverted(amp, {"dot f32": 1, "dot bf16": 2})
    exporter.refuse_unconverted(plain, {"dot f32": 3})


def test_strict_variant_asks_for_full_precision_and_the_other_does_not(exported):
    assert "HIGHEST" in text(exported, "float32_strict")
    assert "HIGHEST" not in text(exported, "float32")


def test_made_up_values_are_the_same_in_every_variant_and_second_moments_are_not_negative(exported):
    for variant in VARIANTS:
        arguments = manifest(exported, variant)["arguments"]
        moments = [row for row in arguments if row["name"].endswith("velocity")]
        assert moments
        assert all((runner.made_up(row) >= 0).all() for row in moments)
        assert all(list(runner.made_up(row).shape) == row["shape"] for row in arguments)
    weights = [
        [runner.made_up(row) for row in manifest(exported, variant)["arguments"] if row["role"] == "weight"]
        for variant in ("float32", "amp_float16")
    ]
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_run_prints_a_table_in_which_every_variant_agrees_with_float32(exported, tmp_path):
    if subprocess.run([JAX_PYTHON, "-c", "import jax"], capture_output=True, check=False).returncode:
        pytest.skip("the run tool needs JAX: pip install jax, or JAX_PYTHON=<a Python that has it>")
    script = ROOT / "benchmarks" / "xla_gpu" / "run.py"
    command = [JAX_PYTHON, str(script), str(exported), "--rounds", "2", "--round-s", "0.01"]
    ended = subprocess.run(
        [*command, "--json", str(tmp_path / "result.json")],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["failures"] == []
    rows = {row["variant"]: row for row in result["rows"]}
    assert set(rows) == set(VARIANTS)
    assert all(row["agrees"] and row["ms"] > 0 and row["temp_mib"] > 0 for row in rows.values())
    assert rows["float32"]["speedup"] == rows["float32"]["memory_ratio"] == 1.0
    assert rows["amp_bfloat16"]["loss_difference"] > 0
    assert "| MLP, 64 wide | 16 | amp_bfloat16 |" in ended.stdout


def test_cosine_tells_directions_apart():
    a = np.array([1.0, 0.0], np.float32)
    assert runner.cosine(a, 2 * a) == pytest.approx(1.0)
    assert runner.cosine(a, np.array([0.0, 3.0], np.float32)) == pytest.approx(0.0)
    assert runner.cosine(a, -a) == pytest.approx(-1.0)
    assert runner.cosine(0 * a, 0 * a) == 1.0
